"""States of which only what changed is saved: beside plain ones, through checkpoints that win, lose or are given up."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from msgspec.inspect import type_info
from pydantic import BaseModel

from outbox.codec import StateCodec
from outbox.errors import CorruptRecord, NotRegistrable, PoisonMessage
from outbox.streams import ListState, MapState, Position, Value
from outbox.streams.pipeline.changes import applied, changes_of, combined
from outbox.streams.pipeline.checkpoint import PartRef, Section, line_of, merged, sections_of
from outbox.streams.pipeline.state_fields import fields_of, is_frozen, may_share, state_codec
from outbox.streams.pipeline.states import KeyedStates, StateUnstorable, slot_of
from tests.unit.streams.pipeline.counting import Change


def ref_of(blob: str, data: bytes) -> PartRef:
    return PartRef(blob, sha256(data).hexdigest(), len(data))


class Model(BaseModel):
    """A value of pydantic's."""

    n: int


@dataclass(frozen=True)
class Point:
    """A value that is replaced."""

    x: int


@dataclass
class Kinds:
    """A state with a box of each kind."""

    n: int = 0
    plain: list[int] = field(default_factory=list)
    total: Value[int] = field(default_factory=lambda: Value(0))
    seen: Value[list[int]] = field(default_factory=lambda: Value([]))
    names: MapState[str, int | None] = field(default_factory=MapState)
    numbers: MapState[int, list[int]] = field(default_factory=MapState)
    points: MapState[UUID, Point] = field(default_factory=MapState)
    models: MapState[str, Model] = field(default_factory=MapState)
    items: ListState[int] = field(default_factory=ListState)
    others: ListState[int] = field(default_factory=ListState)
    texts: ListState[list[str]] = field(default_factory=ListState)


BOXES = ("names", "numbers", "points", "models", "items", "others", "texts")


def plain_state() -> Any:
    """The same of Python's own types."""
    boxes: dict[str, Any] = {name: {} for name in ("names", "numbers", "points", "models")} | {
        "items": [],
        "others": [],
        "texts": [],
    }
    values = {"total": SimpleNamespace(value=0), "seen": SimpleNamespace(value=[])}
    return SimpleNamespace(n=0, plain=[], **values, **boxes)


def change(state: Any, at: int) -> None:
    """What the record at a position does to a state, boxed or plain."""
    random = Random(at)
    state.n += 1
    for _ in range(random.randint(0, 3)):
        key = random.randint(0, 6)
        match random.randint(0, 16):
            case 0:
                state.plain.append(at)
            case 1:
                state.total.value += at
            case 2:
                state.seen.value.append(at)
            case 3:
                state.names[f"k{key}"] = at if key else None
            case 4:
                state.names.pop(f"k{key}", None)
            case 5:
                state.numbers.setdefault(key, []).append(at)  # in place
            case 6:
                if key in state.numbers:
                    state.numbers[key].append(at)
                    del state.numbers[key][:-3]
            case 7:
                state.points[UUID(int=key)] = Point(at)
            case 8:
                state.models[str(key)] = Model(n=at)
                state.models["0"] = Model(n=1)
                state.models["0"].n += at
            case 9:
                state.items.append(at)
            case 10:
                if state.items:
                    state.items[random.randrange(len(state.items))] = at
                    state.items[-1] = at
            case 11:
                if state.items:
                    state.items.pop(random.choice((0, -1)))
                state.items.insert(key, at)
                state.items[1:3] = []
            case 12:
                state.texts.append([str(at)])
                state.texts[0].append("x")
            case 13:
                box = random.choice(BOXES)
                if key % 2:
                    getattr(state, box).clear()
                else:
                    setattr(state, box, type(getattr(state, box))())
            case 14:
                del state.items[-2:], state.texts[-1:]
                if state.others:
                    state.others.pop()
            case 15:
                state.items, state.others = state.others, state.items
            case 16 if key == 0:
                for box in BOXES:
                    setattr(state, box, type(getattr(state, box))())


