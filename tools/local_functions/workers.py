"""What runs the functions: Azure's own runtime where it is installed (Python 3.13), the azure-functions library else.

Both go by the same rules: a marker file beside host.json, a module of its name, exactly one FunctionApp in that.  The
library does not do the runtime's checks of annotations, so what runs on it may still be refused on Azure; tests run on
both where both can be had.

A function that ends with something that is no `Exception` is never answered on Azure: its invocation hangs until the
host loses its patience and kills the worker.  Here that is told at once (`is_answered` is False).
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from uuid import NAMESPACE_OID, uuid4, uuid5

from tools.local_functions.wire import Fields, ParameterBinding, TypedData, protos

log = logging.getLogger("local_functions")

SCRIPT_SETTING, SCRIPT_DEFAULT = "PYTHON_SCRIPT_FILE_NAME", "function_app.py"
_SCRIPT_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_\-]*\.py")


class IndexingFailed(Exception):
    """The functions of a folder cannot be told; Azure would refuse it likewise."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function as the host knows it: its name, and its bindings as in function.json."""

    name: str
    bindings: tuple[dict[str, Any], ...]

    @property
    def trigger(self) -> dict[str, Any]:
        """The binding that starts it."""
        return next(binding for binding in self.bindings if str(binding.get("type", "")).lower().endswith("trigger"))


@dataclass(frozen=True, slots=True)
class Result:
    """How an invocation ended."""

    ok: bool
    value: TypedData | None = None
    error: str = ""
    stack: str = ""
    is_answered: bool = True


class FunctionsWorker(Protocol):
    """Whatever runs functions."""

    name: str

    async def start(self, folder: Path) -> list[Function]:
        """Index a folder.

        Raises:
            IndexingFailed: it cannot be.
        """

    async def invoke(self, name: str, data: TypedData, metadata: Mapping[str, TypedData]) -> Result:
        """Run a function on its trigger's value."""


def make_worker(kind: str = "auto") -> FunctionsWorker:
    """A worker: `runtime`, `library`, or the first of them that is there."""
    there = importlib.util.find_spec("azure_functions_runtime") is not None
    if kind == "runtime" and not there:
        raise IndexingFailed("azure-functions-runtime is not installed here; it needs Python 3.13, or say library")
    return RuntimeWorker() if kind == "runtime" or (kind == "auto" and there) else LibraryWorker()


def script_of(folder: Path) -> str:
    """The name of the marker file."""
    name = os.environ.get(SCRIPT_SETTING) or SCRIPT_DEFAULT
    if not _SCRIPT_NAME.fullmatch(name):
        raise IndexingFailed(f"Invalid file name: {name}")
    return name


class RuntimeWorker:
    """Azure's runtime for Python 3.13 and later, by its entry points."""

    name = "azure-functions-runtime"

    def __init__(self) -> None:
        self._runtime: ModuleType = importlib.import_module("azure_functions_runtime")
        self._protos = protos()
        self._triggers: dict[str, str] = {}

    async def start(self, folder: Path) -> list[Function]:
        _importable(folder)
        self._runtime.start_threadpool_executor()
        init = Fields(capabilities={}, function_app_directory=str(folder))
        properties = {"host": "127.0.0.1", "protos": self._protos}
        request = Fields(request=Fields(worker_init_request=init), properties=properties)
        answer = await self._runtime.worker_init_request(request)
        if answer.result.status != self._protos.StatusResult.Success:
            raise IndexingFailed(answer.result.exception.message)
        found = await self._runtime.functions_metadata_request(request)
        functions = [
            Function(one.name, tuple(json.loads(text) for text in one.raw_bindings))
            for one in found.function_metadata_results or ()
        ]
        self._triggers = {function.name: function.trigger["name"] for function in functions}
        return functions

    async def invoke(self, name: str, data: TypedData, metadata: Mapping[str, TypedData]) -> Result:
        request = Fields(
            invocation_id=str(uuid4()),
            function_id=str(uuid5(NAMESPACE_OID, name)),
            input_data=[ParameterBinding(name=self._triggers[name], data=data)],
            trigger_metadata=dict(metadata),
            trace_context=Fields(trace_parent="", trace_state="", attributes={}),
            retry_context=Fields(retry_count=0, max_retry_count=0, exception=None),
        )
        try:
            answer = await self._runtime.invocation_request(Fields(request=Fields(invocation_request=request)))
        except BaseException as error:
            return _unanswered(name, error)
        if answer.result.status == self._protos.StatusResult.Success:
            return Result(True, answer.return_value)
        return Result(False, None, answer.result.exception.message, answer.result.exception.stack_trace)


