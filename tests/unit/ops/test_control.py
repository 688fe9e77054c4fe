"""Who may use the control endpoint, and what it makes of everything else."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from outbox.errors import (
    CorruptRecord,
    EngineStopped,
    OutboxError,
    OutcomeUnknown,
    PoisonMessage,
    Refused,
    Throttled,
    TooLarge,
    Trimmed,
    UnknownDestination,
)
from outbox.ops.admins import control
from outbox.ops.admins import engine as engine_admin
from outbox.ops.admins.control import serve_control
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.admins.remote import RemoteAdmin
from outbox.ops.shared.control_file import ControlFile, is_held, read_control_file
from outbox.ops.values.dead_letters import Resubmit
from outbox.ops.values.states import Export, ReadState
from outbox.ops.values.status import ReadStatus
from tests.unit.ops.operators import served

ROUTES = [
    ("GET", "/health"),
    *[("POST", f"/ask/{kind.__name__}") for kind in (*engine_admin.ANSWERS, *engine_admin.LINES)],
    ("GET", "/nowhere"),
    ("POST", "/ask/Nothing"),
]


@dataclass
class Wire:
    """Raw bytes to the endpoint and back."""

    file: ControlFile

    async def exchange(self, data: bytes, *, within_s: float = 5.0) -> bytes:
        """What comes back until the endpoint closes or the time is over."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.file.port)
        answer = b""
        try:
            async with asyncio.timeout(within_s):
                writer.write(data)
                while piece := await reader.read(1 << 16):
                    answer += piece
        except (ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()
        return answer

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, host: str | None = "127.0.0.1", token: str | None = None
    ) -> tuple[int, Any]:
        token = self.file.token if token is None else token
        lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"Host: {host}"] if host is not None else []
        lines += [f"Authorization: Bearer {token}"] if token else []
        answer = await self.exchange("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        return status, json.loads(rest) if b"application/json" in head else rest


@pytest.fixture
async def wire(bank: Any) -> AsyncIterator[Wire]:
    async with served(EngineAdmin(bank.engine), bank.folder) as file:
        yield Wire(file)


async def test_the_control_file_is_its_owners_alone_and_goes_with_the_host(bank: Any) -> None:
    async with serve_control(EngineAdmin(bank.engine), bank.folder):
        assert (bank.folder / "control.json").stat().st_mode & 0o777 == 0o600
        first = read_control_file(bank.folder)
    assert read_control_file(bank.folder) is None
    async with serve_control(EngineAdmin(bank.engine), bank.folder):
        second = read_control_file(bank.folder)
    assert first and second and first.token != second.token and len(first.token) >= 40
    assert first.token not in repr(first)


@pytest.mark.parametrize("content", [b"", b"{", b'{"port":"x"}', b'{"port":1,"pid":2,"token":"\xd6"}', b"[" * 5_000])
def test_a_control_file_that_cannot_be_read_is_none(disk_path: Path, content: bytes) -> None:
    (disk_path / "control.json").write_bytes(content)
    assert read_control_file(disk_path) is None


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_no_route_answers_without_the_token(wire: Wire, method: str, path: str) -> None:
    for token in ("", "wrong", wire.file.token[:-1], wire.file.token + "x", "\u00e9"):
        status, answer = await wire.ask(method, path, token=token)
        if not token:
            lines = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
            assert (await wire.exchange(lines)).startswith(b"HTTP/1.1 401")
        assert status == 401 and "token" in answer["error"]


@pytest.mark.parametrize(("scheme", "status"), [("bearer", 200), ("BEARER", 200), ("Basic", 401), ("", 401)])
async def test_a_token_is_a_bearers(wire: Wire, scheme: str, status: int) -> None:
    line = f"Authorization: {scheme} {wire.file.token}"
    answer = await wire.exchange(
        f"GET /health HTTP/1.1\r\nHost: localhost\r\n{line}\r\nConnection: close\r\n\r\n".encode()
    )
    assert answer.startswith(f"HTTP/1.1 {status}".encode())


class Failing:
    """An admin that fails of all that it is asked."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def ask(self, asked: Any) -> Any:
        raise self.error

    async def stream(self, asked: Any) -> AsyncIterator[bytes]:
        yield await self.ask(asked)


@pytest.mark.parametrize(
    ("error", "status", "kind", "text"),
    [
        (KeyError("no message 'a'"), 404, LookupError, "no message 'a'"),
        (LookupError("no message 'a'"), 404, LookupError, "no message 'a'"),
        (UnknownDestination("no queue"), 404, UnknownDestination, "no queue"),
        (TooLarge("too much"), 413, TooLarge, "too much"),
        (Throttled("later"), 429, Throttled, "later"),
        (Trimmed("gone"), 409, Trimmed, "gone"),
        (CorruptRecord("damaged"), 500, CorruptRecord, "damaged"),
        (EngineStopped("closed"), 503, EngineStopped, "closed"),
        (PoisonMessage("bad", "no type"), 409, Refused, "bad: no type"),
        (OutcomeUnknown("perhaps"), 409, OutcomeUnknown, "perhaps"),
        (ValueError("a secret"), 500, OutboxError, "the host failed on this request and logged why"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
async def test_an_error_travels_with_its_status_class_and_text(
    bank: Any, error: Exception, status: int, kind: type[Exception], text: str
) -> None:
    async with served(cast(Any, Failing(error)), bank.folder) as file:
        found = await Wire(file).ask("GET", "/health")
        assert found[0] == status and found[1]["error"] == text, "/health asks the admin as well"
        remote = RemoteAdmin(file, bank.folder)
        with pytest.raises(kind) as asked:
            await remote.ask(ReadStatus())
        with pytest.raises(kind) as streamed:
            [piece async for piece in remote.stream(Export())]
    assert [(type(each.value), each.value.args) for each in (asked, streamed)] == [(kind, (text,))] * 2


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1:x", "127.0.0.2", "", "[::1].x", None],
)
async def test_a_foreign_host_header_is_refused_even_with_the_token(wire: Wire, host: str | None) -> None:
    status, _ = await wire.ask("POST", "/ask/ReadStatus", b"{}", host=host)
    assert status in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:5", "localhost", "LOCALHOST:99", "[::1]", "[::1]:8"])
async def test_a_loopback_host_header_is_accepted(wire: Wire, host: str) -> None:
    assert (await wire.ask("GET", "/health", host=host))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"queue":"deposits"}',
        b'{"queue":"deposits","messages":[{"body":1}]}',
        b'{"queue":"deposits","messages":[{"id":"","body":1}]}',
        b'{"queue":"deposits","messages":[{"id":"a","body":1,"more":2}]}',
        b'{"queue":"deposits","messages":[{"id":"a","body":1,"created":-1}]}',
        b'{"queue":"deposits","messages":[{"id":"a","body":1,"created":1e300}]}',
        b'{"queue":"deposits","messages":[{"id":"\xff","body":1}]}',
        b'{"queue":"deposits","messages":[{"id":"a","body":' + b"[" * 5_000,
        b"[" * 100_000,
    ],
)
async def test_a_malformed_send_is_a_bad_request_and_sends_nothing(bank: Any, wire: Wire, body: bytes) -> None:
    status, answer = await wire.ask("POST", "/ask/Send", body)
    assert status == 400 and answer["error"]
    assert bank.engine.broker.peek("deposits", 0, 9) == []


async def test_a_body_over_the_limit_is_refused_unread(wire: Wire, monkeypatch: pytest.MonkeyPatch, bank: Any) -> None:
    monkeypatch.setattr(control, "BODY_MAX_BYTES", 10_000)
    async with served(EngineAdmin(bank.engine), bank.folder) as file:
        assert (await Wire(file).ask("POST", "/ask/Send", b" " * 20_000))[0] == 413


async def test_only_so_many_requests_are_under_way(wire: Wire, monkeypatch: pytest.MonkeyPatch, bank: Any) -> None:
    monkeypatch.setattr(control, "REQUEST_COUNT_MAX", 1)
    async with served(EngineAdmin(bank.engine), bank.folder) as file:
        _, writer = await asyncio.open_connection("127.0.0.1", file.port)
        head = (
            "POST /ask/Send HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {file.token}\r\nContent-Length: 9\r\n\r\n"
        )
        writer.write(head.encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        status, answer = await Wire(file).ask("POST", "/ask/ReadStatus", b"{}")
        assert (status, answer["error"]) == (503, "1 requests are under way; try again")
        writer.close()
        await asyncio.sleep(0.05)
        assert (await Wire(file).ask("POST", "/ask/ReadStatus", b"{}"))[0] == 200


async def test_connections_have_a_limit_and_those_that_ask_nothing_are_closed(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, bank: Any
) -> None:
    monkeypatch.setattr(control, "CONNECTION_COUNT_MAX", 3)
    monkeypatch.setattr(control, "IDLE_MAX_S", 0.5)
    async with served(EngineAdmin(bank.engine), bank.folder) as file:
        silent = [await asyncio.open_connection("127.0.0.1", file.port) for _ in range(3)]
        silent[0][1].write(b"GET /health HTTP/1.1\r\nHost: ")  # a head that never ends
        await asyncio.sleep(0.05)
        assert await Wire(file).exchange(b"GET /health HTTP/1.1\r\n\r\n") == b""
        async with asyncio.timeout(3):
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()
        assert (await Wire(file).ask("POST", "/ask/ReadStatus", b"{}"))[0] == 200


async def test_a_connection_is_kept_for_the_next_request_and_then_let_go(bank: Any, wire: Wire) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", wire.file.port)
    ask = f"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {wire.file.token}\r\n\r\n"
    for _ in range(control.CONNECTION_COUNT_MAX + 1):
        writer.write(ask.encode())
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    writer.close()
    for _ in range(control.CONNECTION_COUNT_MAX + 1):  # those that are closed make room
        assert (await wire.ask("GET", "/health"))[0] == 200


async def test_who_has_no_token_gets_one_answer_for_each_connection(wire: Wire) -> None:
    for line in ("Host: localhost", f"Host: evil.example\r\nAuthorization: Bearer {wire.file.token}"):
        answer = await wire.exchange(f"GET /health HTTP/1.1\r\n{line}\r\n\r\n".encode() * 3)
        assert answer.count(b"HTTP/1.1 40") == 1


@pytest.mark.parametrize("expected", ["100-continue", "100\x89d\xb2nue"])
async def test_nothing_that_a_client_expects_is_answered_before_its_token(wire: Wire, expected: str) -> None:
    for path in ("/health", "/ask/Send", "/nowhere"):
        lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nExpect: {expected}\r\nConnection: close\r\n\r\n"
        assert (await wire.exchange(lines.encode("latin-1"))).startswith(b"HTTP/1.1 401")


WRONG = {
    "method": ["PUT", "DELETE", "HEAD", "OPTIONS", "G\x00T", "", "A" * 9_000],
    "query": [
        "?queue=",
        "?type=%ff%00&key=%",
        "?after=-1&queue=deposits",
        "?count=x&queue=q",
        "/../x",
        "\x01",
        "?a=b" * 5_000,
    ],
    "version": ["HTTP/1.0", "HTTP/9.9", "SPDY", ""],
    "host": ["Host: evil", "Host: 127.0.0.1\r\nHost: evil", "Host", ""],
    "token": ["Authorization: Bearer", "Authorization: Bearer \xff", "Authorization: Basic x", ""],
    "length": [
        "Content-Length: -5",
        "Content-Length: 99999999999",
        "Content-Length: 1\r\nContent-Length: 2",
        "Content-Encoding: gzip\r\nContent-Length: 3",
        "Transfer-Encoding: chunked",
    ],
    "more": ["X" * 20_000 + ": y", "Expect: 100-continue", "Upgrade: websocket", "Connection: close, \x00"],
}


def malformed(random_: random.Random, token: str) -> bytes:
    """A request with one to three things wrong with it, and sometimes a bite out of it."""
    body = random_.choice([random_.randbytes(150), b'{"queue": 5}', b'{"queue":"deposits","id":7}', b""])
    method, path = random_.choice([route for route in ROUTES if route[1] not in ("/ask/Compact", "/ask/Seal")])
    part = {
        "method": method,
        "query": "",
        "version": "HTTP/1.1",
        "host": "Host: 127.0.0.1",
        "token": f"Authorization: Bearer {token}",
        "length": f"Content-Length: {len(body)}",
        "more": "",
    }
    for name in random_.sample(list(WRONG), random_.randint(1, 3)):
        part[name] = random_.choice(WRONG[name])
    lines = [f"{part['method']} {path.partition('?')[0]}{part['query']} {part['version']}"]
    lines += [part[name] for name in ("host", "token", "length", "more") if part[name]]
    data = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    if random_.random() < 0.2:
        cut = random_.randrange(len(data))
        data = data[:cut] + random_.randbytes(random_.randrange(20)) + data[cut + random_.randrange(20) :]
    return data


@pytest.mark.parametrize("seed", range(4))
async def test_malformed_requests_change_nothing_and_stop_nothing(
    bank: Any, wire: Wire, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    bank.engine.broker.send("deposits", [])
    random_ = random.Random(seed)
    before = bank.engine.log.appended
    answers = []
    for _ in range(100):
        data = malformed(random_, wire.file.token)
        answers.append(await wire.exchange(data, within_s=0.02))
        assert not answers[-1].startswith(b"HTTP/1.1 5"), (data, answers[-1])
    assert {b" 400 ", b" 401 ", b" 403 "} <= {answer[8:13] for answer in answers}  # all the guards were reached
    assert bank.engine.log.appended - before <= 2  # what the idle engine itself writes
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
    assert (await wire.ask("GET", "/health"))[0] == 200


async def test_an_export_that_breaks_off_is_not_taken_for_whole(bank: Any) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n")
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    remote = RemoteAdmin(ControlFile(port, 1, "t"), bank.folder)
    with pytest.raises(Exception, match=rf"the host \(process 1, 127.0.0.1:{port}\) broke off the export"):
        [piece async for piece in remote.stream(Export())]
    server.close()


async def swallowing() -> asyncio.Server:
    """A host that takes a request and goes away."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    return await asyncio.start_server(swallow, "127.0.0.1", 0)


async def test_a_read_that_gets_no_answer_names_the_host_and_not_its_token(bank: Any) -> None:
    server = await swallowing()
    port = server.sockets[0].getsockname()[1]
    remote = RemoteAdmin(ControlFile(port, 1, "the-token"), bank.folder)
    for why in ("went away", "does not answer"):
        with pytest.raises(Refused, match=rf"the host \(process 1, 127.0.0.1:{port}\) {why}") as caught:
            await remote.ask(ReadStatus())
        assert "the-token" not in str(caught.value)
        server.close()  # from now on nobody listens
        await server.wait_closed()


async def test_what_is_no_text_is_refused_before_it_is_sent(bank: Any, wire: Wire) -> None:
    with pytest.raises(Refused, match="is not text"):
        await RemoteAdmin(wire.file, bank.folder).ask(ReadState("Account", "\udcff"))


async def test_a_lost_answer_to_a_send_is_an_unknown_outcome(bank: Any) -> None:
    server = await swallowing()
    remote = RemoteAdmin(ControlFile(server.sockets[0].getsockname()[1], 1, "t"), bank.folder)
    with pytest.raises(Exception, match="may have been done") as caught:
        await remote.ask(Resubmit("deposits", None))
    assert type(caught.value).__name__ == "OutcomeUnknown"
    server.close()


async def test_a_folder_is_held_as_long_as_its_engine_is_open(bank: Any) -> None:
    assert is_held(bank.folder)
    bank.engine.close()
    assert not is_held(bank.folder)
