"""The host under the demo: started, watched, killed with SIGKILL at chosen moments, started again."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from outbox.errors import OutboxError, Refused
from outbox.ops.admins.remote import RemoteAdmin
from outbox.ops.shared.control_file import read_control_file
from outbox.ops.values.dead_letters import ListDeadLetters
from outbox.ops.values.messages import NewMessage, Send
from outbox.ops.values.states import Export
from outbox.ops.values.status import Handling, ReadStatus, Status

START_WITHIN_S = 60.0
STOP_WITHIN_S = 60.0
LOOK_EVERY_S = 0.2
ASK_WITHIN_S = 20.0


@dataclass(slots=True)
class Host:
    """One host process at a time on one folder."""

    folder: Path
    port: int
    log_path: Path
    history: Path
    """Where it records what its workers do, one life after the other."""
    connection: str = ""
    recoveries_s: list[float] = field(default_factory=list)
    handling: Handling | None = None
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> float:
        """Start the process and wait for its connection string; the seconds that took."""
        started_s = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "outbox",
                "run",
                "function_app.bank:app",
                *("--data", str(self.folder), "--amqp-port", str(self.port), "--workers", "2"),
                *("--history", str(self.history)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), START_WITHIN_S)
        if not line.startswith(b"Endpoint="):
            raise RuntimeError(f"the host did not start; see {self.log_path}")
        self.connection = line.decode().strip()
        self.port = int(self.connection.split(";")[0].rsplit(":", 1)[1])
        seconds = time.monotonic() - started_s
        await self.wait(lambda status: True, lambda status: None, START_WITHIN_S)
        return seconds

    async def kill(self) -> None:
        """Kill it without warning and start it again."""
        assert self._process is not None
        killed_s = time.monotonic()
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        died_s = time.monotonic() - killed_s
        self.recoveries_s.append(died_s + await self.start())

    async def stop(self) -> None:
        """Let it drain and end."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)

    # Asking it

    def _admin(self) -> RemoteAdmin:
        """The running process; a command would open the log itself while it is down, and be in its way.

        Raises:
            Refused: it is down or not ready yet.
        """
        found = read_control_file(self.folder)
        if found is None or self._process is None or found.pid != self._process.pid:
            raise Refused("the host is not ready; ask again")
        return RemoteAdmin(found, self.folder)

    async def status(self) -> Status | None:
        """What its queues hold; None while it does not answer."""
        try:
            async with asyncio.timeout(ASK_WITHIN_S):
                status = await self._admin().ask(ReadStatus())
        except (OutboxError, OSError, TimeoutError):
            return None
        if status.handling is not None and status.handling.p50_ms is not None:
            self.handling = status.handling
        return status

    async def asked(self) -> Status:
        """What its queues hold, as soon as it answers."""
        return await self.wait(lambda status: True, lambda status: None, START_WITHIN_S)

    async def send(self, queue: str, messages: list[NewMessage]) -> None:
        """Send a batch from outside."""
        await self._admin().ask(Send(queue, messages))

    async def export(self) -> bytes:
        """All states as JSON lines."""
        return b"".join([page async for page in self._admin().stream(Export())])

    async def dead_letter_ids(self, queue: str) -> list[tuple[str, str]]:
        """Id and reason of every dead letter of a queue."""
        found: list[tuple[str, str]] = []
        after = 0
        while dead_letters := await self._admin().ask(ListDeadLetters(queue, after=after)):
            found += [(dead_letter.id, dead_letter.reason) for dead_letter in dead_letters]
            after = dead_letters[-1].sequence
        return found

    async def wait(self, reached: Callable[[Status], bool], look: Callable[[Status], None], timeout_s: float) -> Status:
        """Look at its status until it is as wished, and give that.

        Raises:
            TimeoutError: it was not in time.
            RuntimeError: it ended by itself.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                status = await self.status()
                if status is not None:
                    look(status)
                    if reached(status):
                        return status
                elif self._process is not None and self._process.returncode is not None:
                    raise RuntimeError(f"the host ended with {self._process.returncode}; see {self.log_path}")
                await asyncio.sleep(LOOK_EVERY_S)
