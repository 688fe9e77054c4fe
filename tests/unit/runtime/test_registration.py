"""What an application may declare; what does not fit is refused when it is declared, with the cure."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from outbox import App, Context, UnknownDestination
from outbox.errors import NotRegistrable
from outbox.guards import Breaker, Rate
from outbox.registration.binding import key_kind
from outbox.registration.routes import PATH_LENGTH_MAX, split_path
from outbox.runtime.start.plan import compile_app
from outbox.testing import Harness
from tests.unit.messages import Count, deliver


@dataclass
class Ping:
    id: str
    n: int = 0


@dataclass
class Pong:
    id: str
    n: int = 0


@dataclass
class Numbered:
    id: int


class Tick(msgspec.Struct):
    id: str


@dataclass
class Needy:
    n: int


@dataclass
class Unwritable:
    id: str
    what: Callable[[], None]


def refused(register: Callable[[App], Any], match: str) -> None:
    with pytest.raises(NotRegistrable, match=match):
        register(App("a"))


def on(app: App, function: Callable[..., Any], source: str = "q", **options: Any) -> object:
    return app.handler(source, **options)(function)


def handling(kind: type[Any]) -> Callable[..., None]:
    """A handler of a message type."""

    def handle(message: Any) -> None: ...

    handle.__annotations__["message"] = kind
    return handle


def no_annotation(ping) -> None: ...  # type: ignore[no-untyped-def]  # that is the point
def no_parameters() -> None: ...
def four(ping: Ping, a: Count, b: Context, c: Count) -> None: ...
def two_states(ping: Ping, a: Count, b: Tick) -> None: ...
def two_contexts(ping: Ping, a: Context, b: Context) -> None: ...
def keyword_only(ping: Ping, *, count: Count) -> None: ...
def many(*pings: Ping) -> None: ...
def plain_text(ping: str) -> None: ...
def optional(ping: Ping | None) -> None: ...
def maybe_state(ping: Ping, count: Count | None) -> None: ...
def needy(ping: Ping, count: Needy) -> None: ...
def unwritable(message: Unwritable) -> None: ...
def unresolved(ping: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # that is the point
def counted(ping: Ping, count: Count) -> None: ...
def plain(ping: Ping) -> None: ...
def yields(ping: Ping) -> Iterator[int]:
    yield 1


async def yields_later(ping: Ping) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "options", "cure"),
    [
        (no_annotation, {}, "needs an annotation"),
        (no_parameters, {}, "a handler takes the message"),
        (four, {"key": "id"}, "a handler takes the message, then state and context"),
        (two_states, {"key": "id"}, "a handler has one at most"),
        (two_contexts, {}, "keep one"),
        (keyword_only, {"key": "id"}, "ordinary positional"),
        (many, {}, "ordinary positional"),
        (plain_text, {}, "use a dataclass"),
        (optional, {}, "use a dataclass"),
        (maybe_state, {"key": "id"}, "use a dataclass"),
        (needy, {"key": "id"}, "give every field a default"),
        (unwritable, {}, "JSON cannot hold"),
        (unresolved, {}, "import the type at module level"),
        (counted, {}, "pass key="),
        (counted, {"key": "nothing"}, "has no field 'nothing'"),
        (counted, {"key": ""}, "has no field ''"),
        (counted, {"key": 7}, "give a field's name or a function"),
        (plain, {"on_dead_letter": "stop"}, "'continue' or 'stop_key'"),
        (yields, {}, "ctx.send and return"),
        (yields_later, {}, "ctx.send and return"),
        (functools.partial(plain), {}, "pass name="),
    ],
)
def test_a_handler_that_does_not_fit_is_refused_with_the_cure(
    function: Callable[..., Any], options: dict[str, Any], cure: str
) -> None:
    refused(lambda app: on(app, function, **options), cure)


@pytest.mark.parametrize(
    ("declare", "cure"),
    [
        (lambda app: app.queue("q", "sorted"), "'unordered' or 'per_key'"),
        (lambda app: app.queue("q", identity="sequence_number"), "'required' or 'sequence-number'"),
        (lambda app: app.queue(""), "1 to 260"),
        (lambda app: app.queue("a b"), "1 to 260"),
        (lambda app: app.queue("q/$DeadLetterQueue"), "1 to 260"),
        (lambda app: app.queue("t/Subscriptions/s"), "is a subscription, declared by its handlers"),
        (lambda app: app.queue("q" * 261), "1 to 260"),
        (lambda app: (app.queue("q"), app.topic("q")), "is a queue"),
        (lambda app: (app.topic("t"), app.queue("t")), "is a topic"),
        (lambda app: (app.topic("t"), on(app, plain, "t")), "name the subscription"),
        (lambda app: (app.queue("q"), app.queue("Q")), "differs from 'q' in case only"),
        (lambda app: (app.queue("Q"), on(app, plain)), "differs from 'Q' in case only"),
        (lambda app: (app.queue("q"), app.topic("Q")), "differs from 'q' in case only"),
        (lambda app: on(app, plain, "t", subscription=""), "1 to 260"),
        (lambda app: on(app, plain, "t", subscription="a/b"), "must not hold"),
        (lambda app: (app.queue("q", "per_key"), app.queue("q")), "declare it once"),
        (lambda app: (app.queue("q", identity="sequence-number"), app.queue("q", "per_key")), "declare it once"),
        (lambda app: (on(app, plain), on(app, plain)), "pass name="),
        (lambda app: app.state("s", version=0)(Count), "count from 1"),
        (lambda app: app.state("s", version=2, upcasts={2: dict})(Count), "one below 2"),
        (lambda app: app.state("")(Count), "not empty"),
        (lambda app: app.message("")(Ping), "not empty"),
        (lambda app: (app.state("s")(Count), app.state("s")(Ping)), "share their keys"),
        (lambda app: (on(app, counted, key="id"), app.state("c")(Count)), "before its first handler"),
        (lambda app: (on(app, plain), app.message("ping")(Ping)), "before its first handler"),
        (lambda app: app.message("x")(int), "make it one"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused_with_the_cure(declare: Callable[[App], Any], cure: str) -> None:
    refused(declare, cure)


def test_a_limit_itself_is_taken() -> None:
    app = App("a")
    most_s = app.margin.total_seconds() / 2
    app.handler("q" * 260, time_limit_s=most_s, rate=Rate(5), breaker=Breaker("bank"))(ponging)
    (handler,) = app.handlers
    assert (handler.source, handler.time_limit_s) == ("q" * 260, most_s)
    assert [type(guard) for guard in handler.guards] == [Rate, Breaker], "what the breaker counts has a place"
    assert split_path("/" + "a" * (PATH_LENGTH_MAX - 1)) and split_path("/" + "a" * PATH_LENGTH_MAX) is None


def ponging(ping: Ping, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": "a", "margin": timedelta(minutes=1)}, "raise it"),
        ({"name": "a", "retention": timedelta(0)}, "raise it"),
        ({"name": "a", "claim_check_bytes": 0}, "largest body"),
    ],
)
def test_limits_that_cannot_hold_are_refused(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(NotRegistrable, match=cure):
        App(**options)


def test_two_types_of_one_name_on_one_queue_are_refused() -> None:
    app = App("a")
    app.message("x")(Ping)
    app.message("x")(Pong)
    on(app, plain)

    @app.handler("q")
    def other(pong: Pong) -> None: ...

    with pytest.raises(NotRegistrable, match=r"name one with @app\.message"):
        compile_app(app)


def test_a_key_cannot_be_stopped_where_there_is_no_order() -> None:
    app = App("a")
    on(app, counted, key="id", on_dead_letter="stop_key")
    with pytest.raises(NotRegistrable, match=r'declare app.queue\(.*, "per_key"\)'):
        Harness(app)
    read = App("b")
    on(read, counted, key="id", subscription="s", on_dead_letter="stop_key")
    with pytest.raises(NotRegistrable, match="a subscription has none: send the message on to a queue that is per_key"):
        Harness(read)


def test_a_handler_is_still_the_function_that_was_decorated() -> None:
    assert App("a").handler("q")(plain) is plain


async def test_parameters_bind_by_annotation_in_any_order() -> None:
    app = App("a")
    seen: list[tuple[Any, ...]] = []

    @app.handler("one", key="id")
    def context_first(ping: Ping, ctx: Context, count: Count) -> None:
        seen.append((ping.id, ctx.key, count))

    @app.handler("two", key="id")
    async def state_first(ping: Ping, count: Count, ctx: Context) -> None:
        seen.append((ping.id, ctx.key, count))

    @app.handler("three")
    def alone(ping: Ping) -> None:
        seen.append((ping.id, None, None))

    @app.handler("four")
    async def with_context(ping: Ping, ctx: Context) -> None:
        seen.append((ping.id, ctx.key, None))

    async with Harness(app) as world:
        for queue in ("one", "two", "three", "four"):
            await deliver(world, queue, Ping(queue))
    assert seen == [("one", "one", Count()), ("two", "two", Count()), ("three", None, None), ("four", None, None)]


async def test_types_declared_inside_a_function_bind() -> None:
    app = App("a")

    @dataclass
    class Local:
        id: str

    @app.handler("q", key="id")
    def handle(local: Local, count: Count) -> None:
        count.n += 1

    async with Harness(app) as world:
        await deliver(world, "q", Local("x"))
        assert await world.state(Count, "x") == Count(1)


async def test_an_async_handler_behind_a_plain_wrapper_runs_to_its_end() -> None:
    app = App("a")

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    @app.handler("q", key="id")
    @logged
    async def handle(ping: Ping, count: Count) -> None:
        count.n += 1

    async with Harness(app) as world:
        await deliver(world, "q", Ping("x"))
        assert await world.state(Count, "x") == Count(1)


def test_a_queue_may_be_declared_behind_its_handler_and_behind_a_send() -> None:
    app = App("a")
    on(app, handling(Ping), "q", key="id")
    assert not app.way("q", Ping, "queue").is_ordered
    app.queue("q", "per_key")
    assert not app.ways and app.way("q", Ping, "queue").is_ordered
    assert app.queue("q", "per_key") == app.queues["q"]
    with pytest.raises(NotRegistrable, match="already; declare it once"):
        app.queue("q")


def test_each_message_of_an_ordered_queue_has_the_key_of_its_own_handler() -> None:
    app = App("a")
    app.queue("q", "per_key")
    on(app, handling(Ping), "q", key="id", name="ping")
    on(app, handling(Pong), "q", key="n", name="pong")
    assert app.session_of("q", Ping("x", 1), None) == "x" and app.session_of("q", Pong("x", 1), None) == "1"
    assert app.session_of("q", Tick("x"), "own") == "own"


def test_a_subscription_of_two_handlers_is_one() -> None:
    app = App("a")
    for name in ("first", "second"):
        on(app, handling(Ping), "news", subscription="audit", name=name)
    assert app.topics == {"news": ["audit"]}


def test_the_kind_of_a_key_is_known_where_all_messages_agree() -> None:
    assert [key_kind(kinds, "id") for kinds in ((Ping,), (Ping, Pong), (Ping, Numbered))] == ["text", "text", ""]


def test_a_margin_holds_twice_the_clock_skew() -> None:
    skew = timedelta(minutes=5)
    assert App("a", margin=2 * skew, clock_skew=skew).margin == 2 * skew
    with pytest.raises(NotRegistrable, match="below twice the clock skew"):
        App("a", margin=2 * skew - timedelta(seconds=1), clock_skew=skew)


async def test_sending_to_a_name_never_declared_says_how_to_declare_it() -> None:
    app, errors = App("a"), []

    @app.handler("q")
    def handle(ping: Ping, ctx: Context) -> None:
        for send in (ctx.send, ctx.publish):
            try:
                send("nowhere", ping)
            except UnknownDestination as error:
                errors.append(str(error))

    async with Harness(app) as world:
        with pytest.raises(UnknownDestination, match=r"app\.queue\('nowhere'\)"):
            await world.send("nowhere", Ping("x"))
        await deliver(world, "q", Ping("x"))
    assert "app.queue('nowhere')" in errors[0] and "app.topic('nowhere')" in errors[1]
