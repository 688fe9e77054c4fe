"""A barrier by itself: what it bundles, what it takes over from another replica, and where a chain goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from outbox.streams.cells import Cell, Position
from outbox.streams.pipeline import barrier as barriers
from outbox.streams.pipeline.barrier import (
    Barrier,
    Names,
    NotDeterministic,
    OtherWriter,
    OutputUnstorable,
    stored_records,
)
from outbox.streams.pipeline.checkpoint import Chain
from outbox.streams.pipeline.operators import Frame, Record
from outbox.streams.values import Values

NAMES = Names("index", 2, "graph", "sink")
OLDER = NAMES._replace(version=1)


def made(at: int = 0, *, begin: int = 0, next: int = 0, below: int = 0, **options: Any) -> Barrier:
    """A barrier of a replica that begins at a position, where the chain is at another."""
    names = options.pop("names", NAMES)
    return Barrier(names, Values("sink", int), Chain(next, Position(begin), below), Position(at), [OLDER], **options)


def fed(barrier: Barrier, values: Mapping[int, Sequence[int]], upto: int) -> Barrier:
    """Feed the values of each position, up to a watermark."""
    records: list[Record] = [
        (Position(at), (n,), 0, value) for at, some in values.items() for n, value in enumerate(some)
    ]
    barrier.feed(Frame(records, Position(upto)))
    return barrier


def bundled(values: Mapping[int, Sequence[int]], upto: int, *, begin: int = 0, next: int = 0, **options: Any) -> Cell:
    """The bundle that a replica makes of these."""
    cell = fed(made(begin, begin=begin, next=next, **options), values, upto).bundle(5)
    assert cell is not None
    return cell


def of(cell: Cell) -> tuple[Position | None, Position | None, list[Any]]:
    return cell.begin, cell.until, [msgspec.json.decode(raw) for raw in cell.v]


@pytest.mark.parametrize("limit", ["POSITIONS_MAX", "ENTRIES_MAX", "CELL_BYTES_MAX"])
def test_a_bundle_ends_at_each_of_its_limits(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barriers, limit, 4 if limit == "CELL_BYTES_MAX" else 2)  # a digit and a comma take two bytes
    barrier = fed(made(), {0: [1], 1: [2], 2: [3], 5: [4]}, 9)
    first = barrier.bundle(5)
    assert first is not None and of(first) == (Position(0), Position(1).after(), [1, 2])
    barrier.adopt(0, first)
    second = barrier.bundle(5)
    assert second is not None and of(second) == (Position(1).after(), Position(9), [3, 4])


def test_a_bundle_covers_what_is_below_the_watermark_and_the_gate() -> None:
    barrier = fed(made(), {0: [1], 3: [2], 5: [3]}, 4)
    fed(barrier, {}, 2)
    assert barrier.watermark == Position(4), "it never goes back"
    cell = barrier.bundle(5, below=Position(3))
    assert cell is not None and of(cell) == (Position(0), Position(0).after(), [1])
    assert barrier.released == Position(0)
    cell = barrier.bundle(5)
    assert cell is not None and of(cell) == (Position(0), Position(3).after(), [1, 2])


def test_what_is_held_is_from_one_position_to_before_another() -> None:
    barrier = fed(made(), {0: [1], 1: [2], 2: [3]}, 3)
    assert [line.at for line in barrier.held(Position(1), Position(2))] == [Position(1)]


def test_a_bundle_of_another_replica_is_compared_with_what_is_made_here() -> None:
    there = bundled({0: [1], 2: [3]}, 4)
    same = made()
    same.adopt(0, there)
    assert fed(same, {0: [1], 2: [3]}, 4).released == Position(4)
    for values, upto in (({0: [1], 2: [4]}, 3), ({0: [1], 1: [2], 2: [3]}, 3), ({0: [1]}, 4)):
        other = made()
        other.adopt(0, there)
        with pytest.raises(NotDeterministic):
            fed(other, values, upto)
    ahead = fed(made(), {0: [1], 2: [4]}, 4)
    with pytest.raises(NotDeterministic):
        ahead.adopt(0, there)


@pytest.mark.parametrize(
    "there",
    [
        (1, bundled({0: [1]}, 2)),
        (0, bundled({1: [1]}, 2, begin=1)),
        (0, msgspec.structs.replace(bundled({0: [1]}, 2), id="another")),
        (0, bundled({0: [1]}, 2, names=NAMES._replace(sink="elsewhere"))),
    ],
)
def test_what_is_not_the_next_of_the_chain_is_another_writers(there: tuple[int, Cell]) -> None:
    with pytest.raises(OtherWriter, match=f"cell {there[0]} of log sink is no bundle"):
        made().adopt(*there)


def test_what_an_older_version_has_released_is_not_made_again_alike() -> None:
    barrier = made()
    barrier.adopt(0, bundled({0: [1], 1: [2]}, 2, names=OLDER))
    fed(barrier, {0: [7], 2: [3]}, 4)
    cell = barrier.bundle(5)
    assert cell is not None and of(cell) == (Position(2), Position(4), [3])


def test_items_below_a_checkpoint_are_not_made_again() -> None:
    barrier = made(2, below=2)  # the bundle that is next begins before the checkpoint
    barrier.adopt(0, bundled({0: [1], 1: [2], 2: [3]}, 3))
    barrier.adopt(1, bundled({3: [4, 5], 4: [6]}, 5, begin=3, next=1))
    assert fed(barrier, {2: [3], 3: [4, 5], 4: [6]}, 5).released == Position(5)


def test_a_chain_goes_on_at_the_last_bundle_that_begins_there_or_before() -> None:
    barrier = fed(made(), {0: [1], 2: [3, 4], 3: [5], 4: [6]}, 6)
    barrier.adopt(0, bundled({0: [1]}, 2))
    barrier.adopt(1, bundled({2: [3, 4], 3: [5]}, 4, begin=2, next=1))
    barrier.adopt(2, bundled({4: [6]}, 6, begin=4, next=2))
    found = [barrier.chain_at(Position(at)) for at in (1, 2, 3, 4)]
    assert found == [Chain(0, Position(0), 1), *(Chain(1, Position(2), n) for n in (0, 2)), Chain(2, Position(4), 0)]


def test_without_a_chain_a_bundle_stays_until_it_is_passed_and_nothing_goes_back() -> None:
    barrier = fed(made(is_chained=False), {0: [1], 5: [2]}, 4)
    cell = barrier.bundle(5)
    fed(barrier, {6: [3]}, 9)
    assert barrier.bundle(7) is cell
    barrier.pass_by(Position(5), 3)
    again = barrier.bundle(8)
    assert again is not None and of(again) == (Position(5), Position(9), [2, 3]), "what is at the place itself stays"
    barrier.pass_by(Position(2), 1)
    assert (barrier.begin, barrier.next, barrier.bundled) == (Position(5), 3, None)


def test_of_several_values_the_one_that_cannot_be_stored_is_named() -> None:
    records: list[Record] = [(Position(at), (), 0, value) for at, value in ((3, 1), (4, float("nan")), (5, 2))]
    with pytest.raises(OutputUnstorable, match=r"puts out at 4\.0 of the source"):
        stored_records(Values("sink", float), records, "index", "in log sink")


@dataclass
class Level:
    """What may have been counted in whole numbers until it was stored."""

    metres: float
    note: str | None = ""


def test_a_value_is_stored_as_a_reader_has_it_whatever_is_stored_with_it() -> None:
    values = Values("levels", Level)
    for others in ([], [Level(1.5, None)]):
        raws, _ = values.encoded([Level(2), *others])
        assert bytes(raws[0]) == b'{"metres":2.0,"note":""}'