def as_plain(state: Any) -> dict[str, Any]:
    """A state's contents; maps in the order in which they are gone through."""

    def of(value: Any) -> Any:
        if isinstance(value, Value):
            return value._inner
        if isinstance(value, MapState):
            return [(key, value._inner[key]) for key in value]
        if isinstance(value, dict):
            return sorted(value.items())
        return value.value if isinstance(value, SimpleNamespace) else list(value) if type(value) is ListState else value

    return {name: deepcopy(of(getattr(state, name))) for name in Kinds.__dataclass_fields__}


def key_at(at: int) -> str:
    return f"key {Random(-at).choice('aaabc')}"


EXPECTED: list[dict[str, Any]] = [{}]
"""The states before each position, from 0 on."""


def expected(at: int) -> dict[str, Any]:
    if at >= len(EXPECTED):
        states: dict[str, Any] = {}
        del EXPECTED[1:]
        for each in range(at + 200):
            change(states.setdefault(key_at(each), plain_state()), each)
            EXPECTED.append({key: as_plain(state) for key, state in states.items()})
    return EXPECTED[at]


@dataclass
class Disk:
    """What stands: a position and parts; `data` are the bytes of all parts that were written."""

    c: int = 0
    parts: list[PartRef] = field(default_factory=list)
    data: dict[str, bytes] = field(default_factory=dict)


class Running:
    """A replica's states: records, and checkpoints in pieces."""

    def __init__(self, disk: Disk, codec: StateCodec) -> None:
        self.disk, self.at = disk, disk.c
        self.codec = codec
        self.states = KeyedStates(codec.encode, codec.decode, codec.version, fields_of(codec.codec.type))
        for part in disk.parts:
            for section in sections_of(disk.data[part.blob], part):
                self.states.load(section.states, section.schema, section.changes)
        self.since = self.cut = -1

    def feed(self) -> None:
        key = key_at(self.at)
        self.states.touch(key, Position(self.at))
        change(self.states.by_key.setdefault(key, self.codec.fresh()), self.at)
        self.at += 1

    def begin(self) -> None:
        self.since, self.cut = self.disk.c, self.at
        self.states.begin(Position(self.disk.c), Position(self.at))

    def finish(self, again: int) -> None:
        """Save the rest, and swap: it wins where what stood at the beginning stands; `again` parts are written anew."""
        while not self.states.save(1):
            pass
        kept = self.disk.parts[: max(0, len(self.disk.parts) - again)]
        older: dict[int, list[Section]] = {}
        for part in self.disk.parts[len(kept) :]:
            for section in sections_of(self.disk.data[part.blob], part):
                older.setdefault(section.slot, []).append(section)
        for slot, found in self.states.saved().items():
            section = Section("count", slot, 1, *found)
            older.setdefault(slot, []).append(section)
        data = b"\n".join(line_of(merged(each)) for each in older.values())
        if self.disk.c == self.since and self.cut > self.since:
            blob = f"part {len(self.disk.data)}"
            self.disk.data[blob] = data
            self.disk.c, self.disk.parts = self.cut, [*kept, ref_of(blob, data)]
        self.cut = -1

    def contents(self) -> dict[str, Any]:
        return {str(key): as_plain(state) for key, state in self.states.all().items()}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_saved_of_changes_is_the_state_whatever_becomes_of_checkpoints(seed: int) -> None:
    random, disk, codec = Random(seed), Disk(), StateCodec(state_codec(Kinds))
    running = [Running(disk, codec), Running(disk, codec)]
    for _ in range(120):
        number = random.randrange(2)
        one = running[number]
        match random.randint(0, 9):
            case 0 if one.cut >= 0:
                one.finish(random.randint(0, 3))
            case 1:
                one.begin()  # and gives up the one under way
            case 2 if one.cut >= 0:
                one.states.save(random.randint(0, 2))
            case 3 if random.random() < 0.3:
                running[number] = one = Running(disk, codec)
                assert one.contents() == expected(disk.c)
            case _:
                one.feed()
        assert one.contents() == expected(one.at)
    assert Running(disk, codec).contents() == expected(disk.c)


