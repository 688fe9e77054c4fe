"""The command line on a folder that no host holds: answers, exit codes, and one clear line where it refuses."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from select import PIPE_BUF
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.log import records
from outbox.engine.log.closed import CLOSED_NAME
from outbox.engine.state.documents import STATES
from outbox.errors import Refused
from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ops.cli.hosts import LogFormatter
from outbox.ops.cli.parser import main
from outbox.ops.dead_letters import command as dead_letters_command
from outbox.ops.dead_letters import groups as dead_letters
from outbox.ops.messages import engine as engine_messages
from outbox.ops.shared import asking, text
from outbox.ops.shared.asking import AZURE_OPTIONS
from outbox.ops.shared.loading import load
from outbox.ops.shared.piped import write_piece
from outbox.ops.states import command as states_command
from outbox.testing import Harness

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(disk_path: Path) -> Path:
    """A folder with two queues, one message and one dead letter."""
    engine = Engine.open(disk_path)
    engine.declare(QueueSettings("transfers"), QueueSettings("ledger", ordering="per_key"))
    engine.broker.send(
        "transfers", [Message(body=b"{}", outbox_id="bad", type="T"), Message(body=b"[1]", outbox_id="m1")]
    )
    engine.broker.settle(
        engine.broker.claim("transfers", 1)[0].token, Settlement.DEAD_LETTER, reason="no\x1b[31m", description="d"
    )
    engine.close()
    return disk_path


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command on the folder: exit code, stdout, stderr."""

    def run(*arguments: str, data: bool = True) -> tuple[int, str, str]:
        try:
            code = main([*arguments, *(["--data", str(folder)] if data else [])])
        except SystemExit as left:
            code = int(left.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bytes], None]:
    """Put bytes on stdin."""

    def put(data: bytes) -> None:
        file = tmp_path / "stdin"
        file.write_bytes(data)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file.open("rb")))

    return put


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--data", "a", "--data", "b"),
        ("status", "--data=a", "--data=b"),
        ("run", "shop:app", "--data", "a", "--data", "b"),
        ("emulator", "--data", "a", "--data", "b"),
        *[("status", f"--{name}", "a", f"--{name}", "b") for name in AZURE_OPTIONS],
        ("stream", "list", "--blob-states", "a", "--blobs", "x", "--blob-states", "b"),
    ],
)
def test_two_places_under_one_option_are_a_usage_error(cli: Cli, arguments: tuple[str, ...]) -> None:
    code, out, err = cli(*arguments, data=False)
    assert (code, out) == (2, "") and "stands twice, with two values; keep one" in err


def test_one_place_that_is_named_twice_is_one(cli: Cli, folder: Path) -> None:
    assert cli("status", "--json", "--data", str(folder))[0] == 0


def test_send_prints_the_id_and_the_message_is_there_at_the_next_command(cli: Cli) -> None:
    assert cli("send", "transfers", '{"a": 1}', "--id", "t1")[:2] == (0, "sent t1 to transfers\n")
    assert json.loads(cli("status", "--json")[1])["queues"]["transfers"]["active"] == 2


def test_send_says_where_no_application_can_have_checked_the_message(
    cli: Cli, folder: Path, stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    unchecked = "outbox: no host runs on this folder, so no application has checked this"
    assert cli("send", "transfers", "1")[2].startswith(unchecked)
    stdin(b'{"id": "a", "body": 1}')
    assert cli("send", "transfers", "-")[2].count(unchecked) == 1
    assert cli("send", "nope", "1")[2].startswith("outbox: 'nope' does not exist")
    entry = '{"account": "ann", "amount": 1}'
    assert cli("send", "ledger", entry, "--id", "e1", "--app", "tests.unit.ops.conftest:app")[::2] == (0, "")
    monkeypatch.setattr("outbox.ops.shared.control_file.is_held", lambda path: path == folder)
    assert cli("send", "transfers", "1")[2] == ""


@pytest.mark.parametrize("when", [("--in", "90min"), ("--at", "2096-10-02T09:06:40+02:00")])
@pytest.mark.parametrize("body", ["1", "-"])
def test_what_is_sent_for_later_is_scheduled(
    cli: Cli, stdin: Callable[[bytes], None], when: tuple[str, str], body: str
) -> None:
    stdin(b'{"id": "t1", "body": 1}\n{"id": "t2", "body": 1}')
    began_s = time.time()
    code, out, _ = cli("send", "transfers", body, *when)
    [due] = re.findall(r"to transfers, due at (\S+Z)\n", out)
    views = json.loads(cli("schedule", "list", "transfers", "--json")[1])["messages"]
    assert code == 0 and len(views) == (2 if body == "-" else 1)
    assert {view["due"] for view in views} == {view["created"] for view in views}, "its retention begins then"
    found_s = views[0]["due"]
    assert due == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found_s))
    if when[0] == "--in":
        assert began_s + 5_400 <= found_s + 0.001 <= time.time() + 5_401
    else:
        assert (found_s, due) == (4_000_000_000, "2096-10-02T07:06:40Z")


