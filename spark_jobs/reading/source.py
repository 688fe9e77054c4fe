"""An input as the command line names it: path, format, types, and the dialect of its CSV.  Nothing of it is guessed.

A dialect is given or it is RFC 4180's: commas, double quotes that are doubled inside quotes, UTF-8, no line
feed inside a field.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field

from outbox.errors import Refused

FORMATS = ("csv", "json", "parquet")
PACKED = (".bz2", ".xz", ".zst", ".zip", ".lz4", ".snappy", ".deflate", ".7z", ".tar", ".tgz")
SINGLE_BYTES_MIN = 90
"""The least number of characters above ASCII in a single-byte code page; lead bytes of two-byte codes are none."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How CSV is written; `quote` empty: nothing is quoted, `escape` empty: a quote inside quotes is doubled.

    Raises:
        Refused: no grammar can be made of it.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = ""
    encoding: str = "utf-8"
    multiline: bool = False

    def __post_init__(self) -> None:
        signs = {"--separator": self.separator, "--quote": self.quote, "--escape": self.escape}
        for option, sign in signs.items():
            if sign and (len(sign) != 1 or not sign.isascii() or sign in "\r\n"):
                raise Refused(f"{option} {sign!r} is not one ASCII character; a tab is given as {option} $'\\t'")
        given = [sign for sign in signs.values() if sign]
        if not self.separator or len(set(given)) != len(given):
            raise Refused("--separator, --quote and --escape are different characters, and there is a separator")
        if self.escape and not self.quote:
            raise Refused("--escape needs a --quote: outside quotes nothing is escaped")
        check_encoding(self.encoding)

    @property
    def is_utf8(self) -> bool:
        """Whether bytes are taken as they stand."""
        return codecs.lookup(self.encoding).name == "utf-8"


def check_encoding(name: str) -> None:
    """Take UTF-8 and the code pages of single bytes, in which separators and line ends are ASCII.

    Raises:
        Refused: the encoding is unknown, or a row in it cannot be found by its bytes.
    """
    try:
        found = codecs.lookup(name).name
        ascii_only = bytes(range(128)).decode(found) == bytes(range(128)).decode("ascii")
    except (LookupError, UnicodeError):
        raise Refused(f"--encoding {name!r} is not known; utf-8, latin-1 and cp1252 are") from None
    if found in ("utf-8", "ascii"):
        return
    if not ascii_only or sum(map(is_character, range(128, 256), [found] * 128)) < SINGLE_BYTES_MIN:
        raise Refused(f"--encoding {name} has no single bytes; convert the file: iconv -f {name} -t UTF-8")


def is_character(byte: int, encoding: str) -> bool:
    """Whether a byte is a character by itself."""
    try:
        return len(bytes([byte]).decode(encoding)) == 1
    except UnicodeError:
        return False


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one format below a path; `format` empty: by the name's ending, `schema` empty: inferred."""

    path: str
    format: str = ""
    schema: str = ""
    dialect: Dialect = field(default_factory=Dialect)

    @property
    def kind(self) -> str:
        """The format.

        Raises:
            Refused: it is not known.
        """
        name = self.path.rstrip("/").lower().removesuffix(".gz")
        found = self.format or ("json" if name.endswith((".jsonl", ".ndjson")) else name.rpartition(".")[2])
        if found not in FORMATS:
            raise Refused(f"{self.path} tells no format by its name; give --format {' or '.join(FORMATS)}")
        return found