def changes_in(state: Any) -> msgspec.Raw | None:
    """What changed of a state since this was last called, as stored; None: all."""
    fields = fields_of(type(state))
    assert fields is not None
    changes, _ = fields.changed(state, [])
    return None if changes is None else fields.stored([changes])[0]


@dataclass
class Members:
    members: MapState[int, int] = field(default_factory=MapState)


def test_of_many_members_the_changed_one_is_written_and_until_a_checkpoint_with_it_stands() -> None:
    codec = StateCodec(state_codec(Members))
    states = KeyedStates(codec.encode, codec.decode, 1, fields_of(Members))
    states.touch("k", Position(0))
    states.by_key["k"] = Members(MapState({number: number for number in range(30_000)}))
    states.begin(Position(0), Position(1))
    states.save(1)
    assert len(states.saved()[slot_of("k")].states["sk"]) > 300_000
    states.touch("k", Position(1))
    states.by_key["k"].members[7] = 1
    for since, changed in ((1, ["7"]), (1, ["7"]), (2, ["8"])):
        states.begin(Position(since), Position(2))
        states.touch("k", Position(2))
        states.by_key["k"].members[8] = 2
        states.save(1)
        found = states.saved()[slot_of("k")].changes["sk"]
        assert [*changes_of(found).members["members"]] == changed or (since, changed) == (1, ["7"])
        assert len(bytes(found)) < 100
    states.begin(Position(3), Position(4))
    assert states.save(1) and not states.saved()
    assert not states._marked and not states._lost  # nothing is kept of what stands


def test_what_a_checkpoint_has_saved_is_let_go_of_in_the_course_of_the_next() -> None:
    states = KeyedStates((codec := StateCodec(state_codec(Members))).encode, codec.decode, 1, fields_of(Members))
    left = list[int]()
    for at in (0, 1):
        for key in range(300):
            states.touch(f"{key}", Position(at))
            states.by_key.setdefault(f"{key}", Members()).members[at] = at
        states.begin(Position(at), Position(at + 1))
        is_done = False
        while not is_done:
            left.append(sum(map(len, states._old)))
            is_done = states.save(8)
    before = left[left.index(max(left)) :]
    assert before[0] >= 300 and all(0 <= one - other <= 6 * 8 for one, other in pairwise(before))
    assert not any(states._old)


def test_a_step_of_saving_is_as_long_as_members_are_many_also_of_keys_that_change_meanwhile() -> None:
    states = KeyedStates((codec := StateCodec(state_codec(Members))).encode, codec.decode, 1, fields_of(Members))
    states.load({f"s{key}": msgspec.Raw(b'{"members":{}}') for key in range(12)}, 1)

    def change(key: int, at: int) -> None:
        state = states.touch(f"{key}", Position(at))
        state.members.update(dict.fromkeys(range(1 + 9 * (key % 2)), at))

    for at in (1, 2):
        for key in range(12):
            change(key, at)
        states.begin(Position(at), Position(at + 1))
        for key in range(6):
            change(key, at + 1)
        sizes, before, is_done = list[int](), 0, False
        while not is_done:
            is_done = states.save(8)
            found = [raw for saved in states.saved().values() for raw in saved.changes.values()]
            members = sum(len(changes_of(raw).members["members"]) for raw in found)
            sizes.append(members - before)
            before = members
        assert before == 66 and len(found) == 12
        assert max(sizes) < 8 + 10 and min(sizes) > 0 and len(sizes) >= 6


def test_a_map_goes_by_its_keys_and_reading_numbers_changes_nothing() -> None:
    box = MapState({3: 1, 1: 2, 2: 3})
    assert [*box.items()] == [(1, 2), (2, 3), (3, 1)] and box == {1: 2, 2: 3, 3: 1} and 3 in box
    state = Members(box)
    assert changes_in(state) is None
    assert box[3] == 1 and changes_in(state) == msgspec.Raw(b"{}")
    assert repr(Value(1)) + repr(ListState([1])) + repr(box) == "Value(1)ListState([1])MapState({1: 2, 2: 3, 3: 1})"
    assert Value(1) == Value(1) and ListState([1]) == [1] and Value(1) != 1


