"""Examine a folder or an application on Azure for faults, present or coming, each with its cure.

It changes nothing.  An error keeps messages from being handled or sent; a warning will do so later, or needs a
decision.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import UnsetType

from outbox.errors import OutboxError
from outbox.ops.shared.control_file import read_control_file
from outbox.ops.shared.names import word
from outbox.ops.shared.text import age
from outbox.ops.values.messages import ListPending, PendingView
from outbox.ops.values.requests import Admin
from outbox.ops.values.status import Finding, Level, ReadSigns, ReadStatus, Signs, Status
from outbox.ops.values.streams import PipelineView, ReadPipelines

OLDEST_S_MAX = 300.0
UNATTENDED_S = 60.0
"""For how long messages may wait without a worker before anybody is warned; behind OLDEST_S_MAX it is an error."""
NEWER_S_MAX = 600.0
"""How long a process is reported after it put back a newer build's message; retries come within a minute."""
AHEAD_S_MAX = 86_400.0
PENDING_S_MAX = 600.0
"""How long outputs may stay pending before it is an error; a sweeper has then tried some ten times."""
FREE_BYTES_MIN, FREE_BYTES_LOW = 100 << 20, 1 << 30
PYTHON_MIN, PYTHON_MAX = (3, 11), (3, 13)
SDK_MIN = {"azure-servicebus": (7, 15), "azure-cosmos": (4, 17)}
"""The versions that the `azure` extra requires; with an older Service Bus SDK a failed settlement looks successful."""
PRIVATE_FILES = ("access.key", "control.json")


async def examine(admin: Admin, folder: Path | None) -> list[Finding]:
    """All findings, errors first; `folder` is where an engine's log is."""
    found = [*versions(needs_azure=folder is None)]
    if folder is not None:
        found += [*of_folder(folder)]
    try:
        hosted = folder is None or read_control_file(folder) is not None  # a killed host's is gone by now
        status = await admin.ask(ReadStatus())
        found += [*of_status(status, hosted=hosted)]
    except OutboxError as error:
        status = Status({}, 0)
        found.append(Finding("warning", "counts", str(error), "give the identity the right, or look queue by queue"))
    try:
        found += [*of_signs(await admin.ask(ReadSigns()), status)]
    except OutboxError as error:
        cure = "see why it does not answer; a host of an older build is asked by its own `outbox doctor`"
        found.append(Finding("warning", "signs", str(error), cure))
    with suppress(
        OutboxError
    ):  # a store that cannot list its partitions; another fault is named by what is asked beside
        found += [*of_pipelines(await admin.ask(ReadPipelines()), time.time())]
    try:
        found += [*of_pending(await admin.ask(ListPending()), time.time())]
    except OutboxError as error:
        found.append(Finding("error", "store", str(error), "nothing can be committed either while it is so"))
    return sorted(found, key=lambda finding: ("error", "warning", "ok").index(finding.level))


def versions(*, needs_azure: bool) -> Iterator[Finding]:
    """Report versions of Python and the SDKs that are too old or untested."""
    python = sys.version_info[:2]
    if not PYTHON_MIN <= python <= PYTHON_MAX:
        what = f"this is Python {python[0]}.{python[1]}, and 3.11 to 3.13 are what is tested"
        yield Finding("warning", "Python", what, "use one of those")
    for name, least in SDK_MIN.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            if needs_azure:
                yield Finding("error", name, "is not installed", "pip install outbox-azure[azure]")
            continue
        if tuple(int(part) for part in found.split(".")[:2] if part.isdigit()) < least:
            wanted = ".".join(map(str, least))
            yield Finding("error", name, f"is {found}, and {wanted} is needed", f"pip install '{name}>={wanted}'")


def of_folder(folder: Path) -> Iterator[Finding]:
    """Report a folder's disk that is nearly full, and key files that others may read."""
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES_LOW:
        level: Level = "error" if free < FREE_BYTES_MIN else "warning"
        cure = "free some, or move the folder; an engine stops where its disk is full, and loses nothing"
        yield Finding(level, "disk", f"{free >> 20} MB are free on the disk of {folder}", cure)
    for name in PRIVATE_FILES:
        file = folder / name
        if file.exists() and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            yield Finding("error", name, "others than its owner may read it", f"`chmod 600 {word(str(file))}`")
        elif file.exists() and file.stat().st_uid != os.getuid():
            yield Finding("warning", name, "another user owns it", "run as that user")


