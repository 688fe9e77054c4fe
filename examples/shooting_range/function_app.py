"""The Functions app: a trigger for each queue of the range, a function for each HTTP entry, a timer that sweeps.

Exactly one name here may be bound to a FunctionApp: the worker looks at all of them and refuses two.
"""

from __future__ import annotations

import azure.functions as func

from outbox.azure import functions
from shooting_range.handlers import app as handlers
from shooting_range.settings import settings

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
app.register_functions(functions.blueprint(handlers, settings))