def test_a_loaded_state_is_decoded_when_it_is_asked_for_and_saved_with_what_changed_of_it() -> None:
    codec, read = StateCodec(state_codec(Members)), list[bytes]()

    def decode(data: bytes, schema: int) -> Any:
        read.append(data)
        return codec.decode(data, schema)

    states = KeyedStates(codec.encode, decode, 1, fields_of(Members))
    states.load({f"s{key}": msgspec.Raw(b'{"members":{"1":1}}') for key in "abc"}, 1)
    states.load({"sc": msgspec.Raw(b"null")}, 1, {"sa": msgspec.Raw(b'{"members":{"members":{"2":[2]}}}')})
    assert read == [] and len(states) == 2
    assert states.touch("a", Position(0)) == states.state("a") == Members(MapState({1: 1, 2: 2})) and len(read) == 1
    states.begin(Position(0), Position(1))
    assert states.save(9) and [*states.saved()] == [slot_of("a")] and len(read) == 1
    assert states.state("c") is None and states.touch("c", Position(0)) is None
    states.begin(None, Position(1))
    assert states.save(9) and {key for saved in states.saved().values() for key in saved.states} == {"sa", "sb"}
    assert states.all() == {"a": Members(MapState({1: 1, 2: 2})), "b": Members(MapState({1: 1}))}


def test_a_loaded_state_that_cannot_be_read_is_kept_and_every_time_it_is_asked_for_it_says_so() -> None:
    codec = StateCodec(state_codec(Members))
    states = KeyedStates(codec.encode, codec.decode, 1, fields_of(Members))
    states.load({"sk": msgspec.Raw(b'{"members":{"1":"one"}}')}, 1)
    for ask in (states.state, states.state, lambda key: states.touch(key, Position(0))):
        with pytest.raises(PoisonMessage, match="cannot be read"):
            ask("k")
    assert len(states) == 1


def test_a_state_with_line_breaks_between_its_tokens_stays_one_line_of_a_part() -> None:
    lines = Section("op", 0, 1, {"sk": msgspec.Raw(b'{\n"n":"\\n"}')}), Section("op", 1, 1, {})
    data = b"\n".join(map(line_of, lines))
    first, second = sections_of(data, ref_of("part", data))
    assert msgspec.json.decode(first.states["sk"]) == {"n": "\n"} and second.slot == 1


def test_another_schema_is_lifted_from_a_state_and_its_changes() -> None:
    def lifted(state: dict[str, Any]) -> dict[str, Any]:
        return {"members": {key: -value for key, value in state["members"].items()}}

    codec = StateCodec(state_codec(Members), 2, {1: lifted})
    states = KeyedStates(codec.encode, codec.decode, 2, fields_of(Members))
    states.load({"sk": msgspec.Raw(b'{"members":{"1":1,"2":2}}')}, 1)
    states.load({}, 1, {"sk": msgspec.Raw(b'{"members":{"members":{"1":[],"3":[3]}}}')})
    states.load({}, 1, {"sk": msgspec.Raw(b'{"members":{"members":{"3":[4]}}}')})
    assert states.state("k") == Members(MapState({2: -2, 3: -4}))
    with pytest.raises(CorruptRecord, match="changes of 'other', and no state"):
        states.load({}, 1, {"sother": msgspec.Raw(b"{}")})


@dataclass
class Dictionary:
    members: dict[int, int] = field(default_factory=dict)


@dataclass
class OneValue:
    members: Value[dict[int, int]] = field(default_factory=lambda: Value({}))


@pytest.mark.parametrize("now", [Dictionary({1: 1, 2: 2}), OneValue(Value({1: 1, 2: 2}))])
def test_a_class_that_has_a_dictionary_by_now_takes_what_was_saved_of_changes(now: Any) -> None:
    codec = StateCodec(state_codec(type(now)))
    states = KeyedStates(codec.encode, codec.decode, 1, fields_of(type(now)))
    states.load({"sk": msgspec.Raw(b'{"members":{"1":1}}')}, 1)
    states.load({}, 1, {"sk": msgspec.Raw(b'{"members":{"members":{"2":[2]}}}')})
    assert states.state("k") == now


