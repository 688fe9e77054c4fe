"""The access key of a data folder, which clients of `outbox run` need for Service Bus and Cosmos DB.

Any process on this machine, of any user and in any container that shares the network, reaches a port of loopback; the
key goes only to users with read access to the folder.  It is made once and survives restarts and `kill -9`, because
clients keep the connection string.  The caller holds the folder's lock, so that two hosts never make two keys.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from pathlib import Path

from outbox.engine.log.disk import sync_folder
from outbox.errors import Refused

FILE_NAME = "access.key"
KEY_SIZE_BYTES = 48  # base64 of a multiple of three bytes has no padding
FILE_SIZE_MAX_BYTES = 1_024


def new_key() -> str:
    """A fresh random key, in base64 as clients of Cosmos DB need it."""
    return base64.b64encode(secrets.token_bytes(KEY_SIZE_BYTES)).decode()


def access_key(folder: Path, *, replace: bool = False) -> str:
    """The folder's key; made where there is none yet, or to `replace` the old one.

    Raises:
        Refused: the file is not a key, or other users can read it.
    """
    found = None if replace else _read(folder / FILE_NAME)
    if found is not None:
        return found
    key = new_key()
    _write(folder, key)
    return key


def _read(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe has no writer
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror}); fix that, or start with --new-key") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        mode = stat.S_IMODE(found.st_mode)
        data = file.read(FILE_SIZE_MAX_BYTES).strip()
    if found.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
        raise Refused(f"{path} belongs to another user, who knows the key; replace it with --new-key")
    if mode & 0o077:
        raise Refused(
            f"{path} can be read by others (mode {mode:04o}); replace the key with --new-key, "
            f"or if no other user has read it: chmod 600 {path}"
        )
    try:
        size_bytes = len(base64.b64decode(data, validate=True))
    except binascii.Error:
        size_bytes = 0
    if size_bytes != KEY_SIZE_BYTES:
        raise Refused(f"{path} does not hold a key; start with --new-key, and give clients the new connection string")
    return data.decode()


def _write(folder: Path, key: str) -> None:
    """Write the file whole and durably: after a power loss clients still use the key."""
    temporary = folder / f"{FILE_NAME}.tmp"
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.encode() + b"\n")
        file.flush()
        os.fsync(descriptor)
    temporary.replace(folder / FILE_NAME)
    sync_folder(folder)
