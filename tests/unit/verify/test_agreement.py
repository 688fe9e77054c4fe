"""The one-pass judge and the paper's definition are held against each other on the same runs, sound and broken."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.verify.guarantees import check
from outbox.verify.recorded.definitions import QUIESCE, Symbol, System, came, decide, went
from outbox.verify.recorded.events import Change, Claim, Commit, Delivered, Emitted, Ended, Event, Life, Ok, Quiesce

MESSAGE_COUNT = 4


def count(state: Hashable, channel: str, item: Hashable) -> Iterable[tuple[Hashable, Sequence[Hashable]]]:
    """Each message adds one and tells the sum: the order of versions shows in the outputs."""
    assert isinstance(state, int)
    yield state + 1, [state + 1]


class Run:
    """A system that applies messages to one counter, rightly or wrongly, told in both ways."""

    def __init__(self) -> None:
        self.events: list[Event] = [Life(is_empty=True)]
        self.word: list[Symbol] = [came(f"m{n}") for n in range(MESSAGE_COUNT)]
        self.version = self.sequence = self.op = 0

    def apply(self, message: int, before: int) -> None:
        """Apply a message to the counter as it was at a version."""
        self.sequence += 1
        self.op += 1
        id, inbox, after = f"m{message}", f"k{message}", before + 1
        self.events += [
            Claim(deliveries=[Delivered(id, "q", self.sequence)]),
            Commit(
                op=self.op,
                ended=[Ended("q", self.sequence, id)],
                changes=[Change("Counter:c", before, after, after)],
                outputs=[Emitted(f"{inbox}-0", "sums", after, id)],
                applied=[inbox],
            ),
            Ok(op=self.op),
        ]
        self.word.append(went(after))
        self.version = after

    def skip(self, message: int) -> None:
        """Hand a message out and never end it."""
        self.sequence += 1
        self.events.append(Claim(deliveries=[Delivered(f"m{message}", "q", self.sequence)]))

    def verdicts(self) -> tuple[bool, bool]:
        """Whether the one-pass judge, and whether the paper's definition, find it exactly-once."""
        linear = check([*self.events, Quiesce(queues=["q"])], guarantees=("exactly-once",)).ok
        return linear, decide(System(0, count), [*self.word, QUIESCE], "exactly-once") is None


Steps = st.permutations(range(MESSAGE_COUNT))


@settings(max_examples=200, deadline=None)
@given(Steps, st.lists(st.sampled_from(["right", "stale", "twice", "skip"]), min_size=4, max_size=4))
def test_what_the_one_pass_judge_accepts_the_papers_definition_accepts(order: list[int], ways: list[str]) -> None:
    run = Run()
    for message, way in zip(order, ways, strict=True):
        if way == "skip":
            run.skip(message)
            continue
        run.apply(message, max(0, run.version - 1) if way == "stale" else run.version)
        if way == "twice":
            run.apply(message, run.version)
    linear, paper = run.verdicts()
    assert paper or not linear
    if set(ways) == {"right"}:
        assert linear and paper


@settings(max_examples=100, deadline=None)
@given(Steps, st.integers(1, 3), st.sampled_from(["stale", "twice", "skip"]))
def test_a_single_fault_is_found_by_both(order: list[int], at: int, fault: str) -> None:
    run = Run()
    for number, message in enumerate(order):
        if number == at and fault == "skip":
            run.skip(message)
            continue
        run.apply(message, run.version - 1 if number == at and fault == "stale" else run.version)
        if number == at and fault == "twice":
            run.apply(message, run.version)
    assert run.verdicts() == (False, False)