def test_a_field_that_was_added_begins_with_its_default_and_is_saved_as_a_whole() -> None:
    codec = state_codec(Added)
    state = codec.decode(b'{"n":3}')
    assert state == Added(3)
    state.more[2] = 2
    fields = fields_of(Added)
    assert fields is not None and changes_in(state) is None


@dataclass
class Added:
    n: int = 0
    more: MapState[int, int] = field(default_factory=lambda: MapState({1: 1}))


def test_a_list_that_shrinks_has_no_members_behind_its_end() -> None:
    def of(length: int, **members: int) -> msgspec.Raw:
        items = {index[1:]: [value] for index, value in members.items()}
        return msgspec.Raw(msgspec.json.encode({"members": {"items": items}, "lengths": {"items": length}}))

    parts = [of(5, i4=4), of(3), of(4, i3=9)]
    whole = msgspec.Raw(b'{"items":[0,1,2]}')
    one_by_one = whole
    for part in parts:
        one_by_one = applied(one_by_one, [part])
    assert one_by_one == applied(whole, [combined(parts[:2]), parts[2]]) == applied(whole, parts)
    assert bytes(one_by_one) == b'{"items":[0,1,2,9]}'
    fields, state = fields_of(Items), Items(ListState([0, 1, 2]))
    assert fields is not None
    fields.apply(state, changes_of(combined(parts[:2])))
    assert state.items == [0, 1, 2]


@dataclass
class Items:
    items: ListState[int] = field(default_factory=ListState)
    others: ListState[int] = field(default_factory=ListState)


def test_a_value_that_is_changed_in_place_is_saved() -> None:
    state = Kinds()
    state.numbers[1], state.numbers[2] = [1], [2]
    state.texts.append(["a"])
    assert changes_in(state) is None
    state.numbers[1].append(3)
    state.texts[0].append("b")
    state.seen.value.append(4)
    found = changes_in(state)
    assert found is not None and msgspec.json.decode(found)["members"] == {
        "numbers": {"1": [[1, 3]]},
        "texts": {"0": [["a", "b"]]},
    }


@dataclass(frozen=True)
class Chained:
    x: int
    next: Chained | None = None


class Named(NamedTuple):
    x: int
    items: list[int]


@pytest.mark.parametrize(
    ("kind", "frozen"),
    [
        (tuple[int, ...], True),
        (frozenset[str], True),
        (int | str | None, True),
        (Chained, True),
        (Point, True),
        (Position, True),
        (tuple[list[int], int], False),
        (Named, False),
        (Members, False),
        (dict[str, int], False),
        (Any, False),
    ],
)
def test_what_can_be_changed_in_place_is_known_by_its_type(kind: Any, frozen: bool) -> None:
    assert is_frozen(type_info(kind)) is frozen


@pytest.mark.parametrize(
    ("state", "kind", "shares"),
    [
        (Members, Members, True),
        (Members, Change, False),
        (Members, list[int], False),
        (Members, Any, True),
        (Kinds, list[int] | None, True),
        (Kinds, Point, False),
        (Dictionary, tuple[Change, dict[str, int]], True),
    ],
)
def test_what_may_have_something_in_common_with_a_state_is_known_by_its_type(
    state: type, kind: Any, shares: bool
) -> None:
    assert may_share(state, kind) is shares


def test_a_copy_of_a_state_has_nothing_in_common_that_can_be_changed() -> None:
    codec = StateCodec(state_codec(Kinds))
    states = KeyedStates(codec.encode, codec.decode, 1, fields_of(Kinds))
    state = Kinds()
    for at in range(60):
        change(state, at)
    for name in BOXES:
        getattr(state, name)._marks.fresh.clear()
    before, copy = as_plain(state), states.copied(state)
    assert copy == state and as_plain(copy) == before
    assert not any(getattr(state, name)._marks.fresh for name in BOXES)
    for at in range(60, 120):
        change(copy, at)
    assert as_plain(state) == before


