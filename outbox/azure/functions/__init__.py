"""An application as Azure Functions.

    app = func.FunctionApp()
    app.register_functions(functions.blueprint(bank, settings))

or triggers of one's own, which call `await functions.process(bank, message, source="transfers", settings=settings)`.
"""

from outbox.azure.functions.processor import GivenBack
from outbox.azure.functions.settings import FunctionsSettings
from outbox.azure.functions.sites import answer, blueprint, close, process, processor_of, register, registered, sweep

__all__ = [
    "FunctionsSettings",
    "GivenBack",
    "answer",
    "blueprint",
    "close",
    "process",
    "processor_of",
    "register",
    "registered",
    "sweep",
]
