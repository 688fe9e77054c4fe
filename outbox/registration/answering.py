"""HTTP handlers: the return value becomes the reply of the context.

The commit protocols ignore a handler's return value.  So a wrapper encodes it within the attempt: a reply that cannot
be stored fails the handler, and nothing of it takes effect.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from inspect import isawaitable
from typing import Any

from outbox.context import Context
from outbox.encoding import encoded
from outbox.generators import check_result
from outbox.http import reply_of
from outbox.registration.binding import Binding


def answering(binding: Binding) -> Binding:
    """A handler whose return value becomes its context's reply."""
    call = binding.call

    async def wait(returned: Awaitable[Any], context: Context) -> None:
        _answer(await returned, context)

    def answer(message: Any, state: Any, context: Context) -> Awaitable[None] | None:
        returned = call(message, state, context)
        if isawaitable(returned):
            return wait(returned, context)
        _answer(returned, context)
        return None

    return replace(binding, wants_context=True, is_async=False, call=answer)


def _answer(returned: Any, context: Context) -> None:
    check_result(f"handler {context.work.handler.name}", returned)
    context.answer = reply_of(returned, encoded)
    context.is_plain = False  # a reply is more than the fast path commits
