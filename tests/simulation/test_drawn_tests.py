"""Which of the long tests a tree runs: all are there, and about a quarter is drawn."""

from __future__ import annotations

import ast

from tests.drawn_tests import LONG, ONE_OF, TESTS, WHOLE
from tests.simulation.drawn_faults import place_of


def test_every_test_of_the_table_is_there() -> None:
    for file, names in LONG.items():
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        there = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert {f"test_{name}" for name in names} <= there, file


def test_no_file_is_in_the_table_that_is_long_as_a_whole() -> None:
    assert not [file for file in LONG if file.startswith(WHOLE)]


def test_a_tree_has_about_a_quarter_and_another_tree_others() -> None:
    drawn = [
        {number for number in range(1_000) if place_of(f"test[{number}]", tree) % ONE_OF == 0}
        for tree in (b"one", b"two")
    ]
    assert all(200 < len(each) < 300 for each in drawn)
    assert 30 < len(drawn[0] & drawn[1]) < 100
