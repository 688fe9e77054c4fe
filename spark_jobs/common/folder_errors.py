"""The errors of the file system as a place sees them: a refusal with its cure, in one line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from outbox.errors import OutcomeUnknown, Refused

CURES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room in this user's quota",
    errno.EACCES: "give this user the rights to it and to the folders above it",
    errno.EPERM: "give this user the rights to it",
    errno.EROFS: "it is mounted for reading only: mount it for writing, or give another folder",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


@contextmanager
def refusing(what: str, place: object, *, is_there: bool = False) -> Iterator[None]:
    """Raise what a caller can show; `is_there`: the file has its name already.

    Raises:
        Refused: nothing was done.
        OutcomeUnknown: the file is there, and a power loss may take it.
    """
    try:
        yield
    except OSError as error:
        cure = CURES.get(error.errno or 0, "mend that")
        told = f"{what} {place}: {error.strerror or error}; {cure} and run the same again"
        raise (OutcomeUnknown if is_there else Refused)(told) from error
