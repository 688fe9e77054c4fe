"""Bind a handler's parameters by its annotations, when it is registered.

The first parameter is the message (a union means several types), one annotated `Context` is the context, one more at
most is the state.  An unfit function is refused here, with the cure, rather than at its first message.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from outbox.context import Context
from outbox.errors import NotRegistrable
from outbox.generators import yields

Call = Callable[[Any, Any, Any], Any]
"""A handler called with (message, state, context), whatever order it declared."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A handler's function and its parameters."""

    messages: tuple[type[Any], ...]
    state: type[Any] | None
    wants_context: bool
    is_async: bool
    call: Call
    writes_blobs: bool = False
    """Whether its own code calls `ctx.write_blob`; functions that it calls are not searched."""
    returns: Any = None
    """The annotated return type; None: nothing, or no annotation."""
    text: str = ""
    """Its docstring."""


def bind(function: Callable[..., Any], local_names: Mapping[str, Any]) -> Binding:
    """Read a handler's annotations.

    Raises:
        NotRegistrable: a parameter has no usable annotation or there are too many.
    """
    name = getattr(function, "__name__", repr(function))
    if yields(function):
        raise NotRegistrable(f"{name} has a yield, so calling it would run nothing; send with ctx.send and return")
    hints = _hints(function, name, local_names)
    roles: list[str] = []
    messages: tuple[type[Any], ...] = ()
    state: type[Any] | None = None
    for position, parameter in enumerate(_parameters(function, name)):
        hint = hints.get(parameter)
        if hint is None:
            raise NotRegistrable(f"{name}: parameter {parameter!r} needs an annotation, so that it can be bound")
        if position == 0:
            parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
            messages = tuple(_one_type(name, "message", part) for part in parts)
            roles.append("message")
        elif hint is Context:
            if "context" in roles:
                raise NotRegistrable(f"{name}: two parameters are annotated Context; keep one")
            roles.append("context")
        elif "state" in roles:
            raise NotRegistrable(f"{name}: {parameter!r} would be a second state; a handler has one at most")
        else:
            state = _one_type(name, parameter, hint)
            roles.append("state")
    call = _caller(function, tuple(roles))
    wants_context = "context" in roles
    writes_blobs = wants_context and _names(function, "write_blob")
    is_async, text = inspect.iscoroutinefunction(function), inspect.getdoc(function) or ""
    return Binding(messages, state, wants_context, is_async, call, writes_blobs, hints.get("return"), text)


def _names(function: Callable[..., Any], name: str) -> bool:
    """Whether a function's code, or that of a function in it, uses an attribute of this name."""
    found = inspect.unwrap(function)
    code = getattr(getattr(found, "__func__", found), "__code__", None)
    waiting = [code] if isinstance(code, types.CodeType) else []
    while waiting:
        code = waiting.pop()
        if name in code.co_names:
            return True
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return False


_KINDS: Mapping[object, str] = {str: "text", int: "int", UUID: "uuid"}


def name_of_key(key: str | Callable[[Any], Any]) -> str:
    """The default name of a key: its field, or its function."""
    return key if isinstance(key, str) else f"{getattr(key, '__name__', type(key).__name__)}()"


def key_kind(messages: tuple[type[Any], ...], key: str | Callable[[Any], Any] | None) -> str:
    """The type of a key by its annotations: `text`, `int` or `uuid` (empty: unknown); `1` and `"1"` differ."""
    if key is None:
        return ""
    found = {_declared(kind, key) for kind in messages}
    return found.pop() if len(found) == 1 else ""


def _declared(kind: type[Any], key: str | Callable[[Any], Any]) -> str:
    hint = _unwrapped(_hint_of_key(kind, key))
    return _KINDS.get(hint, "") if isinstance(hint, type) else ""