def test_what_is_scheduled_anywhere_is_listed_by_due_time(cli: Cli) -> None:
    for id, when in (("t3", "3h"), ("t1", "1h"), ("t2", "2h")):
        assert cli("send", "transfers", "1", "--id", id, "--in", when)[0] == 0
    queue, _, *rows = cli("schedule", "list")[1].splitlines()
    assert (queue, [row.split()[1] for row in rows]) == ("transfers:", ["t1", "t2", "t3"])


def test_of_messages_of_one_id_those_behind_a_number_are_shown_cancelled_and_made_due(cli: Cli) -> None:
    for _ in range(4):
        assert cli("send", "transfers", "1", "--id", "twin", "--in", "1h")[0] == 0
    numbers = [view["sequence"] for view in json.loads(cli("schedule", "list", "transfers", "--json")[1])["messages"]]
    third, last = f"{numbers[1]}", f"{numbers[2]}"
    shown = json.loads(cli("message", "show", "twin", "--queue", "transfers", "--after", third, "--json")[1])
    assert [each["message"]["sequence"] for each in shown] == numbers[2:]
    assert json.loads(cli("schedule", "now", "transfers", "twin", "--after", last, "--json")[1])["count"] == 1
    assert json.loads(cli("schedule", "cancel", "transfers", "twin", "--after", third, "--json")[1])["count"] == 1
    left = json.loads(cli("schedule", "list", "transfers", "--json")[1])["messages"]
    assert [view["sequence"] for view in left] == numbers[:2]


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine far from Greenwich."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_times_are_read_and_shown_in_utc() -> None:
    assert asking.instant("2026-01-31T12:00:00") == asking.instant("2026-01-31T12:00:00Z") == 1_769_860_800
    assert text.utc(1_769_860_800) == "2026-01-31T12:00:00Z"


