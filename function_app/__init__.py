"""The Functions app: the sample bank, with a trigger for each of its queues and a timer that sweeps.

Where OUTBOX_SPARK is set, timers and HTTP requests start Spark jobs as well (function_app/spark.py).

Exactly one name here may be bound to a FunctionApp: the worker looks at all of them and refuses two, and two names of
one count as two.
"""

from __future__ import annotations

import logging
import os

import azure.functions as func

from function_app import logs, spark
from function_app.bank import app as handlers  # not `bank`, which is the module
from function_app.settings import settings
from outbox.azure import functions

logs.show_fields(logging.getLogger())  # the host's handler is there before this is imported

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
if spark.is_on(os.environ):
    spark.declare(handlers, spark.runs_of(os.environ))
    app.register_functions(spark.timers(handlers, spark.timers_of(os.environ)))
app.register_functions(functions.blueprint(handlers, settings))
