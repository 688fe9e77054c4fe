"""Names of containers and blobs, metadata: what may be one, by the rules that Azure documents."""

from __future__ import annotations

import re
from collections.abc import Mapping

from outbox.emulator.blobs.answers import Rejection

NAME_LENGTH_MAX = 1_024
METADATA_MAX_BYTES = 8 << 10
METADATA = "x-ms-meta-"
_CONTAINER = re.compile(r"[a-z0-9](?:-?[a-z0-9])+|\$root|\$web|\$logs")
_METADATA = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_container(name: str) -> None:
    """Let the name of a container pass.

    Raises:
        Rejection: 400.
    """
    if not 3 <= len(name) <= 63:
        raise Rejection("OutOfRangeInput", f"container {name[:80]!r}: a name has 3 to 63 characters")
    if not _CONTAINER.fullmatch(name):
        raise Rejection("InvalidResourceName", f"container {name!r}: small letters, digits and single hyphens")


def check_blob(name: str) -> None:
    """Let the name of a blob pass.

    Raises:
        Rejection: 400.
    """
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise Rejection("OutOfRangeInput", f"a blob's name has 1 to {NAME_LENGTH_MAX} characters")


def read_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The metadata among a request's headers.

    Raises:
        Rejection: 400, a name is no identifier, a value is not ASCII, or all of it is too large.
    """
    found: dict[str, str] = {}
    size_bytes = 0
    for header, value in headers.items():
        if header.lower().startswith(METADATA):
            name = header[len(METADATA) :]
            if not _METADATA.fullmatch(name) or not value.isascii() or not value.isprintable():
                raise Rejection("InvalidMetadata", f"metadata {name[:80]!r}: an identifier, and a value in ASCII")
            size_bytes += len(name) + len(value)
            found[name] = value
    if size_bytes > METADATA_MAX_BYTES:
        raise Rejection("MetadataTooLarge")
    return found