def test_a_long_text_is_cut_to_just_its_length() -> None:
    assert [len(text.shortened("x" * count, 60)) for count in (59, 60, 61)] == [59, 60, 60]


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_pipe_gets_every_byte(more: int) -> None:
    piece = bytes(range(256)) * (PIPE_BUF // 256) + b"x" * more
    read, write = os.pipe()
    with open(read, "rb") as reader, open(write, "wb") as writer:  # noqa: PTH123  # a descriptor has no path
        asyncio.run(write_piece(writer, piece))
        writer.close()
        assert reader.read() == piece


def test_a_part_of_a_module_is_loaded_by_its_dotted_name() -> None:
    assert load("outbox.testing:Harness.send") is Harness.send
    assert load("outbox.testing:Harness.none.send") is None


def test_what_was_due_before_is_taken_now(cli: Cli) -> None:
    assert cli("send", "transfers", "1", "--at", "2020-01-01")[0] == 0
    assert "nothing of that kind" in cli("schedule", "list", "transfers")[1]


def test_a_message_without_id_gets_a_fresh_one_each_time(cli: Cli) -> None:
    found = [json.loads(cli("send", "transfers", "1", "--json")[1])["ids"][0] for _ in range(2)]
    assert found[0] != found[1]


def test_status_has_the_shape_that_scripts_rely_on(cli: Cli) -> None:
    found = json.loads(cli("status", "--json")[1])
    oldest_s = found["queues"]["transfers"].pop("oldest_s")
    none = {"active": 0, "scheduled": 0, "deferred": 0, "dead_letters": 0, "received": 0, "standing": 0}
    none |= {"paused": False, "retrying": 0}
    empty, transfers = {**none, "oldest_s": None}, {**none, "active": 1, "dead_letters": 1, "received": 2}
    assert found == {"queues": {"ledger": empty, "transfers": transfers}, "pending": 0} and 0 <= oldest_s < 60


def test_a_state_that_is_not_there_is_null(cli: Cli, folder: Path) -> None:
    put_state(folder, "Account:bob")
    assert cli("state", "Account", "alice", "--json") == (0, "null\n", "")
    assert cli("state", "Account", "-5", "--int") == (0, "Account -5: none\n", "")
    assert cli("state", "Account", "x", "--uuid")[0] == 1


@pytest.mark.parametrize(
    "command", [["state", "Acount", "bob"], ["state", "Acount", "bob", "--json"], ["export", "--type", "Acount"]]
)
def test_of_a_type_that_no_state_has_it_says_which_there_are(cli: Cli, folder: Path, command: list[str]) -> None:
    hint = "no state is of type 'Acount'; there are: "
    assert cli(*command) == (1, "", f"outbox: {hint}none yet. Check the spelling\n")
    put_state(folder, "Account:bob", "bank.Branch:i.5")
    assert cli(*command) == (1, "", f"outbox: {hint}Account, bank.Branch. Check the spelling\n")


def test_dead_letters_are_listed_shown_resubmitted_and_discarded(cli: Cli) -> None:
    assert [dead_letter["id"] for dead_letter in json.loads(cli("dead-letters", "list", "transfers", "--json")[1])] == [
        "bad"
    ]
    shown = json.loads(cli("dead-letters", "show", "transfers", "bad", "--json")[1])
    assert (shown["body"], shown["type"], shown["description"]) == ({}, "T", "d")
    assert cli("dead-letters", "resubmit", "transfers", "bad")[:2] == (0, "resubmitted 1 of transfers\n")
    assert cli("dead-letters", "list", "transfers")[1] == "transfers has no dead letters\n"
    assert json.loads(cli("dead-letters", "discard", "transfers", "--all", "--json")[1]) == {"count": 0, "in_hand": 0}


def test_a_dead_letter_is_edited_from_a_file_or_stdin(
    cli: Cli, folder: Path, tmp_path: Path, stdin: Callable[[bytes], None]
) -> None:
    file = tmp_path / "body.json"
    file.write_bytes(b'{ "to": "bob" }\n')
    command = ("dead-letters", "resubmit", "transfers")
    assert cli(*command, "bad", "--body", str(file))[:2] == (0, "edited and resubmitted 1 of transfers\n")
    engine = Engine.open(folder)
    (claim,) = [claim for claim in engine.broker.claim("transfers", 9) if claim.message.identity == "bad"]
    assert claim.message.body == b'{"to":"bob"}' and claim.message.replaces == fingerprint(b"{}", "T")
    engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no", description="d")
    engine.close()
    stdin(b'{"to": "eve"}')
    assert cli(*command, "bad", "--body", "-")[0] == 0


def test_what_cannot_be_the_body_of_an_edit_is_refused(
    cli: Cli, tmp_path: Path, stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "body.json"
    command = ("dead-letters", "resubmit", "transfers")
    file.write_bytes(b"{")
    assert "the body of message bad is not JSON" in cli(*command, "bad", "--body", str(file))[2]
    stdin(b" \n")
    assert "stdin is empty; give the whole body" in cli(*command, "bad", "--body", "-")[2]
    monkeypatch.setattr(dead_letters_command, "EDIT_BYTES_MAX", 10)
    file.write_bytes(b'{"a": "bcdefgh"}')
    assert "is over 10 bytes" in cli(*command, "bad", "--body", str(file))[2]
    assert cli(*command, "bad", "--body", str(tmp_path / "none"))[0] == 1
    for which in (["--all"], ["--reason", "no"], []):
        code, _, err = cli(*command, *which, "--body", str(file))
        assert code == 2 and "--body is for one dead letter: name its ID" in err
    assert "bad" in cli("dead-letters", "list", "transfers")[1]


def test_a_command_says_which_id_a_short_one_meant(cli: Cli, folder: Path) -> None:
    engine = Engine.open(folder)
    engine.broker.send("ledger", [Message(body=b"{}", outbox_id="order-\x1b[31m", session_id="k")])
    engine.broker.settle(engine.broker.claim("ledger", 1)[0].token, Settlement.DEAD_LETTER, reason="r", description="d")
    engine.close()
    assert cli("dead-letters", "discard", "ledger", "order")[:2] == (0, "discarded 1 of ledger: 'order-\\x1b[31m'\n")


def test_a_dead_letter_of_an_unknown_type_has_a_dash_for_it(cli: Cli, folder: Path) -> None:
    engine = Engine.open(folder)
    engine.broker.settle(
        engine.broker.claim("transfers", 1)[0].token, Settlement.DEAD_LETTER, reason="why", description="d"
    )
    engine.close()
    lines = cli("dead-letters", "list", "transfers")[1].splitlines()
    assert [line.split()[2] for line in lines] == ["type", "T", "-"]


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (["send", "nope", "{}"], "there are: ledger, transfers"),
        (["send", "transfers", "{a}"], "is not JSON"),
        (["send", "transfers", "\udcff"], "is not UTF-8"),
        (["send", "ledger", "{}"], "give --key"),
        (["dead-letters", "show", "transfers", "x"], "list them to see what is there"),
        (["dead-letters", "list", "x"], "Check the spelling"),
        (["log", "salvage", "--into", "."], "salvage into an empty or new folder"),
    ],
)
def test_a_refusal_is_one_line_with_the_cure_and_exit_code_1(cli: Cli, arguments: list[str], cure: str) -> None:
    code, out, err = cli(*arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("outbox: ") and cure in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["send", "q"],
        ["send", "q", "{}", "--created", "-1"],
        ["send", "q", "{}", "--created", "nan"],
        ["send", "q", "{}", "--id", ""],
        ["send", "q", "{}", "--at", "tomorrow"],
        ["stream", "read", "log", "--since", "1." + "9" * 7],
        ["stream", "read", "log", "--since", "9" * 16],
        ["send", "q", "{}", "--at", "1969-01-01"],
        ["send", "q", "{}", "--at", "9999-12-31"],
        ["send", "q", "{}", "--at", "2096-10-02", "--in", "5min"],
        ["send", "q", "{}", "--id-field", "x"],
        ["send", "q", "-", "--id", "x"],
        ["state", "T", "k", "--int", "--uuid"],
        ["dead-letters"],
        ["dead-letters", "discard", "q"],
        ["dead-letters", "discard", "q", "x", "--all"],
        ["dead-letters", "discard", "q", "--all", "--sequence", "1"],
        ["dead-letters", "show", "q"],
        ["run", "bank"],
        ["run", ":app"],
        ["run", "bank:app", "--amqp-port", "70000"],
        ["run", "bank:app", "--workers", "0"],
        ["run", "bank:app", "--sync", "sometimes"],
        ["run", "bank:app", "--http", "70000"],
        ["log", "salvage"],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(cli: Cli, arguments: list[str]) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "") and "usage: outbox" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["statsu"], "(did you mean 'status' or 'state'?)"),
        (["dead-letter", "list"], "(did you mean 'dead-letters'?)"),
        (["queue", "PEK", "orders"], "(did you mean 'peek'?)"),
        (["queue", "peek", "orders", "--state", "schedule"], "(did you mean 'scheduled'?)"),
    ],
)
def test_a_misspelt_command_verb_or_choice_is_named_with_what_is_near(
    arguments: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(near)
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "line", "error"),
    [
        ("from outbox import App\n\napp = App('x', retention=1, margin='soon')\n", 3, "TypeError"),
        ("import json\n\n\njson.loads('{')\n", 4, "JSONDecodeError"),
        ("from outbox import App\n\napp = App('x'\n", 3, "SyntaxError"),
    ],
)
def test_an_application_that_fails_is_refused_with_its_own_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, line: int, error: str
) -> None:
    module = f"failing_{error.lower()}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("run", f"{module}:app")
    assert (code, out) == (1, "") and f"failed at {tmp_path / module}.py:{line}: {error}: " in err


