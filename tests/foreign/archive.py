"""The source distribution of an SDK: fetched from the package index, compared with its digest, and unpacked.

The index is asked by its simple API, as JSON or as a page of links, whichever it has.  What is unpacked are regular
files below one folder, with limits on their number and size; nothing of it is run here.
Source: packaging.python.org/specifications/simple-repository-api.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import urllib.error
import urllib.request
from html import unescape
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urldefrag, urljoin, urlsplit

INDEX = "https://pypi.org/simple"
WAIT_S = 60.0
PAGE_MAX_BYTES = 8 << 20
ARCHIVE_MAX_BYTES = 32 << 20
FILE_COUNT_MAX = 5_000
FILE_MAX_BYTES = 4 << 20
UNPACKED_MAX_BYTES = 128 << 20
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_LINK = re.compile(r'<a\s[^>]*?href="([^"]+)"')


class ArchiveRefused(Exception):
    """There is no archive that may be used; the text says why and what to do."""


class Link(NamedTuple):
    """Where an archive is, and its SHA-256 as hexadecimal digits."""

    url: str
    sha256: str


def unpacked(package: str, version: str, folder: Path, index: str = INDEX, saved: Path | None = None) -> Path:
    """The folder of that package's sources below `folder`, fetched unless it was before; `saved` is an archive at hand.

    The digest is the index's in either case, unless the archive at hand was unpacked with it before.

    Raises:
        ArchiveRefused: the index cannot be asked, has no such archive, or another than its digest says.
    """
    archive = folder / f"{package.replace('-', '_')}-{version}.tar.gz"
    digest = archive.with_name(archive.name + ".sha256")
    folder.mkdir(parents=True, exist_ok=True)
    if saved is not None:
        shutil.copyfile(saved, archive)
    if not archive.exists() or not digest.exists():
        link = link_to(package, version, index)
        if not archive.exists():
            archive.write_bytes(_fetched(link.url, ARCHIVE_MAX_BYTES)[0])
        digest.write_text(link.sha256 + "\n")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest.read_text().strip():
        archive.unlink()
        digest.unlink()
        raise ArchiveRefused(f"{archive.name} has the SHA-256 {found}, not the index's; run this again")
    return _extracted(archive, folder)


def link_to(package: str, version: str, index: str) -> Link:
    """The index's link to the source distribution of a version.

    Raises:
        ArchiveRefused: there is none, or it has no digest.
    """
    data, kind, base = _fetched(f"{index.rstrip('/')}/{package}/", PAGE_MAX_BYTES)
    names = {f"{name}-{version}.tar.gz" for name in (package, package.replace("-", "_"))}
    for link in _links(data, kind, base):
        if PurePosixPath(urlsplit(link.url).path).name in names:
            if not re.fullmatch(r"[0-9a-f]{64}", link.sha256):
                raise ArchiveRefused(f"{link.url} has no SHA-256 in the index; use another index (--index URL)")
            return link
    raise ArchiveRefused(f"{index} has no source distribution of {package} {version}; use another (--index URL)")


def _links(data: bytes, kind: str, base: str) -> list[Link]:
    if "json" in kind:
        try:
            files = json.loads(data)["files"]
            return [Link(urljoin(base, str(one["url"])), str(one["hashes"].get("sha256", ""))) for one in files]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveRefused(f"{base} answered with JSON that is no list of files: {error!r}") from error
    found = []
    for text in _LINK.findall(data.decode("utf-8", "replace")):
        url, fragment = urldefrag(urljoin(base, unescape(text)))
        found.append(Link(url, fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""))
    return found


def _fetched(url: str, size_max_bytes: int) -> tuple[bytes, str, str]:
    """What is at a URL, its media type, and the URL that it came from in the end."""
    if urlsplit(url).scheme != "https":
        raise ArchiveRefused(f"{url} is not https")
    try:
        request = urllib.request.Request(url, headers={"Accept": _ACCEPT})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            data = answer.read(size_max_bytes + 1)
            kind, base = str(answer.headers.get("Content-Type", "")), str(answer.geturl())
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ArchiveRefused(f"{url} cannot be read: {error}; name an index that can with --index URL") from error
    if len(data) > size_max_bytes:
        raise ArchiveRefused(f"{url} is over {size_max_bytes} bytes")
    return data, kind, base


def _extracted(archive: Path, folder: Path) -> Path:
    """Unpack the archive's one folder; what was there goes first, so that it holds this archive and nothing else.

    Raises:
        ArchiveRefused: it is no such archive, or over a limit.
    """
    top = folder / archive.name.removesuffix(".tar.gz")
    shutil.rmtree(top, ignore_errors=True)
    count = size_bytes = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                count, size_bytes = count + 1, size_bytes + member.size
                if count > FILE_COUNT_MAX or member.size > FILE_MAX_BYTES or size_bytes > UNPACKED_MAX_BYTES:
                    raise ArchiveRefused(f"{archive.name} is over a limit at {member.name[:80]!r}")
                parts = PurePosixPath(member.name).parts
                if parts[:1] != (top.name,) or ".." in parts:
                    raise ArchiveRefused(f"{archive.name} holds {member.name[:80]!r}, outside {top.name}")
                if member.isreg() and (content := tar.extractfile(member)) is not None:
                    target = folder.joinpath(*parts)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with content, target.open("wb") as file:
                        shutil.copyfileobj(content, file)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ArchiveRefused(f"{archive.name} cannot be unpacked: {error}") from error
    return top
