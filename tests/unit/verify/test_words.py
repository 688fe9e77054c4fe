"""The FlameStream paper's definitions on finite words: its own example, and each way of going wrong."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import msgspec
import pytest

from outbox.errors import TooLarge
from outbox.verify.recorded.definitions import FAIL, QUIESCE, Symbol, System, came, decide, went, words_of
from outbox.verify.recorded.events import In, Left, Life, Quiesce, Result

Answer = Iterable[tuple[Hashable, Sequence[Hashable]]]


def window(state: Hashable, channel: str, item: Hashable) -> Answer:
    """The paper's operator: concatenates the newest two items."""
    yield item, [f"{state}{item}"]


def concat(state: Hashable, channel: str, item: Hashable) -> Answer:
    yield f"{state}{item}", [f"{state}{item}"]


def count(state: Hashable, channel: str, item: Hashable) -> Answer:
    assert isinstance(state, int)
    yield state + 1, [state + 1]


def table_ii(last: str) -> list[Symbol]:
    """Table II of the paper: a, b, e come from one source, c, d from another; the system fails before e."""
    return [
        *(came("a", channel="left"), came("c", channel="right"), went("a"), went("ac")),
        *(came("b", channel="left"), came("d", channel="right"), went("cd"), went("db")),
        *(FAIL, came("e", channel="left"), went(last)),
    ]


WINDOW, CONCAT, COUNT = System("", window), System("", concat), System(0, count)


def test_the_papers_table_ii_is_exactly_once() -> None:
    for guarantee in ("consistent", "exactly-once", "at-most-once", "at-least-once"):
        assert decide(WINDOW, table_ii("be"), guarantee) is None


def test_its_bad_variant_is_flagged_at_the_output_that_contradicts() -> None:
    found = decide(WINDOW, table_ii("de"), "exactly-once")
    assert found is not None and (found.line, found.what, found.ids) == (11, "out", ("de",))
    assert decide(WINDOW, table_ii("de"), "at-least-once") is None
    assert decide(WINDOW, table_ii("de"), "at-most-once") is not None


def test_an_order_that_outputs_have_shown_cannot_be_another() -> None:
    word = [came("A"), went("A"), came("B"), went("AB"), FAIL, came("C"), went("BAC")]
    for guarantee in ("exactly-once", "at-most-once", "at-least-once"):
        found = decide(CONCAT, word, guarantee)
        assert found is not None and found.line == 7


def test_a_lost_input_is_at_most_once_only() -> None:
    word = [came("a"), came("b"), went("b")]
    assert decide(CONCAT, word, "at-most-once") is None
    assert decide(CONCAT, [*word, QUIESCE], "at-most-once") is None
    assert decide(CONCAT, [came("a", channel="x"), came("b", channel="x"), went("b")], "at-most-once") is None
    quiet = decide(CONCAT, [*word, QUIESCE], "exactly-once")
    assert quiet is not None and (quiet.line, quiet.what) == (4, "quiesce")
    assert decide(CONCAT, [*word, QUIESCE], "at-least-once") is not None


def test_an_input_applied_twice_is_at_least_once_only() -> None:
    word = [came("a"), went(1), FAIL, went(2), QUIESCE]
    assert decide(COUNT, word, "at-least-once") is None
    for guarantee in ("exactly-once", "at-most-once", "consistent"):
        found = decide(COUNT, word, guarantee)
        assert found is not None and found.line == 4


def test_an_item_may_be_taken_once_more() -> None:
    for count in range(1, 5):
        word = [came("a"), *(went(n) for n in range(1, count + 1)), QUIESCE]
        assert (decide(COUNT, word, "at-least-once") is None) is (count <= 2)


def test_at_most_once_may_lose_a_part_of_what_came_out() -> None:
    both = System(0, lambda state, channel, item: [(state, [f"{item}1", f"{item}2"])])
    word = [came("a"), went("a1"), QUIESCE]
    assert decide(both, word, "at-most-once") is None
    assert decide(both, word, "exactly-once") is not None


def test_silence_is_exactly_once_until_it_quiesces() -> None:
    assert decide(COUNT, [came("a")], "exactly-once") is None
    found = decide(COUNT, [came("a"), QUIESCE], "exactly-once")
    assert found is not None and found.line == 2
    assert decide(COUNT, [came("a"), QUIESCE], "consistent") is None


def test_keys_are_judged_apart() -> None:
    word = [came("a", key=1), came("b", key=2), went(1, key=2), went(1, key=1), QUIESCE]
    assert decide(COUNT, word, "exactly-once") is None
    found = decide(COUNT, [*word[:3], went(2, key=2)], "exactly-once")
    assert found is not None and found.line == 4


def test_order_is_kept_within_a_channel_and_free_across() -> None:
    one = [came("a", channel="x"), came("b", channel="x"), went("b")]
    two = [came("a", channel="x"), came("b", channel="y"), went("b")]
    assert decide(CONCAT, one, "consistent") is not None
    assert decide(CONCAT, two, "consistent") is None


def test_a_cell_that_several_replicas_have_read_is_one_input() -> None:
    read = In(queue="log/in/0.0", messages=[("c", 1)], index=0, values=[msgspec.Raw(b"1"), msgspec.Raw(b"2")])
    bundle = Left(
        id="b", parents=[], sink="log/out/0.0", index=0, since=(0, 0), until=(1, 0), values=[msgspec.Raw(b"3")]
    )
    made = Result(id="r", parents=["log/in/0.0/0.0"], sink="log/out/0.0", at=(0, 0), items=[7])
    word = words_of([Life(), read, made, read, bundle, bundle, Life(), Quiesce(queues=[])], sink="out")
    source = {"channel": "log/in/0.0"}
    assert word == [came("1", **source), came("2", **source), went("3"), FAIL, QUIESCE]


def test_too_much_on_its_way_is_refused_with_the_cure() -> None:
    word = [came(f"{n}") for n in range(12)]
    with pytest.raises(TooLarge, match="split the word by key"):
        decide(CONCAT, [*word, went("x")], "exactly-once")


def test_a_word_is_judged_by_known_guarantees_only() -> None:
    with pytest.raises(ValueError, match="deterministic"):
        decide(COUNT, [], "deterministic")