@pytest.mark.parametrize("app", ["nowhere:app", "json:dumps", "json:missing"])
def test_an_application_that_is_none_is_refused(cli: Cli, app: str) -> None:
    code, out, err = cli("run", app)
    assert (code, out) == (1, "") and err.startswith("outbox: ") and "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [
        *(["status"], ["send", "q", "{}"], ["log", "inspect"], ["log", "compact"], ["log", "compact", "--sealed"]),
        *(["log", "salvage", "--into", "new"], ["emulator", "--amqp-port", "0"]),
    ],
    ids=" ".join,
)
def test_a_file_in_place_of_the_folder_is_refused_in_words(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").write_text("notes")
    code, out, err = cli(*command, "--data", "afile", data=False)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert err.startswith("outbox: afile: is a file, and the engine's log is a folder; ") and "Errno" not in err
    assert [file.name for file in tmp_path.iterdir()] == ["afile"] and Path("afile").read_text() == "notes"


def test_a_folder_below_a_file_is_refused_in_words(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    code, _, err = cli("emulator", "--amqp-port", "0", "--data", str(tmp_path / "afile" / "below"), data=False)
    assert code == 1 and f"outbox: {tmp_path / 'afile'}: is a file" in err
    code, _, err = cli("log", "salvage", "--into", str(tmp_path / "afile" / "below"))
    assert code == 1 and f"outbox: {tmp_path / 'afile'}: is a file" in err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["emulator", "--amqp-port", "none"], "an emulator of nothing"),
        (["emulator", "--amqp-port", "abc"], "'abc' is no whole number"),
        (["send", "q", "{}", "--created", "yesterday"], "'yesterday' is no number"),
        (["queue", "peek", "q", "--limit", "many"], "'many' is no whole number"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_is_no_number_or_leaves_nothing_to_do_is_said_in_words(
    capsys: pytest.CaptureFixture[str], command: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 2 and said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("dead-letters", "resubmit", "orders", "o1", "--body", str(tmp_path / "none.json"))
    assert (
        code == 1 and f"outbox: {tmp_path / 'none.json'}: No such file or directory; look" in err and "Errno" not in err
    )


def test_lines_of_stdin_are_messages(cli: Cli, stdin: Any, folder: Path) -> None:
    stdin(
        b'{"id": "a", "body": {"x": 1}, "key": "k", "created": 3}\n\n{"id": 5, "body": [2], "type": "Other", "key": 7}'
    )
    code, out, _ = cli("send", "ledger", "-", "--type", "T", "--json")
    assert (code, json.loads(out)) == (0, {"queue": "ledger", "count": 2, "ids": ["a", "5"]})
    found = [(m.identity, m.type, m.session_id, m.body) for m in messages(folder, "ledger")]
    assert found == [("a", "T", "k", b'{"x":1}'), ("5", "Other", "7", b"[2]")]


def test_plain_bodies_carry_their_id_and_key_in_fields(cli: Cli, stdin: Any, folder: Path) -> None:
    stdin(b"".join(b'{"id": %d, "who": "w%d"}\n' % (n, n % 3) for n in range(1_234)))
    assert cli("send", "ledger", "-", "--id-field", "id", "--key-field", "who")[:2] == (
        0,
        "sent 1234 messages to ledger\n",
    )
    found = messages(folder, "ledger")
    assert [m.identity for m in found] == [str(n) for n in range(1_234)]
    assert found[4].session_id == "w1" and found[4].body == b'{"id":4,"who":"w1"}'


@pytest.mark.parametrize(
    "bad", [b"{", b'{"id": "x"}', b'{"id": true, "body": 1}', b'{"body": 1}', b'{"id":"\xff","body":1}']
)
def test_a_bad_line_is_named_and_what_stands_before_it_is_sent(cli: Cli, stdin: Any, folder: Path, bad: bytes) -> None:
    stdin(b'{"id": "a", "body": 1}\n' + bad + b'\n{"id": "b", "body": 1}\n')
    code, _, err = cli("send", "transfers", "-")
    assert code == 1 and "line 2: " in err and "1 message was sent before" in err and err.count("\n") == 1
    assert [m.identity for m in messages(folder, "transfers")][-1] == "a"


def test_a_field_that_is_no_id_is_refused(cli: Cli, stdin: Any) -> None:
    for line in (b"[1]", b'{"id": 1.5}', b'{"id": null}', b'{"id": true}', b'{"id": ""}', b'{"no": 1}'):
        stdin(line)
        assert cli("send", "transfers", "-", "--id-field", "id")[0] == 1


def test_the_log_is_inspected_compacted_and_salvaged(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (folder / "blobs").mkdir(exist_ok=True)
    (folder / "blobs" / "x.blob").write_bytes(b"blob")
    assert len(json.loads(cli("log", "inspect", "--json")[1])["segments"]) == 1
    assert json.loads(cli("log", "compact", "--json")[1])["ordinal"] > 0
    code, out, _ = cli("log", "salvage", "--into", str(tmp_path / "saved"))
    assert code == 0 and "copied" in out
    assert [m.identity for m in messages(tmp_path / "saved", "transfers")] == ["m1"]
    assert (tmp_path / "saved" / "blobs" / "x.blob").read_bytes() == b"blob"


def test_a_closed_folder_that_was_cut_is_refused_and_one_copied_without_its_mark_opens(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    newest = max(folder.glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-4_200])
    code, _, err = cli("status")
    assert code == 1 and "the log was closed at ordinal" in err and "outbox log salvage" in err
    found = json.loads(cli("log", "inspect", "--json")[1])
    assert found["closed"] == found["durable"] and found["missing"][-1][-1] == found["closed"]
    code, out, _ = cli("log", "salvage", "--into", str(tmp_path / "saved"))
    assert code == 0 and "lost: ordinals" in out
    (folder / CLOSED_NAME).unlink()
    assert cli("status")[0] == 0


def test_export_writes_a_file_only_when_it_is_whole(cli: Cli, tmp_path: Path) -> None:
    assert cli("export", "--output", str(tmp_path / "e"), "--json")[0] == 0
    assert [file.name for file in tmp_path.iterdir()] == ["e"]
    assert cli("export") == (0, "", "")


def test_bench_measures_in_the_current_folder_and_leaves_nothing_there(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "outbox", "bench", "--messages", "50", "--repeats", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (0, []), done.stderr
    assert "outbox" in done.stdout and "sqlite" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom outbox.ops.cli.parser import make_parser\nmake_parser().format_help()\n"
        "print([m for m in ('asyncio', 'aiohttp', 'outbox.engine.engine', 'outbox.worker') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "[]\n"


def put_state(folder: Path, *ids: str) -> None:
    engine = Engine.open(folder, compact=False)
    engine.documents.modify(records.Modify(documents=[records.DocWrite(STATES, id, b"{}", 0, 0, 1) for id in ids]))
    engine.close()


def messages(folder: Path, queue: str) -> list[Message]:
    engine = Engine.open(folder, compact=False)
    try:
        return [task.message for task in engine.broker.peek(queue, 0, 10_000)]
    finally:
        engine.close()


# What peers chose


def test_names_and_texts_of_peers_reach_no_terminal_as_they_are(cli: Cli, disk_path: Path) -> None:
    """A line feed makes no line of its own, and nothing that a terminal obeys is printed."""
    queue, text = "q\x1b[2J\nouch", "\x9b2J\u202e\U000e0001"
    engine = Engine.open(disk_path)
    engine.declare(QueueSettings(queue))
    engine.broker.send(queue, [Message(outbox_id=text, body=text.encode())])
    [claim] = engine.broker.claim(queue, 1)
    engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason=text, description=text)
    engine.close()
    for arguments in (["status"], ["dead-letters", "list", queue], ["dead-letters", "show", queue, text]):
        code, out, _ = cli(*arguments)
        assert code == 0 and "\nouch" not in out and out.replace("\n", "").isprintable()
    shown = json.loads(cli("dead-letters", "show", queue, text)[1])
    assert (shown["id"], shown["reason"], shown["body_text"]) == (text, text, text)
    code, _, said = cli("send", "nowhere", "{}", "--id", "x")
    assert code == 1 and "ouch" in said and said[:-1].isprintable()


def test_a_line_of_the_log_stays_one_line() -> None:
    record = logging.makeLogRecord({"msg": "%s: 1 messages", "args": ("q\n2026 ERROR\x1b[2J",), "id": "a\nb"})
    assert LogFormatter("%(message)s").format(record) == "q\\n2026 ERROR\\x1b[2J: 1 messages id=a\\nb"


def test_every_page_of_dead_letters_is_listed(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.open(folder)
    engine.broker.send("transfers", [Message(body=b"{}", outbox_id=f"b{n}") for n in range(4)])
    for claim in engine.broker.claim("transfers", 10):
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no")
    engine.close()
    monkeypatch.setattr(dead_letters, "BATCH_COUNT_MAX", 2)
    monkeypatch.setattr(engine_messages, "BATCH_COUNT_MAX", 2)
    code, out, _ = cli("dead-letters", "list", "transfers", "--json")
    assert code == 0
    assert sorted(one["id"] for one in json.loads(out)) == ["b0", "b1", "b2", "b3", "bad", "m1"]


class Breaking:
    """An operator whose export breaks off."""

    async def stream(self, type: str) -> AsyncIterator[bytes]:
        yield b'{"key":"a"}\n'
        raise Refused("the host broke off the export")


def test_an_export_that_breaks_off_leaves_the_file_of_the_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @asynccontextmanager
    async def connected(options: Any) -> AsyncIterator[Breaking]:
        yield Breaking()

    monkeypatch.setattr(asking, "connected", connected)
    output = tmp_path / "states.jsonl"
    output.write_bytes(b"the last one\n")
    with pytest.raises(Refused, match="broke off"):
        states_command.export(argparse.Namespace(action="export", output=output, type="", json=False))
    assert output.read_bytes() == b"the last one\n"
