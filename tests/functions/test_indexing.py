"""How the functions of a folder are told: the marker, the package, one FunctionApp, unique names, bytes as bodies.

Each case runs in a process of its own, on the azure-functions library, and on Azure's own runtime where it is installed
(Python 3.13); both must say the same.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.commands import ran

ROOT = Path(__file__).resolve().parents[2]
INDEX = """
import asyncio, json, sys
from pathlib import Path
from tools.local_functions.workers import IndexingFailed, make_worker

async def main():
    try:
        found = await make_worker(sys.argv[1]).start(Path(sys.argv[2]))
    except IndexingFailed as error:
        return {"refused": str(error)}
    return {one.name: one.bindings for one in found}

print(json.dumps(asyncio.run(main())))
"""
SETTINGS = {
    "FUNCTIONS_WORKER_RUNTIME": "python",
    "OUTBOX_SERVICEBUS__fullyQualifiedNamespace": "bank.servicebus.windows.net",
    "OUTBOX_COSMOS__accountEndpoint": "https://bank.documents.azure.com",
}
APP = """
import azure.functions as func
app = func.FunctionApp()

@app.timer_trigger(arg_name="timer", schedule="0 * * * * *")
async def beat(timer: func.TimerRequest) -> None: ...
"""
HAS_RUNTIME = importlib.util.find_spec("azure_functions_runtime") is not None
KINDS = [
    "library",
    pytest.param("runtime", marks=pytest.mark.skipif(not HAS_RUNTIME, reason="azure-functions-runtime: Python 3.13")),
]
pytestmark = pytest.mark.parametrize("kind", KINDS)


def index(kind: str, folder: Path, **more: str) -> dict[str, Any]:
    """What a worker says of a folder."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OUTBOX_")} | SETTINGS | more
    command = [sys.executable, "-c", INDEX, kind, str(folder)]
    with tempfile.TemporaryDirectory() as path:  # the tools and the library, without the functions of this clone
        for name in ("tools", "outbox"):
            (Path(path) / name).symlink_to(ROOT / name)
        environment["PYTHONPATH"] = path
        done = ran(command, folder, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def folder_of(tmp_path: Path, **files: str) -> Path:
    """A folder with these files; `__` in a name is a slash."""
    folder = tmp_path / "app"
    for name, text in {"host_json": '{"version": "2.0"}', **files}.items():
        path = folder / name.replace("__init_py", "__init__.py").replace("_json", ".json").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def package(tmp_path: Path, text: str, marker: str | None = "raise SystemExit('the marker was executed')") -> Path:
    """A folder with the package function_app, and the marker beside it."""
    folder = tmp_path / "app"
    (folder / "function_app").mkdir(parents=True)
    (folder / "function_app" / "__init__.py").write_text(text)
    (folder / "host.json").write_text('{"version": "2.0"}')
    if marker is not None:
        (folder / "function_app.py").write_text(marker)
    return folder


def deployed(tmp_path: Path) -> Path:
    """What of this clone a deployment takes along: all but what .funcignore names."""
    lines = (ROOT / ".funcignore").read_text().splitlines()
    ignored = [line for line in lines if line and not line.startswith("#")]

    def leave_out(folder: str, names: list[str]) -> set[str]:
        inside = Path(folder).relative_to(ROOT).as_posix()
        paths = {name: name if inside == "." else f"{inside}/{name}" for name in names}
        return {
            name
            for name, path in paths.items()
            if any(path == line or fnmatch(name, line) for line in ignored) or name == "300"
        }

    shutil.copytree(ROOT, tmp_path / "app", ignore=leave_out)
    return tmp_path / "app"


def test_what_is_deployed_has_a_trigger_for_each_queue_and_a_timer(kind: str, tmp_path: Path) -> None:
    folder = deployed(tmp_path)
    assert not (folder / "tests").exists() and not (folder / "outbox" / "emulator").exists()
    found = index(kind, folder)
    queues = {name: bindings[0] for name, bindings in found.items() if bindings[0]["type"] == "serviceBusTrigger"}
    assert {one["queueName"] for one in queues.values()} == {"accounts", "transfers", "deposits", "refunds"}
    assert all(one["dataType"] == "BINARY" and one["connection"] == "OUTBOX_SERVICEBUS" for one in queues.values())
    assert not any(one.get("cardinality") == "many" or one.get("isSessionsEnabled") for one in queues.values())
    assert found["sweep"][0]["type"] == "timerTrigger"


def test_a_missing_setting_ends_the_start_and_is_named(kind: str) -> None:
    refused = index(kind, ROOT, OUTBOX_COSMOS__accountEndpoint="")["refused"]
    assert "OUTBOX_COSMOS or OUTBOX_COSMOS__accountEndpoint" in refused and "OUTBOX_SERVICEBUS" not in refused


def test_the_marker_is_never_executed(kind: str, tmp_path: Path) -> None:
    assert list(index(kind, package(tmp_path, APP))) == ["beat"]
    text = (ROOT / "function_app.py").read_text()
    assert "raise SystemExit" in text  # so that it would show


def test_without_the_marker_there_are_no_functions_and_no_complaint(kind: str, tmp_path: Path) -> None:
    assert index(kind, package(tmp_path, APP, marker=None)) == {}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("again = app", "More than one"),
        ("del app", "Could not find"),
        ("app = lambda: func.FunctionApp()", "Could not find"),
    ],
)
def test_exactly_one_name_is_bound_to_an_app(kind: str, tmp_path: Path, more: str, text: str) -> None:
    assert text in index(kind, package(tmp_path, f"{APP}\n{more}\n"))["refused"]


def test_another_marker_has_to_be_a_plain_file_name(kind: str, tmp_path: Path) -> None:
    folder = package(tmp_path, APP)
    (folder / "main.py").write_text("from function_app import app\n")
    assert list(index(kind, folder, PYTHON_SCRIPT_FILE_NAME="main.py")) == ["beat"]
    refused = index(kind, folder, PYTHON_SCRIPT_FILE_NAME="function_app/__init__.py")
    assert "Invalid file name" in refused["refused"]


def test_an_import_that_fails_is_reported(kind: str, tmp_path: Path) -> None:
    assert "not_there" in index(kind, package(tmp_path, "import not_there\n"))["refused"]


SHOP = """
import azure.functions as func
from dataclasses import dataclass
from outbox import App
from outbox.azure import functions

shop = App("shop")
shop.queue("in-order", "per_key")
shop.queue("in_order")

@dataclass
class Order:
    id: str

@shop.handler("in-order", key="id")
@shop.handler("in_order", key="id", name="loose")
@shop.handler("events", subscription="audit", key="id", name="audited")
def order(order: Order) -> None: ...

settings = functions.FunctionsSettings(lambda: None, servicebus="BUS", sweep_schedule="0 0 * * * *")
app = func.FunctionApp()
app.register_functions(functions.blueprint(shop, settings))
"""


def test_ordered_queues_have_sessions_and_names_are_unique(kind: str, tmp_path: Path) -> None:
    found = index(kind, package(tmp_path, SHOP))
    by_source = {b[0].get("queueName") or b[0].get("topicName"): (n, b[0]) for n, b in found.items()}
    assert by_source["in-order"][1]["isSessionsEnabled"] is True and by_source["in-order"][1]["connection"] == "BUS"
    assert not by_source["in_order"][1].get("isSessionsEnabled")
    events = by_source["events"][1]
    assert (events["subscriptionName"], events["dataType"]) == ("audit", "BINARY")
    assert len(found) == 4 and found["sweep"][0]["schedule"] == "0 0 * * * *"
