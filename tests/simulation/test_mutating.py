"""The faults that a machine draws: each operator on a small source, and names that outlive moved lines."""

from __future__ import annotations

import ast

import pytest

from tests.simulation.importing import ROOT
from tests.simulation.mutating import edits

FILE = "outbox/a.py"


def body(*lines: str, is_async: bool = False) -> str:
    return "\n".join([f"{'async ' if is_async else ''}def f(x, y):", *(f"    {line}" for line in lines), ""])


def drawn(text: str, operator: str) -> list[str]:
    """The sources that an operator makes, written as the tree has them."""
    made = [edit.applied(text) for edit in edits(FILE, text) if edit.key.operator == operator]
    return [ast.unparse(ast.parse(one)) for one in made]


@pytest.mark.parametrize(
    ("operator", "lines", "becomes"),
    [
        ("statement", ["x.clear()"], [["pass"]]),
        ("statement", ["x = 1", "return x"], [["pass", "return x"]]),
        ("statement", ["z = 1", "return z"], []),
        ("statement", ["x.a += 1"], [["pass"]]),
        ("statement", ["yield"], []),
        ("context", ["with x:  # a: b", "    y()"], [["if True:", "    y()"]]),
        ("context", ["with x as z:", "    z()"], []),
        ("guard", ["if x:", "    return 1"], [["if False:", "    return 1"]]),
        ("guard", ["if x:", "    y()", "else:", "    x()"], []),
        ("not", ["if x:", "    y()", "else:", "    x()"], [["if not x:", "    y()", "else:", "    x()"]]),
        ("not", ["return not x"], [["return x"]]),
        ("operand", ["return x and y or f"], [["return f"], ["return x and y"], ["return y or f"], ["return x or f"]]),
        ("comparison", ["return x < y"], [["return x <= y"]]),
        ("comparison", ["return x <= y"], [["return x < y"]]),
        ("comparison", ["return x > y"], [["return x >= y"]]),
        ("comparison", ["return 0 <= x == y"], [["return 0 < x == y"], ["return 0 <= x != y"]]),
        ("comparison", ["return x is None"], [["return x is not None"]]),
        ("comparison", ["return x not in y"], [["return x in y"]]),
        ("one", ["return x[0]"], [["return x[1]"]]),
        ("one", ["return True"], []),
        ("flag", ["return True"], [["return False"]]),
        ("sign", ["return x + y"], [["return x - y"]]),
        ("sign", ["x += y", "return -x"], [["x -= y", "return -x"], ["x += y", "return x"]]),
        ("sign", ['return x + "a"'], []),
        ("exchange", ["return min(x, y)"], [["return max(x, y)"]]),
        ("exchange", ["return math.ceil(x)"], [["return math.floor(x)"]]),
        ("exchange", ["return any(x)"], [["return all(x)"]]),
        ("empty", ['return "a", b"b"'], [["return ()"], ["return ('', b'b')"], ["return ('a', b'')"]]),
        ("empty", ["return [x], {1}, {}"], [["return ()"], ["return ([], {1}, {})"], ["return ([x], set(), {})"]]),
        ("empty", ['return f"a{x}"'], [["return ''"]]),
        ("argument", ["return f(x, y=x)"], [["return f(x)"]]),
        ("return", ["return x"], [["return None"]]),
        ("return", ["return None"], []),
        ("flow", ["for z in x:", "    continue"], [["for z in x:", "    break"]]),
        ("flow", ["for z in x:", "    break"], [["for z in x:", "    continue"]]),
        ("flow", ["for z in x:", "    return 1"], [["for z in x:", "    continue"]]),
        ("flow", ["for z in x:", "    pass", "else:", "    return 1"], []),
        ("filter", ["return [z for z in x if z]"], [["return [z for z in x if True]"]]),
        ("swallowed", ["try:", "    x()", "except A:", "    raise"], [["try:", "    x()", "except A:", "    pass"]]),
        ("swallowed", ["raise x"], []),
        ("widened", ["try:", "    x()", "except A:", "    y()"],
         [["try:", "    x()", "except Exception:", "    y()"]]),
        ("widened", ["try:", "    x()", "except Exception:", "    y()"], []),
        ("uncaught", ["try:", "    x()", "except A:", "    y()"], [["try:", "    x()", "except ():", "    y()"]]),
    ],
)  # fmt: skip
def test_an_operator_makes_these_and_no_others(operator: str, lines: list[str], becomes: list[list[str]]) -> None:
    expected = [ast.unparse(ast.parse(body(*changed))) for changed in becomes]
    assert drawn(body(*lines), operator) == expected


def test_an_await_is_deleted_and_a_statement_of_one_as_a_whole() -> None:
    text = body("return await x", is_async=True)
    assert drawn(text, "await") == [ast.unparse(ast.parse(body("return x", is_async=True)))]
    text = body("await x()", is_async=True)
    assert drawn(text, "await") == []
    assert drawn(text, "statement") == [ast.unparse(ast.parse(body("pass", is_async=True)))]


def test_texts_for_people_annotations_and_exports_are_left_as_they_are() -> None:
    text = '''"""A module."""
__all__ = ["f"]
if TYPE_CHECKING:
    limit = 3

class A:
    """A class."""
    field: dict[str, Literal["a", 1]]
    """A field."""

def f(x: Literal["a"]) -> "A":
    """A function."""
    raise ValueError(f"no {x}", "a text", 1)
'''
    assert edits(FILE, text) == []
    assert {edit.key.operator for edit in edits(FILE, body('log.info("a text", 1)'))} == {"statement"}


def test_what_a_module_and_a_class_hold_is_drawn_with_defaults_and_decorators() -> None:
    text = "LIMIT = 3\n\nclass A:\n    size: int = 4\n\n    @cache(5)\n    def f(self, x=6):\n        return 7\n"
    found = [(edit.key.function, edit.new) for edit in edits(FILE, text) if edit.key.operator == "one"]
    assert found == [("module", b"4"), ("A", b"5"), ("A", b"6"), ("A.f", b"7"), ("A.f", b"8")]


def test_a_fault_is_known_by_the_same_name_when_lines_move() -> None:
    text = body("if x < y or y < x:", "    return x + 1", "z = x + 1")
    moved = "import os\n\n\n" + text.replace("    z = x", "    other()\n\n    z = x")
    names = [str(edit.key) for edit in edits(FILE, text)]
    assert len(set(names)) == len(names)
    assert set(names) < {str(edit.key) for edit in edits(FILE, moved)}
    assert f"{FILE} | f | comparison 2 | if x < y or y < x:" in names


@pytest.mark.parametrize("file", ["outbox/runtime/verdict.py", "outbox/engine/state/queues.py"])
def test_every_fault_of_a_file_compiles_to_something_else(file: str) -> None:
    text = (ROOT / file).read_text()
    whole, found = ast.dump(ast.parse(text)), edits(file, text)
    assert len(found) > 20
    for edit in found:
        assert ast.dump(ast.parse(edit.applied(text))) != whole, edit.key
        compile(edit.applied(text), file, "exec", dont_inherit=True)
