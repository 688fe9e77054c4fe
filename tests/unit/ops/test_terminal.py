"""What is printed when the work is done: on a terminal of any encoding, with ids to paste and without secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.escape import printable
from outbox.message import Message
from outbox.ops.cli.terminal import show_anything, without_secrets

ID = "bestellung-\N{LATIN SMALL LETTER U WITH DIAERESIS}-\N{SNOWMAN}-\N{GRINNING FACE}"


def with_dead_letter(folder: Path) -> None:
    with closing(Engine.open(folder)) as engine:
        engine.declare(QueueSettings("orders"))
        engine.broker.send("orders", [Message(body=b"{}", outbox_id=ID)])
        [claim] = engine.broker.claim("orders", 1)
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no \N{SNOWMAN}")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_that_cannot_show_an_id_gets_the_answer(disk_path: Path, encoding: str) -> None:
    with_dead_letter(disk_path)

    def outbox(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "outbox", *words, "--data", str(disk_path)]
        root = str(Path(__file__).resolve().parents[3])
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": root}
        return subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)

    listed = outbox("dead-letters", "list", "orders", "--json")
    assert json.loads(listed.stdout.decode(encoding))[0]["id"] == ID and listed.returncode == 0
    done = outbox("dead-letters", "discard", "orders", "best")
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"discarded 1 of orders")
    gone = outbox("dead-letters", "show", "orders", ID)
    assert gone.returncode == 1 and b"has no dead letter" in gone.stderr and b"Traceback" not in gone.stderr


def test_what_an_encoding_lacks_is_escaped_as_in_json() -> None:
    out = TextIOWrapper(BytesIO(), encoding="ascii")
    show_anything(out)
    out.write(json.dumps(ID, ensure_ascii=False))
    out.flush()
    assert json.loads(out.buffer.getvalue()) == ID


@pytest.mark.parametrize(
    "command",
    [
        "outbox dead-letters show orders key=abc",
        "outbox message trace token=abc-1",
        "outbox dead-letters resubmit --data /tmp/x orders 'order key=abc' --sequence 7",
        "outbox message show signature:5 --queue orders --after 7",
        "outbox dead-letters discard orders key=abc",
    ],
)
def test_an_id_in_a_command_to_paste_stays(command: str) -> None:
    for text in (f"it is gone; {command}; or look again", f"it is gone; `{command}` finds it", command):
        assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("the key=abc123 was refused", "abc123"),
        ("outbox message show AccountKey=abc123", "abc123"),
        ("outbox message show 'AccountEndpoint=https://x/;AccountKey=abc123;'", "abc123"),
        ("outbox message show Endpoint=sb://x;SharedAccessKey=abc123", "abc123"),
        ("outbox message show password=abc123", "abc123"),
        ("outbox message show https://x.blob/y?sig=abc123", "abc123"),
        ("outbox message show key=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJhbGci"),
        ("outbox send orders BODY; key=abc123", "abc123"),
        ("\0" + "0\0 outbox message show key=x token=abc123\0", "\0"),
    ],
)
def test_a_secret_does_not_pass_for_an_id(text: str, secret: str) -> None:
    assert secret not in without_secrets(text)


def test_a_text_of_others_stays_on_its_line() -> None:
    assert printable("a\nb\r\x1b[2J\u2028é") == "a\\nb\\r\\x1b[2J\\u2028é"
