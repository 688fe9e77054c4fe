"""A history survives the process that writes it, stays within its limits, and is read as untrusted bytes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox.errors import CorruptRecord, TooLarge
from outbox.message import Message
from outbox.verify import history as history_module
from outbox.verify.guarantees import check
from outbox.verify.history import History, parse, read_history
from outbox.verify.recorded.events import (
    Claim,
    Commit,
    Cut,
    Delivered,
    End,
    Ended,
    Event,
    Fail,
    Life,
    Ok,
    Torn,
    Unknown,
    Whole,
    digest_of,
)

COMMIT = Commit(op=1, ended=[Ended("q", 1, "a")])


def kinds(path: Path) -> list[str]:
    return [type(event).__name__ for event in read_history(path)]


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    whole = Whole(Message(body=b"\0\xff", outbox_id="a", properties={"n": 1.5}), 5)
    events: list[Event] = [
        Claim(at_ms=7, deliveries=[Delivered("a", "q", 1, False, 2, 3)], wholes=[whole]),
        COMMIT,
        Ok(op=1),
    ]
    with History(path, now_ms=lambda: 9) as history:
        for event in events:
            history.append(event)
    assert list(read_history(path)) == [*events, End(at_ms=9)]
    assert path.read_bytes().count(b"\n") == 4


def test_an_invocation_survives_the_process_before_the_port_is_called(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.begin(COMMIT)
    history.ok(1)
    assert kinds(path) == ["Commit"]  # the answer is what a kill may take
    history.flush()
    assert kinds(path) == ["Commit", "Ok"]
    history.close()
    assert history.stopped == "the history is closed"


def test_a_line_that_a_dying_process_wrote_half_is_torn_and_the_next_life_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.life(name="one")
    path.write_bytes(path.read_bytes() + b'{"event":"comm')
    assert kinds(path)[-1] == "Torn"
    with History(path) as history:
        history.life(name="two")
    assert kinds(path) == ["Life", "End", "Torn", "Life", "End"]
    assert check(path).counts.torn == 1


def test_damage_that_is_no_torn_line_is_refused_with_its_line() -> None:
    lines = [b'{"event":"life"}', b"\0\0\0", b'{"event":"ok","op":1}']
    with pytest.raises(CorruptRecord, match="line 2"):
        list(parse(lines))
    assert [type(event) for event in parse([lines[0], b"\0\0\0", lines[0]])] == [Life, Torn, Life]


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"event":"nothing"}', b'{"event":"o\xbek"}', b'{"event":"ok","op":"x"}', b"\xff\xfe", b"[" * 9999],
)
def test_bytes_that_are_no_event_never_get_through(line: bytes) -> None:
    assert [type(event) for event in parse([line])] == [Torn]


def test_a_line_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "LINE_BYTES_MAX", 100)
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"x" * 1_000)
    with pytest.raises(TooLarge, match="line 1"):
        list(read_history(path))


def test_a_full_history_says_so_and_lets_the_system_go_on(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path, size_bytes_max=200) as history:
        history.life()
        for _ in range(10):
            history.begin(COMMIT)
        assert "200 bytes" in history.stopped
    *lines, cut = path.read_bytes().splitlines(keepends=True)
    assert kinds(path)[-1] == "Cut" and sum(map(len, lines)) <= 200 and len(cut) < 200
    assert not check(path).ok


def test_the_limit_of_a_history_counts_what_earlier_processes_wrote(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.begin(COMMIT)
    size_bytes = path.stat().st_size
    with History(path, size_bytes_max=size_bytes + 10) as history:
        history.begin(COMMIT)
        assert f"{size_bytes + 10} bytes" in history.stopped
    assert kinds(path) == ["Commit", "End", "Cut"]


def test_a_history_that_cannot_be_written_stops_and_says_why(tmp_path: Path) -> None:
    history = History(Path("/dev/full"))
    history.begin(COMMIT)
    assert "No space left" in history.stopped
    history.begin(COMMIT)
    history.close()


def test_what_could_not_be_written_does_not_follow_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    file: Any = history._file

    def write(data: bytes) -> int:
        history._file = file  # the next one can be
        raise OSError("no space left")

    history._file = cast(Any, SimpleNamespace(write=write))
    history.begin(COMMIT)
    history.close()
    assert kinds(path) == ["Cut"]


def test_each_answer_is_recorded_as_what_it_is() -> None:
    history = History(now_ms=lambda: 5)
    history.ok(1)
    history.fail(2, "lost")
    history.unknown(3, "timeout")
    assert list(history.events()) == [
        Ok(op=1, at_ms=5),
        Fail(op=2, why="lost", at_ms=5),
        Unknown(op=3, why="timeout", at_ms=5),
    ]


def test_a_history_in_memory_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MEMORY_BYTES_MAX", 100)
    history = History()
    for _ in range(10):
        history.begin(COMMIT)
    assert "100 bytes" in history.stopped and [type(event) for event in history.events()][-1] is Cut


def test_a_write_that_the_disk_takes_in_parts_leaves_out_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    file: Any = history._file
    history._file = cast(Any, SimpleNamespace(write=lambda data: file.write(data[:7]), close=file.close))
    history.begin(COMMIT)
    history.ok(1)
    history.close()
    assert kinds(path) == ["Commit", "Ok", "End"]


def test_the_buffer_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path, buffer_bytes_max=1_000)
    for n in range(100):
        history.append(Ok(op=n))
    assert path.stat().st_size > 1_000
    history.close()


def test_a_history_in_memory_is_judged_as_one_in_a_file() -> None:
    history = History()
    history.life(is_empty=True)
    history.begin(COMMIT)
    history.ok(1)
    assert [type(event) for event in history.events()] == [Life, Commit, Ok]
    history.quiesce([])
    assert check(history).ok


def test_a_history_holds_digests_and_no_payload() -> None:
    assert digest_of(Message(body=b"1", type="A")) == digest_of(Message(body=b"1", type="A", message_id="copy"))
    different = [Message(body=b"1", type="B"), Message(body=b"2", type="A"), Message(body=b"1", type="A", claim="c")]
    assert len({digest_of(message) for message in (Message(body=b"1", type="A"), *different)}) == 4


def test_a_cut_is_the_last_word() -> None:
    assert not check([Life(), Cut(why="full")]).ok