def check_key(name: str, messages: tuple[type[Any], ...], key: str | Callable[[Any], Any]) -> None:
    """Check by annotations that a key can be a key; other keys are checked message by message.

    Raises:
        NotRegistrable: no message would have a key.
    """
    for kind in messages:
        hint = _hint_of_key(kind, key)
        is_method = isinstance(key, str) and inspect.isfunction(inspect.getattr_static(kind, key, None))
        if not is_method and (hint is None or _may_be_key(hint, of_pydantic=hasattr(kind, "model_fields"))):
            continue
        shown = "a method" if is_method else f"of type {hint if typing.get_origin(hint) else _name_of(hint)}"
        what = f"{kind.__name__}.{key}" if isinstance(key, str) else f"what {name_of_key(key)} returns"
        raise NotRegistrable(
            f"{name}: {what} is {shown} and cannot be a key, which is a str, an int or a UUID; take another field, or "
            "give a function of the message that returns one of these, as in key=lambda message: str(...)"
        )


def _hint_of_key(kind: type[Any], key: str | Callable[[Any], Any]) -> Any:
    """The annotation of a key's field, property or function; None if unknown."""
    owner, name = (kind, key) if isinstance(key, str) else (key, "return")
    found = inspect.getattr_static(kind, key, None) if isinstance(key, str) else None
    getter = found.fget if isinstance(found, property) else getattr(found, "func", None)  # of a cached_property
    if getter is not None:
        owner, name = getter, "return"
    try:
        return typing.get_type_hints(owner).get(name)
    except Exception:  # an annotation may be any expression
        return None


def _unwrapped(hint: Any) -> Any:
    """A type without its aliases and qualifiers."""
    while True:
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":  # typing has it from Python 3.12 on
            hint = hint.__value__
        elif typing.get_origin(hint) in (typing.Annotated, typing.Final):
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _may_be_key(hint: Any, *, of_pydantic: bool) -> bool:
    """Whether a value of a type may be a key; pydantic may convert one of another type."""
    hint = _unwrapped(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        parts = typing.get_args(hint)
        return any(part is not type(None) and _may_be_key(part, of_pydantic=of_pydantic) for part in parts)
    if origin is typing.Literal:
        return any(isinstance(each, str | int) and not isinstance(each, bool) for each in typing.get_args(hint))
    if hint is Any or not isinstance(hint, type) or origin is not None:
        return origin is None  # Any or a type variable may be one; a generic is a container
    if issubclass(hint, (str, int, UUID)):
        return hint is not bool
    return hint is object or (of_pydantic and not issubclass(hint, _NO_KEYS) and not dataclasses.is_dataclass(hint))


_NO_KEYS = (
    *(float, complex, bytes, bytearray, list, dict, tuple, set, frozenset, type(None)),
    *(Decimal, date, time, timedelta, Enum),
)


def _name_of(hint: Any) -> str:
    return getattr(hint, "__name__", repr(hint))


def _hints(function: Callable[..., Any], name: str, local_names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(local_names))
    except Exception as error:  # an annotation is any expression
        raise NotRegistrable(
            f"{name}: an annotation cannot be resolved ({error}); import the type at module level"
        ) from error


def _parameters(function: Callable[..., Any], name: str) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in parameters:
        if parameter.kind not in plain:
            raise NotRegistrable(f"{name}: {parameter.name!r} must be an ordinary positional parameter")
    if not 1 <= len(parameters) <= 3:
        raise NotRegistrable(
            f"{name} takes {len(parameters)} parameters; a handler takes the message, then state and context"
        )
    return [parameter.name for parameter in parameters]


def _one_type(name: str, parameter: str, hint: Any) -> type[Any]:
    if not isinstance(hint, type) or hint in (str, bytes, int, float, bool, dict, list, type(None)):
        raise NotRegistrable(
            f"{name}: {parameter!r} is annotated {hint!r}; use a dataclass, a msgspec.Struct or a pydantic model"
        )
    return hint


def _caller(function: Callable[..., Any], roles: tuple[str, ...]) -> Call:
    match roles:
        case ("message", "state", "context"):
            return function
        case ("message", "context", "state"):
            return lambda message, state, context: function(message, context, state)
        case ("message", "state"):
            return lambda message, state, context: function(message, state)
        case ("message", "context"):
            return lambda message, state, context: function(message, context)
        case _:
            return lambda message, state, context: function(message)
