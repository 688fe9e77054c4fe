"""What host and worker say to each other, as plain objects.

Azure's runtime for Python 3.13 takes the module of its protobuf classes as an argument, so these stand in for it: they
hold what they are given, and `TypedData` and `ParameterBinding` tell which of their fields is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


class Fields:
    """An object of whatever it is made with."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.__dict__)})"


class OneOf(Fields):
    """An object of which one field is set."""

    def WhichOneof(self, group: str) -> str | None:  # noqa: N802  # protobuf's name
        """The field that is set."""
        return next((name for name in self.__dict__ if name != "name"), None)


class TypedData(OneOf):
    """A value and its kind: string, bytes, json, int, double or http."""

    @property
    def kind(self) -> str | None:
        """Which it is; None for nothing."""
        return self.WhichOneof("data")

    @property
    def value(self) -> Any:
        """The value."""
        return None if self.kind is None else self.__dict__[self.kind]


class ParameterBinding(OneOf):
    """A named value: `data` is set."""


class StatusResult(Fields):
    """How a request ended."""

    Failure, Success, Cancelled = 0, 1, 2


_DIRECTIONS = {"in": 0, "out": 1, "inout": 2}  # `in` is a keyword
_DATA_TYPES = {"undefined": 0, "string": 1, "binary": 2, "stream": 3}
BindingInfo = type("BindingInfo", (Fields,), {**_DIRECTIONS, **_DATA_TYPES})


class RpcHttpCookie(Fields):
    """A cookie; what it is made of nobody here reads."""

    SameSite = SimpleNamespace(Lax=1, Strict=2, ExplicitNone=3, **{"None": 0})


def protos() -> SimpleNamespace:
    """The module of protobuf classes, as far as the runtime uses it."""
    plain = (
        *("FunctionLoadResponse", "FunctionMetadataResponse", "InvocationResponse", "NullableBool", "NullableDouble"),
        *("NullableString", "NullableTimestamp", "RpcException", "RpcFunctionMetadata", "RpcHttp", "RpcRetryOptions"),
        *("WorkerInitResponse", "WorkerMetadata", "FunctionEnvironmentReloadResponse"),
    )
    classes: dict[str, Any] = {name: type(name, (Fields,), {}) for name in plain}
    own = {kind.__name__: kind for kind in (TypedData, ParameterBinding, StatusResult, BindingInfo, RpcHttpCookie)}
    return SimpleNamespace(**classes, **own)


def http(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    params: Mapping[str, str],
    query: Mapping[str, str],
) -> TypedData:
    """A request as a trigger is given it; as production has it, the body comes as bytes."""
    fields = Fields(
        method=method,
        url=url,
        headers=dict(headers),
        body=TypedData(bytes=body),
        params=dict(params),
        query=dict(query),
    )
    return TypedData(http=fields)
