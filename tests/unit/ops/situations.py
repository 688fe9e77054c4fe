"""The shape of the tables of situations: on a folder, on store and bus apart, and of a running host.

The first two have one application, which is here.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Self, TypeVar

from outbox import App, Context, Reject, Retries, Retry
from tests.unit.messages import Count, Order

Plant = TypeVar("Plant")


class Situation(NamedTuple, Generic[Plant]):
    """What is wrong, how it is planted, the command, and the words of its answer that name cause and cure."""

    name: str
    plant: Plant
    command: str
    words: tuple[str, ...] = ()

    def says(self, *words: str) -> Self:
        """This situation, with the words of the answer."""
        return self._replace(words=words)


def shop(prefix: str = "") -> App:
    """The application; its queues may have a prefix, where one bus is shared by two scopes."""
    app = App("shop", retry=Retries(limit=2, delays_s=(600.0,)), hops_max=3)
    app.queue(f"{prefix}ledger", "per_key")
    for name in ("outside", "away"):
        app.queue(f"{prefix}{name}")

    @app.handler(f"{prefix}orders", key="key")
    def take(order: Order, count: Count, ctx: Context) -> None:
        if order.how == "fail":
            raise ConnectionError("the pricing service does not answer")
        if order.how == "refuse":
            raise Reject("no such article")
        if order.how == "later":
            raise Retry("the shelf is locked", after_s=1_800)
        if order.how == "again":
            ctx.send(f"{prefix}orders", order)
        if order.how == "large":
            ctx.send(f"{prefix}outside", Order(order.key, "x" * 2_000_000))
        if order.how in ("outside", "away"):
            ctx.send(f"{prefix}{order.how}", order)
        count.n += 1

    @app.handler(f"{prefix}hopeless", key="key")
    def give_up(order: Order, count: Count) -> None:
        raise LookupError(f"no article {order.key}")

    @app.handler(f"{prefix}ledger", key="key", on_dead_letter="stop_key")
    def enter(order: Order, count: Count) -> None:
        if order.how == "refuse":
            raise Reject("no such account")
        count.n += 1

    return app