def of_status(status: Status, *, hosted: bool) -> Iterator[Finding]:
    """Report problems that show in the counts of queues."""
    waiting = sum(queue.active for queue in status.queues.values())
    if not hosted and waiting:
        what = f"no host runs, and {counted(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}"
        yield Finding("error", "host", what, "`outbox run APP --data FOLDER`")
    for name, queue in status.queues.items():
        if queue.standing:
            keys = f"{counted(queue.standing, 'key')} of it {'is' if queue.standing == 1 else 'are'}"
            cure = (
                f"`outbox blocked list {word(name)}` names it, `outbox queue peek {word(name)} --state blocked` what "
                f"waits; `outbox blocked unblock --by resubmit {word(name)} KEY` once its cause is mended, or --by "
                "discard"
            )
            yield Finding("error", name, f"{keys} blocked by a dead letter", cure)
        if queue.paused:
            waits = counted(queue.active, "message")
            cure = f"`outbox queue resume {word(name)}`, if nobody holds it back on purpose"
            yield Finding("warning", name, f"is paused, and {waits} in it", cure)
        if queue.unhandled and queue.active:
            what = f"no handler of this host takes from it, and {counted(queue.active, 'message')} in it"
            yield Finding("warning", name, what, "start the receiver that does, or an application with its handler")
        if queue.dead_letters:
            cure = f"`outbox dead-letters list {word(name)} --group`"
            yield Finding("warning", name, counted(queue.dead_letters, "dead letter"), cure)
        if queue.oldest_s is not None and queue.oldest_s > OLDEST_S_MAX:
            yield _waited(name, queue.oldest_s)
        if not isinstance(queue.handled, UnsetType) and not isinstance(queue.handled.newer_s, UnsetType):
            yield from _newer(name, "this host", queue.handled.newer_s)
    if status.ahead_s:
        what = f"the log is ahead of the wall clock by {age(status.ahead_s)}: what a right clock stamps may be too old"
        level: Level = "error" if status.ahead_s > AHEAD_S_MAX else "warning"
        yield Finding(level, "clock", what, "mend the clock; if it is right, see 'Clock ahead' in docs/operate")
    for guard in status.guards:
        if guard.kind == "breaker" and guard.state != "closed":
            what = f"the breaker is {guard.state}, {age(guard.rest_s)} more: {guard.why}"
            yield Finding("warning", guard.name, what, "mend what its handlers call; it tries again by itself")
    if status.streams is not None:
        rows = [(each.name, each.error) for each in status.streams.logs]
        for name, error in rows + [(each.name, each.error) for each in status.streams.processors]:
            if error:
                yield Finding("error", name, error, "`outbox stream list`")
        for processor in status.streams.processors:
            if processor.failures:
                what = f"its handler has failed {counted(processor.failures, 'time')} on the next entries"
                cure = "the log of its process says why; mend it, or skip the entry by on_error"
                yield Finding("error", processor.name, what, cure)
    yield Finding("ok", "queues", f"{counted(len(status.queues), 'queue')}, {counted(waiting, 'message')} in them")


def _waited(name: str, waited_s: float) -> Finding:
    what = f"its oldest message has waited for {age(waited_s)}"
    return Finding("warning", name, what, f"`outbox queue peek {word(name)}`")


def _newer(name: str, who: str, ago_s: float) -> Iterator[Finding]:
    """Report a host or worker that puts messages back for a newer build."""
    if ago_s <= NEWER_S_MAX:
        what = (
            f"{who} puts messages back, the last {age(ago_s)} ago: a newer build wrote their schema, or their state's"
        )
        yield Finding("warning", name, what, "deploy the newer build there too; it takes them as they are")


def of_signs(signs: Signs, status: Status) -> Iterator[Finding]:
    """Report problems that show in signs of life, waiting times, blocked keys and large states."""
    for name, waited_s in signs.oldest.items():
        if waited_s > OLDEST_S_MAX:
            yield _waited(name, waited_s)
    waiting = {name.casefold(): waited_s for name, waited_s in signs.oldest.items()}
    paused = {name.casefold() for name, queue in status.queues.items() if queue.paused}
    for name in signs.unattended:
        waited_s = waiting.get(name.casefold(), 0.0)
        if name.casefold() in paused or waited_s <= UNATTENDED_S:
            continue
        level: Level = "error" if waited_s > OLDEST_S_MAX else "warning"
        what = f"no worker that takes from it has given a sign of life, and its messages wait for {age(waited_s)}"
        yield Finding(level, name, what, "start one, or see why its host does not; builds before signs give none")
    if signs.blocked:
        is_ = "is" if signs.blocked == 1 else "are"
        what = f"{counted(signs.blocked, 'key')} {is_} blocked by a dead letter"
        cure = "`outbox blocked list` names them; each goes on by what is done with its dead letter"
        yield Finding("error", "keys", what, cure)
    for worker in signs.workers:
        for name, ago_s in worker.newer.items():
            yield from _newer(name, f"{worker.app} on {worker.process}", ago_s)
    for state in signs.large:
        what = f"the state takes {state.size_bytes >> 10} kB, which every message of its key reads and writes"
        cure = "see 'What must not grow in a state' in docs/how-to/write-a-handler.md"
        yield Finding("warning", state.id, what, cure)


def of_pipelines(found: list[PipelineView], now_s: float) -> Iterator[Finding]:
    """Report pipelines with entries that no checkpoint covers for long: nobody runs them, or they stand still."""
    for view in found:
        if view.error:
            yield Finding("error", f"pipeline {view.name}", view.error, "`outbox pipeline audit`")
        if view.figures is None or not view.figures.since_ms:
            continue
        waited_s = now_s - view.figures.since_ms / 1_000
        if waited_s > UNATTENDED_S:
            level: Level = "error" if waited_s > OLDEST_S_MAX else "warning"
            what = f"entries of its source wait for a checkpoint: {view.figures.behind}, the oldest for {age(waited_s)}"
            cure = f"`outbox pipeline status {word(view.name)}`; run it, or see in its log why it stands still"
            yield Finding(level, f"pipeline {view.name}", what, cure)


def counted(count: int, what: str) -> str:
    """A number of things: one of them, or more."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def of_pending(found: list[PendingView], now_s: float) -> Iterator[Finding]:
    """Report transactions whose outputs have not left for long, and foreign documents among them."""
    old = [view for view in found if view.outputs and now_s - view.committed > PENDING_S_MAX]
    if old:
        oldest = min(old, key=lambda view: view.committed)
        what = f"{counted(len(old), 'transaction')} whose outputs have not left for {age(now_s - oldest.committed)}"
        yield Finding("error", "pending", what, f"`outbox pending finish {oldest.tx or '--all'}`")
    foreign = sum("not of this framework" in view.why for view in found)
    if foreign:
        what = f"{counted(foreign, 'document')} with a member `pending`, not of this framework"
        yield Finding("warning", "container", what, "`outbox pending list` shows them; another program writes here")
