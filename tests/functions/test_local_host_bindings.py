"""A function with a binding that the local host does not serve is named at the start, and the others run."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from outbox import Engine
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.entities import QueueSettings
from tests.functions.test_local_host import KINDS
from tools.local_functions.host import FunctionsHost

APP = """
from typing import List

import azure.functions as func

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

@app.service_bus_queue_trigger(arg_name="message", queue_name="in", connection="BUS")
@app.service_bus_queue_output(arg_name="out", queue_name="other", connection="BUS")
def copy(message: func.ServiceBusMessage, out: func.Out[str]) -> None:
    out.set("x")

@app.service_bus_queue_trigger(arg_name="messages", queue_name="in", connection="BUS", cardinality="many")
def many(messages: List[func.ServiceBusMessage]) -> None:
    pass

@app.route("look")
@app.blob_input(arg_name="blob", path="box/b", connection="BUS")
def look(req: func.HttpRequest, blob: func.InputStream) -> func.HttpResponse:
    return func.HttpResponse("seen")

@app.blob_trigger(arg_name="blob", path="box/b", connection="BUS")
def seen(blob: func.InputStream) -> None:
    pass

@app.service_bus_queue_trigger(arg_name="message", queue_name="one", connection="BUS", cardinality="one")
def one(message: func.ServiceBusMessage) -> None:
    pass

@app.route("plain")
def plain(req: func.HttpRequest) -> func.HttpResponse:
    return func.HttpResponse("here")
"""
NAMED = {
    "copy": "its binding 'out' (serviceBus, out) is not served here",
    "many": "its trigger 'messages' (serviceBusTrigger, in) has cardinality=\"many\"",
    "look": "its binding 'blob' (blob, in) is not served here",
    "seen": "its trigger 'blob' (blobTrigger, in) is none of serviceBusTrigger",
}
numbers = itertools.count(1)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_not_served_is_named_at_the_start_and_its_messages_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    script = f"app_of_bindings_{next(numbers)}.py"
    (tmp_path / script).write_text(APP)
    (tmp_path / "host.json").write_text('{"version": "2.0"}')
    monkeypatch.setenv("PYTHON_SCRIPT_FILE_NAME", script)
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as bus:
        for queue in ("in", "one", "other"):
            engine.declare(QueueSettings(queue, max_delivery_count=1))
        monkeypatch.setenv("BUS", bus.connection_string)
        async with ServiceBusClient.from_connection_string(bus.connection_string) as client:
            async with client.get_queue_sender("in") as sender:
                await sender.send_messages(ServiceBusMessage(b"waits"))
            async with FunctionsHost(tmp_path, worker=kind) as host:
                said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
                for name, text in NAMED.items():
                    assert [line for line in said if line.startswith(f"function {name} is not started: {text}")], said
                assert len(said) == len(NAMED) and sorted(host.left_out) == sorted(NAMED)
                assert sorted(host.functions) == ["one", "plain"]
                assert (await host.request("GET", "/api/plain")).text == "here"
                assert (await host.request("GET", "/api/look")).status == 404
            async with client.get_queue_receiver("in", max_wait_time=2) as receiver:
                (message,) = await receiver.receive_messages(2, max_wait_time=2)
                assert message.delivery_count == 0
