"""The shooting range under Functions hosts of their own, by the real SDKs: faults, duplicates, kill -9, the README."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from outbox.emulator.faults import FaultRule, Kind, drawn
from shooting_range.handlers import FireAt, Score
from shooting_range.sheet import is_bullseye
from tests.functions.conftest import Host, Hosts

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "shooting_range"
IDLE_WITHIN_S = 120.0
PLAYERS, TARGETS = ("ann", "bob", "cleo"), ("left", "right")
pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


class Site(Hosts):
    """The range, and hosts of it that are processes."""

    app = FOLDER
    inherits = False
    queues = ("attempts", "results")

    def __init__(self, range_: Any) -> None:
        super().__init__(range_.folder, range_.engine, range_.environment)
        self.range = range_


@pytest.fixture
async def site(range_: Any) -> AsyncIterator[Site]:
    site = Site(range_)
    yield site
    await site.close()


def shots(count: int, seed: int) -> list[FireAt]:
    chance = random.Random(seed)
    return [
        FireAt(f"a{n}", "g", TARGETS[n % 2], chance.choice(PLAYERS), chance.randint(-80, 80), chance.randint(-80, 80))
        for n in range(count)
    ]


async def check(site: Site, fired: list[FireAt]) -> None:
    """Every attempt is on one sheet and one line of the board, once; every full sheet is one blob, told once."""
    holes: Counter[str] = Counter()
    full = site.range.full_sheets().values()
    for sheet in full:
        drawn_sheet = await site.range.backend.blobs.read(sheet.blob, bytes_max=1 << 20)
        holes.update(re.findall(r'class="hole".*?<title>(.*?)</title>', drawn_sheet.decode()))
    for name in TARGETS:
        target = await site.range.target(f"g/{name}")
        mine = [shot for shot in fired if shot.target == name]
        assert target.attempts == len(mine) and target.hits == sum(is_bullseye(shot.x, shot.y) for shot in mine)
        assert [one.number for one in full if one.target == name] == list(range(1, target.sheet))
        holes.update(hole.attempt for hole in target.holes)
    assert holes == Counter(shot.attempt for shot in fired)
    wanted = {
        player: Score(len(mine), sum(is_bullseye(shot.x, shot.y) for shot in mine))
        for player in PLAYERS
        if (mine := [shot for shot in fired if shot.player == player])
    }
    assert (await site.range.board()).scores == wanted


async def test_every_attempt_counts_once_with_faults_on_everything_and_a_duplicate_of_each(site: Site) -> None:
    await site.host()
    await site.host()
    store, bus = site.range.cosmos.faults, site.range.bus.faults
    kinds: tuple[Kind, ...] = ("lost-reply", "throttled", "status", "reset")
    for seed, operation in enumerate(("item.create", "item.replace", "item.read", "item.delete")):
        for rule in drawn(seed, kinds, operation=operation, within=60, status=503, retry_after_s=0.05):
            store.install(rule)
    for rule in drawn(9, ["duplicate", "lock-expiry", "lost-disposition", "reorder"], within=30):
        bus.install(rule)
    store.install(FaultRule(kind="stale-read", operation="item.read", count=30, probability=0.3))
    bus.install(FaultRule(kind="lost-reply", operation="send", where="results", after=7))
    fired = shots(44, seed=1)
    for shot in [*fired, *fired]:
        await site.range.client.send("attempts", shot, id=shot.attempt)
    await site.wait_idle(within_s=IDLE_WITHIN_S)
    await check(site, fired)
    assert len(site.range.full_sheets()) == 4
    assert sum(store.fired.values()) >= 12 and sum(bus.fired.values()) >= 4, (store.fired, bus.fired)


@pytest.mark.soak  # of every run are the sample app's (tests/functions) and the README's commands below
async def test_a_host_is_killed_and_requests_are_sent_again_to_the_other(site: Site) -> None:
    first, second = await site.host(), await site.host()
    fired = shots(24, seed=2)

    async def fire(host: Host, shot: FireAt) -> tuple[int, Any]:
        body = {"attempt": shot.attempt, "target": shot.target, "player": shot.player, "x": shot.x, "y": shot.y}
        return await host.ask("POST", "/games/g/attempts", body, key=shot.attempt)

    async def attempt_count() -> int:
        return sum([(await site.range.target(f"g/{name}")).attempts for name in TARGETS])

    async def has_begun() -> bool:
        return await attempt_count() >= 8

    answers = [await fire(first, shot) for shot in fired[:6]]
    for shot in fired[6:18]:
        await site.range.client.send("attempts", shot, id=shot.attempt)
    await site.wait_until(has_begun, within_s=IDLE_WITHIN_S)
    await first.kill()
    for shot, told in zip(fired[:6], answers, strict=True):
        assert await fire(second, shot) == told  # the same answer from a host that never saw the request
    for shot in fired[18:]:
        assert (await fire(second, shot))[0] == 200

    async def is_swept() -> bool:  # what the killed host had committed and not sent
        await second.tick("sweep")
        board = await site.range.board()
        return site.in_flight() == 0 and sum(score.attempts for score in board.scores.values()) == len(fired)

    await site.wait_until(is_swept, within_s=IDLE_WITHIN_S)
    await check(site, fired)
    shown = (await second.ask("GET", "/games/g"))[1]["places"]
    assert {place["player"]: (place["attempts"], place["hits"]) for place in shown} == {
        player: (score.attempts, score.hits) for player, score in (await site.range.board()).scores.items()
    }


class Shell:
    """A terminal in a folder, where `outbox` and `python` are those that run this test."""

    def __init__(self, folder: Path, bin: Path) -> None:
        self.folder = folder
        bin.mkdir()
        for name, command in (("outbox", f"{sys.executable} -m outbox"), ("python", sys.executable)):
            (bin / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (bin / name).chmod(0o755)
        self.environment = {"PATH": f"{bin}:/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(folder)}
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, command: str) -> str:
        options: dict[str, Any] = {"cwd": self.folder, "env": self.environment}
        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, **options)
        assert done.returncode == 0, (command, done.stderr.decode())
        told: str = done.stdout.decode()
        return told

    def start(self, commands: list[str], *, ready: str) -> None:
        """Run all but the last, and leave that one running when it has said that it is ready."""
        for command in commands[:-1]:
            self.run(command)
        options: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(["bash", "-c", f"exec {commands[-1]}"], stdout=subprocess.PIPE, **options)
        self.started.append(process)
        assert process.stdout is not None
        assert ready in process.stdout.readline().decode()

    def stop(self) -> None:
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


def blocks(page: Path) -> dict[str, list[str]]:
    """The shell blocks of a page by the heading above them."""
    found = re.findall(r"^### (.+?)\n.*?```sh\n(.*?)```", page.read_text(), re.DOTALL | re.MULTILINE)
    return {heading: block.strip().splitlines() for heading, block in found}


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_of_the_readme_do_what_it_says(tmp_path: Path) -> None:
    tree, ports = tmp_path / "tree", free_ports(3)
    tree.mkdir()
    for name in ("outbox", "tools"):
        (tree / name).symlink_to(ROOT / name)
    folder = tree / "examples" / "shooting_range"
    shutil.copytree(FOLDER, folder)
    for name in ("README.md", "local.settings.json.example"):  # several tests run at once: ports of their own
        text = (folder / name).read_text()
        for usual, port in zip(("5672", "8081", "7071"), ports, strict=True):
            text = text.replace(usual, str(port))
        (folder / name).write_text(text)
    run = blocks(folder / "README.md")
    shell = Shell(tree, tmp_path / "bin")
    try:
        shell.start(run["One terminal: Cosmos DB and Service Bus"], ready="Endpoint=sb://")
        shell.start(run["Another: the Functions host"], ready=f"http://127.0.0.1:{ports[2]}")
        *fire, board, files = run["A third: fire"]
        answers = [shell.run(command) for command in fire]
        assert answers[0] == answers[1] and '"hole":1' in answers[0]
        assert answers[-1].count("is_hit") == 9
        ann, bob = '{"player":"ann","attempts":10,"hits":5}', '{"player":"bob","attempts":1,"hits":1}'
        wanted = f'{{"game":"friday","places":[{ann},{bob}]}}'
        deadline_s = time.monotonic() + 30
        while (told := shell.run(board).strip()) != wanted:
            assert time.monotonic() < deadline_s, told
            time.sleep(0.2)
        assert shell.run(files).count('class="hole"') in (10, 20), "one who came too late for the tenth leaves a file"
        target = json.loads(shell.run(board.replace("/friday", "/friday/targets/left")))
        sheet = shell.run(files.replace("*", f"{sha256(target['last_full'].encode()).hexdigest()}.blob"))
        assert sheet.count('class="hole"') == 10
    finally:
        shell.stop()
