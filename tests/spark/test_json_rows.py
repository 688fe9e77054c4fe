"""JSON lines: one object a line, each key once, every value as it is written."""

from __future__ import annotations

import json

import pytest

from outbox.errors import Refused
from spark_jobs.reading.json_rows import check_head, fields_of, objects
from spark_jobs.reading.lexer import Records


def reason(line: bytes) -> str:
    """Why a line is no row; empty where it is one."""
    found = objects(Records([line], [7]))
    assert len(found.values) + len(found.broken) == 1 and [row.line for row in found.broken] in ([], [7])
    return found.broken[0].reason if found.broken else ""


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1,"a":2}', b'{ "a" : 1 , "b" : 2 , "a" : 1 }', b'{"a":"x","\\u0061":"x"}', b'{"a":{"b":1,"b":1}}',
        b'{"a":[{"b":1,"b":1}]}', b'{"":1,"":2}', b'{"a":"\\"","b":2,"a":3}',
    ],
)  # fmt: skip
def test_a_key_that_comes_twice_is_found(line: bytes) -> None:
    assert "comes twice" in reason(line)


@pytest.mark.parametrize(
    "line", [b'{"a\\"b":1}', b'{"a":"\\"\\""}', b'{"a":{"x\\"":"\\""},"b":"\\\\"}', b'{"a":1 , "b":2}']
)
def test_quotes_that_are_escaped_make_no_key_twice(line: bytes) -> None:
    assert reason(line) == ""


@pytest.mark.parametrize("line", [b'{"a":"\xff"}', b'{"\xff":1}', b'{"a":{"b":"\xc3"}}', b'{"a":"\xed\xa0\x80"}'])
def test_bytes_that_are_no_text_are_no_row(line: bytes) -> None:
    assert reason(line).startswith("bad-encoding: byte ")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"a":1} {"a":2}', "something behind the object"), (b'{"a":1}x', "something behind the object"),
        (b'[{"a":1}]', "got `array`"), (b'"a"', "got `str`"), (b"{'a':1}", "not one JSON object"),
        (b'{"a":NaN}', "not one JSON object"), (b'{"a":1,}', "not one JSON object"),
        (b'{"a":01}', "not one JSON object"),
        (b'{"a":+1}', "not one JSON object"), (b'{"a":.5}', "not one JSON object"),
        (b'{"a":"\t"}', "not one JSON object"),
        (b'{"a":"\\x"}', "not one JSON object"), (b'{"a"', "cut off"), (b'{"a":"\\ud800"}', "half of a surrogate pair"),
        (b'{"a":["\\ud800"]}', "half of a surrogate pair"), (b'{"a":1e400}', "beyond what a double holds"),
        (b'{"a":[-1e400]}', "beyond what a double holds"), (b'{"a":' + b"9" * 400 + b"}", "beyond what a double holds"),
        (b'{"a":' + b"[" * 100_000, "without end"), (b'{"a":' + b'{"b":' * 5_000 + b"1" + b"}" * 5_001, "without end"),
    ],
)  # fmt: skip
def test_what_is_not_one_object_is_told_as_such(line: bytes, told: str) -> None:
    assert reason(line).startswith("malformed-row: ") and told in reason(line)


def test_a_row_is_written_in_one_way() -> None:
    one = fields_of(b'{"b":{"y":[1.0,null,{"d":null,"c":"\\u00e9\\/"}],"x":-0},"n":null,"a":"\\u0041\\n","t":true}')
    other = fields_of('{ "t" : true, "a":"A\\n" , "b": {"x" : -0, "z":null, "y":[ 1.0,null,{"c":"é/"} ]} }'.encode())
    assert one == other == {"a": b'"A\\n"', "b": '{"x":-0,"y":[1.0,null,{"c":"é/"}]}'.encode(), "t": b"true"}


def test_numbers_stay_as_they_are_written() -> None:
    for text in ("9007199254740993", "0.50", "1E5", "-0", "1e-400", "123456789012345678901234567890", "1.0e+2"):
        assert fields_of(f'{{"n":{text},"in":[{text}]}}'.encode()) == {"n": text.encode(), "in": f"[{text}]".encode()}


def test_the_first_line_tells_a_file_that_is_none_of_lines() -> None:
    for head in (b'{"a":1}\n', b"", b"\xef\xbb\xbf{}", b"junk", b'{"a":\n'):
        check_head(head, "in.json")
    for head in (
        b"[",
        b" \n[1]",
        b'{\n"a":1}',
        b'{ \r\n "a":1}',
        b"\xef\xbb\xbf[",
        json.dumps([{}], indent=1).encode(),
    ):
        with pytest.raises(Refused, match="feed takes one object a line"):
            check_head(head, "in.json")
