"""Read a lock: which version of what, on which Python, and the hashes of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"
_HASH = re.compile(r"\s--hash=(sha256:[0-9a-f]{64})(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Pin:
    """One line of the lock."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> Version:
        """The one version; an error where the line allows several."""
        found = re.fullmatch(r"==([^,*]+)", str(self.requirement.specifier))
        assert found is not None, f"{self.requirement} is not one version"
        return Version(found[1])


def pins(lock: Path = LOCK) -> Iterator[Pin]:
    """All lines, in order."""
    text = re.sub(r"^\s*#.*\n", "", lock.read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        yield Pin(Requirement(_HASH.sub("", line)), tuple(_HASH.findall(line)))


def reasons() -> dict[str, set[str]]:
    """Who asked for each package, as the comments tell."""
    found: dict[str, set[str]] = {}
    for block in re.split(r"^(?=\w)", LOCK.read_text(), flags=re.MULTILINE)[1:]:
        asking = re.findall(r"^ +# +(?:via +)?(?!via$)(\S.*)$", block, re.MULTILINE)
        found.setdefault(canonicalize_name(block.partition("==")[0]), set()).update(asking)
    return found


def environment_of(python: str) -> dict[str, str]:
    """What the markers of a package without extras see on Linux with that Python."""
    here = {name: str(value) for name, value in default_environment().items()}
    return here | {"python_version": python, "python_full_version": f"{python}.1", "extra": ""}


def chosen(python: str, lock: Path = LOCK) -> dict[str, Version]:
    """What is installed there, by canonical name.

    Raises:
        AssertionError: two versions of one package apply.
    """
    found: dict[str, Version] = {}
    for pin in pins(lock):
        marker = pin.requirement.marker
        if marker is None or marker.evaluate(environment_of(python)):
            assert pin.name not in found, f"{pin.name} has two versions on Python {python}"
            found[pin.name] = pin.version
    return found


def constraints() -> str:
    """The lock without its hashes, which pip takes in no file of constraints."""
    return "".join(f"{pin.requirement}\n" for pin in pins())
