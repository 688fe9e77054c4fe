"""The control file of a folder's host, `control.json`, and the check whether a host holds the folder.

Only the holder of the folder's lock writes or removes the file.  So a file beside a free lock is a killed host's, and
its token is never sent to the process that has the port by now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from outbox.engine.log import disk
from outbox.errors import Refused
from outbox.ops.shared.names import word

FILE_NAME = "control.json"
LOCK_NAME = "lock"
WANTED_NAME = "wanted"
"""The file that a host locks while it waits for a command to close the log."""
SIZE_MAX_BYTES = 4_096


class ControlFile(msgspec.Struct, frozen=True):
    """Port, process and token of a host's control endpoint.

    Once they listen, also the ports of the emulators (0: none) and the token of their fault endpoints at
    `/_outbox/faults`.
    """

    port: int
    pid: int
    token: str
    amqp_port: int = 0
    cosmos_port: int = 0
    faults_token: str = ""
    blob_port: int = 0

    def __repr__(self) -> str:
        return f"ControlFile(port={self.port}, pid={self.pid})"

    @property
    def where(self) -> str:
        """Process and address for an error, without the token."""
        return f"process {self.pid}, 127.0.0.1:{self.port}"


def read_control_file(folder: Path) -> ControlFile | None:
    """The control file, or None without a readable one."""
    try:
        descriptor = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(SIZE_MAX_BYTES)
    try:
        return msgspec.json.decode(data, type=ControlFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_control_file(folder: Path, content: ControlFile) -> None:
    """Write the file whole, readable by its owner alone; the caller holds the folder's lock."""
    temporary = folder / (FILE_NAME + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(content))
    temporary.replace(folder / FILE_NAME)


def add_endpoints(folder: Path, ports: Mapping[str, int], faults_token: str) -> None:
    """Add the emulators' ports, by their fields, to the host's file; the caller holds the folder's lock."""
    content = read_control_file(folder)
    if content is not None:
        write_control_file(folder, msgspec.structs.replace(content, **ports, faults_token=faults_token))


def remove_control_file(folder: Path) -> None:
    """Remove the file; the caller holds the folder's lock."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Return whether a process has this number; after a kill it may be another process."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def is_held(folder: Path) -> bool:
    """Whether a process holds the folder now, by a try of a shared lock."""
    return _is_locked(folder / LOCK_NAME)


def want(folder: Path) -> int | None:
    """Say that a host waits for the folder, until the descriptor is closed; None: another one says so."""
    try:
        return disk.hold(folder / WANTED_NAME, os.O_CREAT | os.O_RDWR)
    except BlockingIOError:
        return None


def is_wanted(folder: Path) -> bool:
    """Whether a host waits for the folder."""
    return _is_locked(folder / WANTED_NAME)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return disk.is_held(descriptor)
    finally:
        os.close(descriptor)


_OWN_FILE = re.compile(r"[0-9a-f]{16}\.(log|snapshot)|lock").fullmatch


def check_folder(folder: Path) -> None:
    """Check that a folder is an engine's, so that a mistyped name creates none.

    Raises:
        Refused: it is not an engine's folder.
    """
    run = f"`outbox run APP --data {word(str(folder))}`"
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder}: is a file, and the engine's log is a folder; --data names that folder")
    if not folder.is_dir():
        raise Refused(f"{folder}: there is no such folder; {run} makes it")
    if not any(_OWN_FILE(file.name) for file in folder.iterdir()):
        raise Refused(
            f"{folder}: holds no log; check --data, or start `outbox run APP --data {word(str(folder))}` on it"
        )
