"""What an application has declared, for those who ask from outside: tests, clients, operators.

Whoever asks for a state that no handler keeps, or for what was sent to a misspelt queue, would get "nothing", and take
that for an answer.  So a name or a type that nothing in the application uses is refused here, with the cure.  What a
backend holds is another matter: whether a queue exists there, the backend says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from outbox.app import App
from outbox.codec import Codec, StateCodec
from outbox.errors import UnknownDestination, UnknownType
from outbox.handlers import Handler
from outbox.http_paths import Place, find
from outbox.lineage import Key, as_key, state_id
from outbox.ports import SUBSCRIPTIONS

NAMES_SHOWN_MAX = 12


def kept_states(app: App) -> dict[type[Any], StateCodec]:
    """The state types that handlers and HTTP entries keep."""
    return {codec.codec.type: codec for codec in app.states().values()}


def named_states(app: App) -> dict[type[Any], StateCodec]:
    """Those, and what `@app.state` names without a handler here, as an application does that only looks."""
    return kept_states(app) | app.named_states()


def known_state(app: App, kind: type[Any], known: Mapping[type[Any], StateCodec]) -> StateCodec:
    """The codec of a state type.

    Raises:
        UnknownType: it is not among those that are known.
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
    """The message types that handlers take or that `@app.message` names; others may be sent without any of it."""
    return app.named_messages().union(*(handler.binding.messages for handler in every_handler(app)))


def check_sent(app: App, kinds: Iterable[type[Any]]) -> None:
    """Refuse message types of which none was seen.

    Raises:
        UnknownType: there is one.
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
    """See that a message which is sent to a destination that has handlers here is for one of them.

    Raises:
        UnknownDestination: the destination was never declared.
        UnknownType: it has handlers, and none takes a message of this type, so it would be dead-lettered.
    """
    codecs = taken(app, app.destination(destination))
    if codecs and type(message) not in {codec.type for codec in codecs.values()}:
        raise UnknownType(
            f"no handler of {destination!r} takes a {type(message).__name__}; its handlers take "
            f"{shown(codec.type.__name__ for codec in codecs.values())}.  Send one of these, or register a handler; "
            "what a foreign sender would send goes by send_raw"
        )


def check_source(app: App, path: str) -> None:
    """See that messages can be refused there: a declared queue, or a subscription that a handler reads.

    Raises:
        UnknownDestination: it is neither.
    """
    if path in app.queues or any(handler.source == path for handler in app.handlers):
        return
    if path in app.topics:
        paths = [f"{path}{SUBSCRIPTIONS}{name}" for name in app.topics[path]]
        raise UnknownDestination(f"{path!r} is a topic; dead letters lie with its subscriptions: {shown(paths)}")
    app.destination(path)
    raise UnknownDestination(f"{path!r} was never declared; check the spelling")


def check_served(app: App, method: str, path: str) -> None:
    """See that an HTTP entry answers a request.

    Raises:
        UnknownDestination: none does, by this method.
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
    if isinstance(key, UUID):
        return "uuid"
    return "int" if isinstance(key, int) else "text"


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", repr(kind))
