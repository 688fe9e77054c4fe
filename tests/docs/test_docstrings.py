"""The lint for first sentences of docstrings finds what a reader would stumble over, and passes plain ones."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tools.docstrings import Finding, docstrings, exceeded, faults_of, findings, first_sentence

FILE = """'''Count things.'''

LIMIT = 3
'''So many at once.'''
print(LIMIT)


class Pile:
    '''A pile.

    What is in it is of no concern here.
    '''

    size: int = 0
    '''What was put on it.'''

    def put(self):
        '''Put one thing on it: what is there already is looked at first.'''
        if self.size:
            'no docstring: what is this'
"""


@pytest.mark.parametrize(
    ("sentence", "faults"),
    [
        ("Format logs and registers, one line a row, with the lag in cells.", []),
        ("Whether a lock is held.", []),
        ("What a call raises.", ["begins with What"]),
        ("Read What is there, as it is.", ["says what is", "says as it is"]),
        ("Somewhat is left.", []),
        (" ".join(["word"] * 20), []),
        (" ".join(["word"] * 21), ["21 words"]),
    ],
)
def test_a_first_sentence_is_short_and_says_the_noun(sentence: str, faults: list[str]) -> None:
    assert faults_of(sentence) == faults


def test_the_first_sentence_ends_at_a_stop_or_a_blank_line() -> None:
    assert first_sentence("\n  Read a\n  line. Then more.") == "Read a line."
    assert first_sentence("Read e.g. one\n\nMore.") == "Read e.g. one"


def test_docstrings_of_modules_classes_functions_and_attributes_are_read(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "pile.py").write_text(FILE)
    assert sorted(line for line, _ in docstrings(ast.parse(FILE))) == [1, 4, 9, 15, 18]
    assert sorted(found.line for found in findings([tmp_path / "pack"], tmp_path)) == [4, 15, 18]
    assert [found.package for found in findings([tmp_path], tmp_path)] == ["pack"] * 3


def test_a_package_may_have_as_many_as_are_left_to_mend() -> None:
    assert Finding("outbox/engine/log/file.py", 1, "", "").package == "outbox/engine"
    assert Finding("outbox/app.py", 1, "", "").package == "outbox"
    assert exceeded(Counter({"outbox": 3, "outbox/engine": 2}), {"outbox": 3, "outbox/runtime": 5}) == [
        "outbox/engine: 2 first sentences to mend, at most 0 may be left"
    ]
