"""The place of a job's lasting files: write-once, below a folder, or below a prefix of a container.

    data/transfers.feed                                    a folder of this machine, or one that all executors see
    abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX  a container of a storage account; asked at its blob endpoint
    https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX the same
    az://CONTAINER/PREFIX                                  in the account that the environment names

`create` is the one conditional write: a file appears whole or not at all, and of several writers of a name exactly one
is told that it won.  Everything that a job may be killed in rests on that.  Spark opens none of these addresses: tasks
read and write through a place that the driver has lent them.  Who asks: `spark_jobs.common.containers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, Self

from spark_jobs.common.folder import Folder
from spark_jobs.common.items import Item

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

SCHEMES = ("abfss", "abfs", "az", "https", "http")

__all__ = ["Folder", "Item", "Place", "check_reached", "is_address", "joined", "place_of"]


class Place(Protocol):
    """Write-once files below a name; it may be sent to executors once it was lent.  `str` is the address as given."""

    @property
    def uri(self) -> str:
        """The address that delta-rs opens, with `storage_options`."""
        ...

    def storage_options(self) -> dict[str, str]:
        """The options of delta-rs besides the address: account, key or token; tokens are new ones."""
        ...

    def lend(self) -> Self:
        """The same place for executors: with tokens and nothing to get others with.

        Raises:
            GaveUpError: no token can be had.
        """
        ...

    def now_s(self) -> float:
        """Seconds since 1970 by the clock that `Item.changed_s` is of."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False where somebody else wrote it first.

        Raises:
            Refused: nothing was written; the text names the cure.
            OutcomeUnknown: nobody answered for too long; the same again finds out.
        """
        ...

    def read(self, name: str, start: int = 0, size: int | None = None, version: str = "") -> bytes | None:
        """A file's bytes from a place on, fewer where it ends; None where there is no file.

        Raises:
            Refused: it has another version than the one that is asked for, or it may not be read.
        """
        ...

    def list(self, prefix: str = "", suffix: str = "") -> Iterator[Item]:
        """The files below whose names begin and end so, in order, page by page; none where nothing is there.

        Raises:
            Refused: there is no such container, or it may not be read.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is fine.

        Raises:
            Refused: nothing was removed; the text names the cure.
        """
        ...

    def sweep_parts(self, age_s: float) -> int:
        """Remove what killed writers left unfinished, once it is so old; gives the count."""
        ...

    def parted(self) -> tuple[Self, str]:
        """The place that holds this one, and its name there; no name where it is a whole container."""
        ...

    def __truediv__(self, name: str) -> Self:
        """The place below."""
        ...


def place_of(text: str, environ: Mapping[str, str], credential: TokenCredential | None = None) -> Place:
    """The place that an address or a path names; nothing is asked yet.

    `credential` signs in where the environment has no key of the account.

    Raises:
        Refused: the address or the environment does not tell enough.
    """
    if not is_address(text):
        return Folder(text)
    from spark_jobs.common.containers import container_place  # the SDK takes half a second to import

    return container_place(text, environ, credential)


def check_reached(*places: Place) -> None:
    """Look whether places can be listed, before anything is started that writes there.

    Raises:
        Refused: one cannot; the text names the cure.
    """
    for place in places:
        next(place.list(".nothing"), None)


def is_address(text: str) -> bool:
    """Whether a text is an address and no path."""
    return "://" in text and not text.startswith("file:")


def joined(text: str, more: str) -> str:
    """An address or a path that goes on, as in `in/transfers.csv` and `.feed`."""
    return text.rstrip("/") + more


_conforms: type[Place] = Folder