def test_boxes_that_are_swapped_and_swapped_back_are_saved_as_a_whole() -> None:
    codec = StateCodec(state_codec(Items))
    states = KeyedStates(codec.encode, codec.decode, 1, fields_of(Items))
    state = states.by_key["k"] = Items(ListState([1]), ListState([2]))
    for at in range(3):  # here the first is saved; that one stands where they are swapped is another replica's
        states.touch("k", Position(at))
        if at:
            state.items, state.others = state.others, state.items
        else:
            states.begin(Position(0), Position(1))
            states.save(1)
    states.begin(Position(2), Position(3))
    states.save(1)
    assert bytes(states.saved()[slot_of("k")].states["sk"]) == b'{"items":[1],"others":[2]}'


@dataclass
class Unsaid:
    members: MapState = field(default_factory=MapState)  # type: ignore[type-arg]  # that is tested


@dataclass
class OfTuples:
    members: MapState[tuple[int, int], int] = field(default_factory=MapState)


@dataclass
class OfObjects:
    members: ListState[Random] = field(default_factory=ListState)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Unsaid, r"Unsaid\.members: say .* MapState\[str, int\]"), (OfTuples, "keys of str, int"), (OfObjects, "JSON")],
)
def test_a_box_that_cannot_be_stored_is_refused(kind: type, text: str) -> None:
    with pytest.raises(NotRegistrable, match=text):
        state_codec(kind)


@dataclass
class Texts:
    members: MapState[str, int] = field(default_factory=MapState)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (Members({1: 1}), "leave it a MapState"),  # type: ignore[arg-type]  # that is tested
        (Members(MapState({"x": 1})), "has the key 'x'"),  # type: ignore[arg-type]  # that is tested
        (Texts(MapState({"\ud800": 1})), "surrogate"),
        (Members(MapState({1: None})), "would not be read back"),  # type: ignore[arg-type]  # that is tested
    ],
)
def test_a_state_that_cannot_be_stored_says_where(state: Any, text: str) -> None:
    with pytest.raises(PoisonMessage, match=text):
        StateCodec(state_codec(type(state))).encode(state)


def test_a_member_that_would_not_be_read_back_is_refused() -> None:
    state = Members()
    assert changes_in(state) is None
    state.members[1] = None  # type: ignore[assignment]  # that is tested
    with pytest.raises(PoisonMessage, match="would not be read back"):
        changes_in(state)


def test_a_new_box_beside_one_that_was_saved_is_refused_where_it_would_not_be_read_back() -> None:
    state = Items()
    assert changes_in(state) is None
    state.items = ListState([None])  # type: ignore[list-item]  # that is tested
    with pytest.raises(PoisonMessage, match="would not be read back"):
        changes_in(state)


@pytest.mark.parametrize("wrong", [0.5, "1", None])
def test_a_member_of_another_type_is_refused_before_it_cannot_be_read_back(wrong: Any) -> None:
    members, items = Members(MapState({1: 1})), Items(ListState([1]))
    assert changes_in(members) is changes_in(items) is None
    members.members[2] = items.items[0] = wrong
    for state in (members, items):
        with pytest.raises(PoisonMessage, match="would not be read back: Expected `int`"):
            changes_in(state)


def test_one_box_in_two_fields_is_refused() -> None:
    state = Items()
    assert changes_in(state) is None
    state.others = state.items
    for store in (changes_in, state_codec(Items).encode):
        with pytest.raises(PoisonMessage, match="two fields of a Items have one box"):
            store(state)


def test_a_key_that_cannot_be_stored_is_named() -> None:
    codec = StateCodec(state_codec(Members))
    states = KeyedStates(codec.encode, codec.decode, 1, fields_of(Members))
    states.touch("\ud800", Position(0))
    states.begin(Position(0), Position(1))
    with pytest.raises(StateUnstorable, match=r"key '\\ud800' cannot be stored"):
        states.save(1)
