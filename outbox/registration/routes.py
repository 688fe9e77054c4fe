"""The paths of HTTP entries: templates such as `/transfers/{id}`, and the match of a request.

A parameter stands for one whole segment.  If a path fits several templates, the one with more literal segments from the
left wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from outbox.errors import NotRegistrable

PATH_LENGTH_MAX = 2_048
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
READS = frozenset(("GET", "HEAD"))

_LITERAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@")


@dataclass(frozen=True, slots=True)
class Template:
    """A path with parameters; of each segment its text, or the parameter's name."""

    text: str
    literals: tuple[str | None, ...]
    """The literal segments, None for a parameter."""
    names: tuple[str, ...]
    """The parameters, in order."""

    @property
    def rank(self) -> tuple[bool, ...]:
        """Lower with more literal segments from the left; equal for templates that fit the same paths."""
        return tuple(literal is None for literal in self.literals)

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """The parameters of a path that fits, else None."""
        if len(segments) != len(self.literals):
            return None
        found: list[str] = []
        for segment, literal in zip(segments, self.literals, strict=True):
            if literal is None and segment:
                found.append(segment)
            elif literal != segment:
                return None
        return dict(zip(self.names, found, strict=True))


def parse_template(text: str) -> Template:
    """Parse a template.

    Raises:
        NotRegistrable: it is invalid.
    """
    if not text.startswith("/") or len(text) > PATH_LENGTH_MAX:
        raise NotRegistrable(f"path {text[:80]!r}: begin with a slash, as in '/transfers/{{id}}'")
    literals: list[str | None] = []
    names: list[str] = []
    for segment in text[1:].split("/"):
        if segment.startswith("{") and segment.endswith("}"):
            name = segment[1:-1]
            if not name.isidentifier() or name in names:
                raise NotRegistrable(f"path {text!r}: {segment} must name one of the message's fields, and once only")
            names.append(name)
            literals.append(None)
        elif _LITERAL.issuperset(segment):
            literals.append(segment)
        else:
            raise NotRegistrable(f"path {text!r}: {segment!r} is neither plain text nor one {{parameter}}")
    return Template(text, tuple(literals), tuple(names))


def split_path(path: str) -> list[str] | None:
    """The decoded segments of a request's path; None if no template could fit it."""
    if not path.startswith("/") or len(path) > PATH_LENGTH_MAX:
        return None
    try:
        return [unquote_to_bytes(segment).decode() for segment in path[1:].split("/")]
    except UnicodeError:
        return None


Target = TypeVar("Target")


@dataclass(frozen=True, slots=True)
class Place(Generic[Target]):
    """The target of one template and method."""

    method: str
    template: Template
    target: Target


@dataclass(frozen=True, slots=True)
class FoundRoute(Generic[Target]):
    """The match of a request: the target and the path's parameters, or the methods allowed at its path."""

    target: Target | None
    parameters: dict[str, str]
    allowed: tuple[str, ...] = ()


def find(places: Iterable[Place[Target]], method: str, path: str) -> FoundRoute[Target]:
    """Match a request; HEAD is matched as GET."""
    segments = split_path(path)
    if segments is None:
        return FoundRoute(None, {})
    fitting = [(place, parameters) for place in places if (parameters := place.template.match(segments)) is not None]
    wanted = "GET" if method == "HEAD" else method
    meant = [(place, parameters) for place, parameters in fitting if place.method == wanted]
    if meant:
        place, parameters = min(meant, key=lambda each: each[0].template.rank)
        return FoundRoute(place.target, parameters)
    methods = {place.method for place, _ in fitting}
    return FoundRoute(None, {}, tuple(sorted(methods | ({"HEAD"} if "GET" in methods else set()))))
