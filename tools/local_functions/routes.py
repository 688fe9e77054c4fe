"""HTTP to functions: routes as their triggers name them, below the prefix of host.json."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from tools.local_functions import wire
from tools.local_functions.wire import TypedData
from tools.local_functions.workers import Function, Result

_PARAMETER = re.compile(r"\{(\*?)(\w+)(?::[^}?]+)?(\??)\}")
BODY_MAX_BYTES = 100 << 20
Run = Callable[[Function, TypedData], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Route:
    """One HTTP function."""

    function: Function
    pattern: re.Pattern[str]
    methods: frozenset[str]
    """Empty: all of them."""


class Routes:
    """All of them, as one aiohttp handler."""

    def __init__(self, functions: list[Function], prefix: str, run: Run) -> None:
        self._routes = [_route(one, prefix) for one in functions if one.trigger["type"] == "httpTrigger"]
        self._run = run

    @property
    def functions(self) -> list[Function]:
        """The functions that are reached over HTTP."""
        return [route.function for route in self._routes]

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request."""
        body = await request.read()
        url, query = str(request.url), dict(request.query)
        headers = {name.lower(): value for name, value in request.headers.items()}
        return await self.answer(request.method, request.path, headers, body, url=url, query=query)

    async def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, url: str, query: Mapping[str, str]
    ) -> web.Response:
        """Find the function of a request and run it."""
        found = [(route, match) for route in self._routes if (match := route.pattern.fullmatch(path))]
        if not found:
            return web.Response(status=404, text=f"no function has the route {path}\n")
        for route, match in found:
            if not route.methods or method in route.methods:
                params = {name: value for name, value in match.groupdict().items() if value is not None}
                result = await self._run(
                    route.function, wire.http(method, url, headers, body, params=params, query=query)
                )
                return _response(result)
        allowed = ", ".join(sorted({name for route, _ in found for name in route.methods}))
        return web.Response(status=405, headers={"Allow": allowed}, text=f"use {allowed}\n")


def _route(function: Function, prefix: str) -> Route:
    trigger = function.trigger
    route = trigger.get("route")
    own = function.name if route is None else str(route)
    path = "/".join(part for part in (prefix.strip("/"), own.strip("/")) if part)
    pattern, end = "/", 0
    for match in _PARAMETER.finditer(path):
        pattern += re.escape(path[end : match.start()])
        star, name, optional = match.groups()
        pattern += f"(?P<{name}>{'.*' if star else '[^/]+'}){'?' if optional else ''}"
        end = match.end()
    methods = frozenset(str(method).upper() for method in trigger.get("methods", []))
    return Route(function, re.compile(pattern + re.escape(path[end:]) + "/?"), methods)


def _response(result: Result) -> web.Response:
    if not result.ok:
        return web.Response(status=500)  # as on Azure: nothing of the error leaves
    value = result.value
    if value is None:
        return web.Response(status=204)
    if value.kind != "http":
        return web.Response(text=str(value.value))
    answer = value.value
    headers = {name: text for name, text in answer.headers.items() if name.lower() != "content-length"}
    return web.Response(status=int(answer.status_code), headers=headers, body=answer.body.value)