class LibraryWorker:
    """The azure-functions library alone: its converters, and the worker's rules of import."""

    name = "azure-functions"

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}
        self._specs: dict[str, Function] = {}
        self._converters: Any = None

    async def start(self, folder: Path) -> list[Function]:
        import azure.functions as func

        self._converters = func.get_binding_registry()  # type: ignore[no-untyped-call]  # the library's has no types
        script = script_of(folder)
        if not (folder / script).exists():
            return []  # as on Azure: no marker, no functions, and no complaint
        _importable(folder)
        try:
            module = importlib.import_module(script.removesuffix(".py"))
            apps = [name for name in dir(module) if isinstance(getattr(module, name, None), func.FunctionRegister)]
            if len(apps) != 1:
                found = f"More than one FunctionApp ({', '.join(apps)})" if apps else "Could not find a FunctionApp"
                raise IndexingFailed(f"{found} in {script}: exactly one name may be bound to one")
            functions = getattr(module, apps[0]).get_functions()
        except IndexingFailed:
            raise
        except Exception as error:
            raise IndexingFailed(f"{type(error).__name__}: {error}") from error
        for one in functions:
            name, bindings = one.get_function_name(), tuple(json.loads(text) for text in one.get_raw_bindings())
            if name in self._specs:
                raise IndexingFailed(f"function {name} is there twice")
            self._functions[name], self._specs[name] = one.get_user_function(), Function(name, bindings)
        return list(self._specs.values())

    async def invoke(self, name: str, data: TypedData, metadata: Mapping[str, TypedData]) -> Result:
        function, trigger = self._functions[name], self._specs[name].trigger
        try:
            given = {key: _datum(value) for key, value in metadata.items()}
            value = self._converters.get(trigger["type"]).decode(_datum(data), trigger_metadata=given)
            if inspect.iscoroutinefunction(function):
                returned = await function(**{trigger["name"]: value})
            else:
                returned = await asyncio.to_thread(function, **{trigger["name"]: value})
            return Result(True, self._encoded(name, returned))
        except Exception as error:
            return Result(False, None, f"{type(error).__name__}: {error}", traceback.format_exc())
        except BaseException as error:
            return _unanswered(name, error)

    def _encoded(self, name: str, returned: Any) -> TypedData | None:
        if returned is None:
            return None
        if not any(binding["type"] == "http" for binding in self._specs[name].bindings):
            raise RuntimeError(f"function {name} without a $return binding returned a non-None value")
        datum = self._converters.get("http").encode(returned, expected_type=None)
        if datum.type != "http":
            return TypedData(string=datum.value)
        headers = {key: value.value for key, value in datum.value["headers"].items()}
        body = TypedData(bytes=datum.value["body"].value)
        return TypedData(http=Fields(status_code=datum.value["status_code"].value, headers=headers, body=body))


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _datum(data: TypedData) -> Any:
    """A value as the library's converters take it."""
    from azure.functions.meta import Datum

    if data.kind is None:
        return None
    if data.kind != "http":
        return Datum(data.value, data.kind)
    request = data.value
    fields = {
        "method": Datum(request.method, "string"),
        "url": Datum(request.url, "string"),
        "headers": {name: Datum(text, "string") for name, text in request.headers.items()},
        "params": {name: Datum(text, "string") for name, text in request.params.items()},
        "query": {name: Datum(text, "string") for name, text in request.query.items()},
        "body": _datum(request.body),
    }
    return Datum(fields, "http")


def _unanswered(name: str, error: BaseException) -> Result:
    if isinstance(error, KeyboardInterrupt | SystemExit) or (
        isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling()
    ):
        raise error  # it is this host that is being stopped
    log.error("%s ended with %r: on Azure it would never be answered", name, error)
    return Result(False, None, repr(error), is_answered=False)
