"""The crash playground over HTTP: who may play, bad input, limits; and the command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from outbox.ops.cli.parser import main
from outbox.ops.play import command, server
from outbox.ops.play.server import MOVE_MAX_BYTES, serve_play


@dataclass
class Page:
    """A page that may play."""

    client: aiohttp.ClientSession
    url: str
    token: str

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}", **more.pop("headers", {})}
        async with self.client.request(method, self.url + path, headers=headers, **more) as response:
            return response.status, await response.json(content_type=None)

    async def move(self, **move: Any) -> tuple[int, Any]:
        return await self.ask("POST", "move", json=move)


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with serve_play(0) as address, aiohttp.ClientSession() as client:
        url, _, token = address.partition("#")
        yield Page(client, url, token)


async def test_a_player_moves_and_looks(page: Page) -> None:
    assert page.url.startswith("http://127.0.0.1:")
    status, shown = await page.move(do="send")
    assert status == 200 and shown["view"]["orders"][0]["id"] == "o1"
    status, shown = await page.move(do="finish", worker=1)
    assert shown["view"]["verdict"]["is_equal"] and shown["view"]["stock"] == 97
    assert (await page.ask("GET", "look?after=-1"))[1] == shown


async def test_a_look_waits_for_something_new(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = (await page.ask("GET", "look"))[1]["revision"]
    looking = asyncio.create_task(page.ask("GET", f"look?after={revision}"))
    await asyncio.sleep(0.05)
    assert not looking.done()
    await page.move(do="reset")
    assert (await looking)[1]["revision"] > revision
    monkeypatch.setattr(server, "LOOK_WITHIN_S", 0.01)
    newest = (await page.ask("GET", "look"))[1]["revision"]
    assert (await page.ask("GET", f"look?after={newest}"))[1]["revision"] == newest


@pytest.mark.parametrize("path", ["look", "move"])
@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer wrong", "Basic eA==", "Bearer \u00e9"])
async def test_without_the_token_nobody_plays_or_looks(page: Page, path: str, given: str) -> None:
    method = "GET" if path == "look" else "POST"
    status, answer = await page.ask(method, path, headers={"Authorization": given}, json={"do": "send"})
    assert status == 401 and "open the address" in answer["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Host": "rebound.example"}, 421),
        ({"Host": "rebound.example", "Origin": "http://rebound.example"}, 421),
    ],
)
async def test_another_page_cannot_play_even_with_the_token(page: Page, headers: dict[str, str], status: int) -> None:
    assert (await page.ask("POST", "move", headers=headers, json={"do": "send"}))[0] == status
    assert (await page.ask("GET", "look"))[1]["view"]["orders"] == []


async def test_the_page_itself_is_accepted_as_origin(page: Page) -> None:
    assert (await page.ask("POST", "move", headers={"Origin": page.url[:-1]}, json={"do": "send"}))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b'{"do": "explode"}', b'{"do": 1}', b'{"do": "send", "more": 1}', b"\xff", b"[" * 900),
        *(b'{"do": "until", "worker": 1, "step": "dance"}', b'{"do": "go", "worker": "1"}'),
    ],
)
async def test_what_is_no_move_is_refused(page: Page, body: bytes) -> None:
    status, answer = await page.ask("POST", "move", data=body, headers={"Content-Type": "application/json"})
    assert status == 400 and "no move" in answer["error"]


async def test_a_move_that_cannot_be_made_says_why(page: Page) -> None:
    status, answer = await page.move(do="go", worker=1)
    assert status == 409 and "no order is free" in answer["error"]


async def test_bodies_numbers_kinds_and_paths_have_limits(page: Page) -> None:
    assert (await page.move(do="send", id="x" * MOVE_MAX_BYTES))[0] == 413
    assert (await page.ask("GET", "look?after=x"))[0] == 400
    assert (await page.ask("POST", "move", data=b'{"do": "send"}', headers={"Content-Type": "text/plain"}))[0] == 415
    assert (await page.ask("GET", "../secret"))[0] == 404
    assert (await page.ask("GET", "move"))[0] == 405


@pytest.mark.parametrize("path", server.PAGES)
async def test_the_page_comes_from_here_alone_and_may_load_nothing_else(page: Page, path: str) -> None:
    async with page.client.get(page.url + path[1:]) as response:
        text = await response.text()
        assert response.status == 200 and "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["cache-control"] == "no-store"
    assert "http://" not in text and "https://" not in text


async def test_moves_of_several_pages_are_made_in_turn(page: Page) -> None:
    answers = await asyncio.gather(*(page.move(do="send") for _ in range(8)), page.move(do="all"))
    assert [status for status, _ in answers] == [200] * 9
    await page.move(do="all")
    assert (await page.ask("GET", "look"))[1]["view"]["verdict"] | {"is_equal": True, "order_count": 8}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes that are started heed an interrupt, which those of a job in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
async def test_the_command_prints_its_address_and_ends_by_an_interrupt() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outbox", "play", "--no-browser"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        url, _, token = line.strip().partition("#")
        async with aiohttp.ClientSession() as client:
            shown = await Page(client, url, token).move(do="send")
            assert shown[0] == 200
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, errors) == (0, b"")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def test_a_port_in_use_is_refused_with_its_cure(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["play", "--no-browser", "--port", str(port)]) == 1
    assert logging.getLogger("outbox").level == logging.NOTSET, "what comes after in this process logs as before"
    assert f"port {port} cannot be used" in (text := capsys.readouterr().err) and "--port 0 for a free one" in text


@pytest.mark.parametrize(("variables", "expected"), [({}, False), ({"DISPLAY": ":0"}, True)])
def test_a_browser_is_opened_where_there_is_a_display(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert command.has_display() is expected
