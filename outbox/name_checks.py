"""Check names and types against an application's declarations, for tests, clients and operators.

A read of an undeclared state, or of a misspelt queue, would return nothing, which looks like an answer.  So names and
types that nothing in the application uses are refused here, with the cure.  Whether a queue exists in a backend is the
backend's matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from outbox.app import App
from outbox.codec import Codec, StateCodec
from outbox.errors import UnknownDestination, UnknownType
from outbox.lineage import Key, as_key, state_id
from outbox.ports import SUBSCRIPTIONS
from outbox.registration.handlers import Handler
from outbox.registration.routes import Place, find

NAMES_SHOWN_MAX = 12


def kept_states(app: App) -> dict[type[Any], StateCodec]:
    """The state types of handlers and HTTP entries."""
    return {codec.codec.type: codec for codec in app.states().values()}


def named_states(app: App) -> dict[type[Any], StateCodec]:
    """The same, and states named by `@app.state` without a handler, as in an application that only reads."""
    return kept_states(app) | app.named_states()


def known_state(app: App, kind: type[Any], known: Mapping[type[Any], StateCodec]) -> StateCodec:
    """The codec of a state type.

    Raises:
        UnknownType: it is not known.
    """
    codec = known.get(kind)
    if codec is None:
        raise UnknownType(
            f"{app.name} has no state {_name(kind)}, so there is none to find; its states are "
            f"{shown(each.__name__ for each in known)}: use one of them, or name this one with @app.state"
        )
    return codec


def known_state_id(app: App, kind: type[Any], key: Key, known: Mapping[type[Any], StateCodec]) -> str:
    """The id of a state by its type and key.

    Raises:
        UnknownType: no such state is known.
        TypeError: every handler of the state has keys of another kind; `1` and `"1"` are two keys.
    """
    codec, asked = known_state(app, kind, known), as_key(key)
    kinds = {handler.key_kind for handler in every_handler(app) if handler.state is codec}
    if kinds and "" not in kinds and _kind_of(asked) not in kinds:
        raise TypeError(
            f"key {key!r} is {_KINDS[_kind_of(asked)]}, and every handler of {_name(kind)} takes a key that is "
            f"{' or '.join(sorted(_KINDS[each] for each in kinds))}, so it is another key; give it as that"
        )
    return state_id(codec.name, asked)


def known_messages(app: App) -> set[type[Any]]:
    """The message types of handlers and of `@app.message`; other types may be sent too."""
    return app.named_messages().union(*(handler.binding.messages for handler in every_handler(app)))


def check_sent(app: App, kinds: Iterable[type[Any]]) -> None:
    """Refuse message types without a message.

    Raises:
        UnknownType: there is such a type.
    """
    for kind in kinds:
        raise UnknownType(
            f"no handler of {app.name} takes a {_name(kind)}, and none was sent, so none was ever in flight; its "
            f"messages are {shown(map(_name, known_messages(app)))}: use one of them, or name it with @app.message"
        )


def every_handler(app: App) -> list[Handler]:
    """The handlers of messages and of HTTP entries."""
    return [*app.handlers, *(route.handler for route in app.routes)]


def readers(app: App, destination: str) -> list[Handler]:
    """The handlers of a queue, of a subscription, or of all subscriptions of a topic."""
    below = destination + SUBSCRIPTIONS
    return [each for each in app.handlers if each.source == destination or each.source.startswith(below)]


def taken(app: App, destination: str) -> dict[str, Codec]:
    """The message types that the handlers of a destination take, by their wire names."""
    kinds = [kind for handler in readers(app, destination) for kind in handler.binding.messages]
    return {codec.name: codec for codec in map(app.codec, kinds)}


def check_taken(app: App, destination: str, message: Any) -> None:
    """Check that a destination with handlers here has one for this message.

    Raises:
        UnknownDestination: the destination was never declared.
        UnknownType: its handlers take other types, so the message would be dead-lettered.
    """
    codecs = taken(app, app.destination(destination))
    if codecs and type(message) not in {codec.type for codec in codecs.values()}:
        raise UnknownType(
            f"no handler of {destination!r} takes a {type(message).__name__}; its handlers take "
            f"{shown(codec.type.__name__ for codec in codecs.values())}.  Send one of these, or register a handler; "
            "use send_raw for a foreign sender's message"
        )


def check_source(app: App, path: str) -> None:
    """Check that a path can have dead letters: a declared queue, or a subscription with a handler.

    Raises:
        UnknownDestination: it can not.
    """
    if path in app.queues or any(handler.source == path for handler in app.handlers):
        return
    if path in app.topics:
        paths = [f"{path}{SUBSCRIPTIONS}{name}" for name in app.topics[path]]
        raise UnknownDestination(f"{path!r} is a topic; dead letters lie with its subscriptions: {shown(paths)}")
    app.destination(path)
    raise UnknownDestination(f"{path!r} was never declared; check the spelling")


def check_served(app: App, method: str, path: str) -> None:
    """Check that an HTTP entry serves a method and path.

    Raises:
        UnknownDestination: none does.
    """
    places = [Place(route.method, route.template, route) for route in app.routes]
    if find(places, method.upper(), path.partition("?")[0]).target is None:
        served = (f"{route.method} {route.template.text}" for route in app.routes)
        raise UnknownDestination(f"{app.name} serves nothing at {method.upper()} {path}; it serves {shown(served)}")


def shown(names: Iterable[str]) -> str:
    """The first of some names in order, and how many more there are."""
    found = sorted(set(names))
    more = f" and {len(found) - NAMES_SHOWN_MAX} more" if len(found) > NAMES_SHOWN_MAX else ""
    return (", ".join(found[:NAMES_SHOWN_MAX]) or "none yet") + more


_KINDS = {"text": "a text", "int": "an integer", "uuid": "a UUID"}


def _kind_of(key: Key) -> str:
    return "uuid" if isinstance(key, UUID) else "int" if isinstance(key, int) else "text"


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", repr(kind))
