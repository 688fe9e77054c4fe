"""Where a folder's host is to be asked: `control.json`, and whether anybody holds the folder at all.

Only the holder of the folder's lock writes or removes the file.  What a killed host left behind is therefore known by
the lock being free, and its token is never sent to whoever has the port by now.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

FILE_NAME = "control.json"
LOCK_NAME = "lock"
SIZE_MAX_BYTES = 4_096


class ControlFile(msgspec.Struct, frozen=True):
    """Port, process and token of a host's control endpoint.

    As soon as they listen also the ports of the emulators (0: there is none), and the token that their fault endpoints
    at `/_outbox/faults` ask for.
    """

    port: int
    pid: int
    token: str
    amqp_port: int = 0
    cosmos_port: int = 0
    faults_token: str = ""

    def __repr__(self) -> str:
        return f"ControlFile(port={self.port}, pid={self.pid})"


def read_control_file(folder: Path) -> ControlFile | None:
    """What the file says, or None where there is none that can be read."""
    try:
        descriptor = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(SIZE_MAX_BYTES)
    try:
        return msgspec.json.decode(data, type=ControlFile)
    except msgspec.DecodeError:
        return None


def write_control_file(folder: Path, content: ControlFile) -> None:
    """Put the file there whole, readable by its owner alone; the caller holds the folder's lock."""
    temporary = folder / (FILE_NAME + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(content))
    temporary.replace(folder / FILE_NAME)


def add_endpoints(folder: Path, amqp_port: int, cosmos_port: int, faults_token: str) -> None:
    """Add where the emulators listen to the file that the host has written; the caller holds the folder's lock."""
    content = read_control_file(folder)
    if content is not None:
        more = {"amqp_port": amqp_port, "cosmos_port": cosmos_port, "faults_token": faults_token}
        write_control_file(folder, msgspec.structs.replace(content, **more))


def remove_control_file(folder: Path) -> None:
    """Take the file away; the caller holds the folder's lock."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def is_held(folder: Path) -> bool:
    """Whether a process holds the folder now.  Looks by a shared lock that is let go at once."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
