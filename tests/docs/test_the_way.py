"""The files that the page says are to be read lie on the way of a message, in this order; the pictures can be made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.docs.the_way import PAGE, to_read
from tools.arrows import layers, picture
from tools.way import SCOPES, way

FILES_MAX = {"engine": 5, "partition": 6, "item": 6, "http": 7}


@pytest.mark.parametrize("scope", SCOPES)
def test_the_files_to_read_lie_on_the_way_in_this_order(scope: str) -> None:
    named = to_read(PAGE.read_text())[scope]
    met = asyncio.run(way(scope))
    assert [file for file in met if file in named] == named
    assert 0 < len(named) <= FILES_MAX[scope]


def test_a_layer_is_above_all_that_its_modules_import() -> None:
    assert layers({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}) == [["c"], ["b", "d"], ["a"]]


def test_the_picture_shows_what_a_package_imports_within_itself(tmp_path: Path) -> None:
    (tmp_path / "outbox/room").mkdir(parents=True)
    for name, content in {"low": "import outbox.elsewhere", "high": "from outbox.room import low"}.items():
        (tmp_path / f"outbox/room/{name}.py").write_text(content)
    assert picture(tmp_path, "outbox.room") == "outbox.room: 2 files, 1 arrows, 2 layers\n  2  high\n  1  low"
