"""The faults that a machine plants in a source: each one small edit at a node of its syntax tree.

A fault is known by its file, its function, what was done, the text of its line and which of the equal ones it is: lines
that move elsewhere leave it the same.  Docstrings, annotations, `__all__`, texts of log lines and of errors are left as
they are, and so is what a format string holds: Python 3.11 does not say where that stands.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
EXCHANGED = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any"}
SIGNS: dict[type[ast.operator], tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
LOGGERS = ("log", "logger")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
FLOW = (ast.Raise, ast.Return, ast.Continue, ast.Break)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Key:
    """What a fault is known by."""

    file: str
    function: str
    operator: str
    text: str
    number: int
    """Which of those that are equal in all the rest, from 1."""

    def __str__(self) -> str:
        more = f" {self.number}" if self.number > 1 else ""
        return f"{self.file} | {self.function} | {self.operator}{more} | {self.text}"


@dataclass(frozen=True)
class Edit:
    """A fault: the bytes from `start` to `end` of a source give way to `new`."""

    key: Key
    line: int
    start: int
    end: int
    new: bytes

    def applied(self, text: str) -> str:
        """The source with the fault in it."""
        data = text.encode()
        return (data[: self.start] + self.new + data[self.end :]).decode()


def edits(file: str, text: str) -> list[Edit]:
    """All faults of a source, in the order of its tree."""
    drafts, seen, found = Drafts(text), Counter[tuple[str, str, str]](), []
    for function, operator, line, start, end, new in drafts.of(ast.parse(text)):
        shown = drafts.lines[line - 1].strip()
        seen[function, operator, shown] += 1
        key = Key(file, function, operator, shown, seen[function, operator, shown])
        found.append(Edit(key, line, start, end, new.encode()))
    return found


Draft = tuple[str, str, int, int, int, str]
"""Function, operator, line, from, to, and what stands there then."""


class Drafts:
    """Goes through a tree with what is around each node: function, names bound twice, loop, handler."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._data = text.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._function = "module"
        self._rebound: set[str] = set()
        self._is_in_loop = self._is_in_handler = self._is_in_function = False

    def of(self, node: ast.AST) -> Iterator[Draft]:
        """The faults of a node and of those below it."""
        if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)):
            yield from self._empty(node)
            return
        if _is_type_checking(node) or _is_export(node):
            return
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield from self._definition(node)
            return
        yield from self._here(node)
        for child in _children(node):
            yield from self._below(node, child)

    def _below(self, node: ast.AST, child: ast.AST) -> Iterator[Draft]:
        before = self._is_in_loop, self._is_in_handler
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._is_in_loop = child in node.body
        if isinstance(child, ast.ExceptHandler):
            self._is_in_handler = True
        yield from self.of(child)
        self._is_in_loop, self._is_in_handler = before

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[Draft]:
        before = self._function, self._rebound, self._is_in_loop, self._is_in_handler, self._is_in_function
        for decorator in node.decorator_list:
            yield from self.of(decorator)
        self._function = node.name if self._function == "module" else f"{self._function}.{node.name}"
        self._is_in_loop = self._is_in_handler = False
        self._is_in_function = not isinstance(node, ast.ClassDef)
        if not isinstance(node, ast.ClassDef):
            self._rebound = _bound_twice(node)
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from self.of(default)
        for child in node.body:
            if not _is_text(child):
                yield from self.of(child)
        self._function, self._rebound, self._is_in_loop, self._is_in_handler, self._is_in_function = before

    def _here(self, node: ast.AST) -> Iterator[Draft]:
        """The faults of this node alone."""
        if isinstance(node, ast.stmt):
            yield from self._statement(node)
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield from self._condition(node)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield self._draft("filter", test, "True")
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield self._draft("uncaught", node.type, "()")
            if not (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")):
                yield self._draft("widened", node.type, "Exception")
        elif isinstance(node, ast.Await):
            yield self._draft("await", node, f"({self._text(node.value)})")
        elif isinstance(node, ast.BoolOp):
            yield from self._operands(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            operator = "not" if isinstance(node.op, ast.Not) else "sign"
            yield self._draft(operator, node, f"({self._text(node.operand)})")
        elif isinstance(node, ast.Compare):
            yield from self._comparisons(node)
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in SIGNS:
            yield from self._sign(node)
        elif isinstance(node, ast.Call):
            yield from self._exchanged(node)
        yield from self._empty(node)

    def _statement(self, node: ast.stmt) -> Iterator[Draft]:
        if isinstance(node, (ast.Expr, ast.Delete, ast.Assert)) and not _is_text(node):
            is_yield = isinstance(node, ast.Expr) and isinstance(node.value, (ast.Yield, ast.YieldFrom))
            if self._text(node) != "yield":
                yield self._draft("statement", node, "yield" if is_yield else "pass")  # it stays a generator
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_plain = any(isinstance(t, (ast.Name, ast.Tuple, ast.List)) for t in targets)
            if not is_plain or all(name in self._rebound for name in _names(targets)):
                yield self._draft("statement", node, "pass")
        elif isinstance(node, (ast.With, ast.AsyncWith)) and all(i.optional_vars is None for i in node.items):
            end = self._data.index(b":", self._place(node.items[-1].context_expr)[1])
            yield self._function, "context", node.lineno, self._place(node)[0], end, "if True"
        elif isinstance(node, ast.Raise) and self._is_in_handler:
            yield self._draft("swallowed", node, "pass")
        elif isinstance(node, ast.Continue):
            yield self._draft("flow", node, "break")
        elif isinstance(node, (ast.Break, ast.Return)) and self._is_in_loop:
            yield self._draft("flow", node, "continue")
        if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield self._draft("return", node.value, "None")

    def _condition(self, node: ast.If | ast.While | ast.IfExp) -> Iterator[Draft]:
        is_guard = isinstance(node, ast.If) and not node.orelse
        if is_guard or isinstance(node, ast.While):
            yield self._draft("guard", node.test, "False")
        if is_guard and isinstance(node, ast.If) and isinstance(node.body[-1], FLOW):
            return  # the other way round it would refuse what is right, and every test shows that
        is_done = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        if not is_done and not (isinstance(node.test, ast.Compare) and len(node.test.ops) == 1):
            yield self._draft("not", node.test, f"not ({self._text(node.test)})")

    def _operands(self, node: ast.BoolOp) -> Iterator[Draft]:
        word = " and " if isinstance(node.op, ast.And) else " or "
        for left_out in node.values:
            rest = [f"({self._text(value)})" for value in node.values if value is not left_out]
            yield self._draft("operand", node, word.join(rest), at=left_out)

    def _comparisons(self, node: ast.Compare) -> Iterator[Draft]:
        words = [COMPARISONS[type(op)][0] for op in node.ops]
        for place, op in enumerate(node.ops):
            new = [*words[:place], COMPARISONS[type(op)][1], *words[place + 1 :]]
            pairs = zip(new, node.comparators, strict=True)
            right = "".join(f" {word} ({self._text(value)})" for word, value in pairs)
            yield self._draft("comparison", node, f"({self._text(node.left)}){right}", at=node.comparators[place])

    def _sign(self, node: ast.BinOp | ast.AugAssign) -> Iterator[Draft]:
        word = SIGNS[type(node.op)][1]
        if isinstance(node, ast.AugAssign):
            yield self._draft("sign", node, f"{self._text(node.target)} {word}= {self._text(node.value)}")
        elif not any(map(_is_text_like, (node.left, node.right))):
            new = f"({self._text(node.left)}) {word} ({self._text(node.right)})"
            yield self._draft("sign", node, new, at=node.right)

    def _exchanged(self, node: ast.Call) -> Iterator[Draft]:
        name = node.func
        word = name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""
        if word in EXCHANGED:
            new = self._text(name).removesuffix(word) + EXCHANGED[word]
            yield self._draft("exchange", name, new)
        for keyword in node.keywords:
            if keyword.arg is not None and not isinstance(keyword.value, ast.Constant):
                start, end = self._place(keyword)
                after = self._data[end:].lstrip()
                if after.startswith(b","):
                    yield self._function, "argument", keyword.lineno, start, self._data.index(b",", end) + 1, ""
                elif after.startswith(b")"):
                    yield self._function, "argument", keyword.lineno, start, end, ""

    def _empty(self, node: ast.AST) -> Iterator[Draft]:
        """Constants: another number, the other of true and false, nothing in a text or a display."""
        if isinstance(node, ast.JoinedStr):
            yield self._draft("empty", node, '""')
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield self._draft("flag", node, str(not node.value))
            elif isinstance(node.value, (int, float)):
                yield self._draft("one", node, repr(node.value + 1))
            elif isinstance(node.value, (str, bytes)) and node.value:
                yield self._draft("empty", node, '""' if isinstance(node.value, str) else 'b""')
        elif isinstance(node, (ast.Tuple, ast.List)) and isinstance(node.ctx, ast.Load) and node.elts:
            yield self._draft("empty", node, "()" if isinstance(node, ast.Tuple) else "[]")
        elif isinstance(node, (ast.Dict, ast.Set)) and any(ast.iter_child_nodes(node)):
            yield self._draft("empty", node, "{}" if isinstance(node, ast.Dict) else "set()")

    # Places

    def _draft(self, operator: str, node: ast.AST, new: str, at: ast.AST | None = None) -> Draft:
        start, end = self._place(node)
        return self._function, operator, (at or node).lineno, start, end, new  # type: ignore[attr-defined]  # it has one

    def _place(self, node: ast.AST) -> tuple[int, int]:
        """From where to where a node stands; a statement, an expression or an argument has places."""
        assert isinstance(node, (ast.stmt, ast.expr, ast.keyword, ast.ExceptHandler))
        assert node.end_lineno is not None and node.end_col_offset is not None
        starts = self._starts
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        start, end = self._place(node)
        return self._data[start:end].decode()


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What may be changed below a node."""
    left_out: Sequence[ast.AST | None] = ()
    if isinstance(node, ast.AnnAssign):
        left_out = (node.annotation,)
    elif isinstance(node, ast.Raise) or _is_log_call(node):
        return  # texts and what goes into them
    elif isinstance(node, ast.Dict):
        left_out = node.keys
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Await):
        node = node.value  # not awaited is the same as not there
    for child in ast.iter_child_nodes(node):
        if child not in left_out and not _is_text(child):
            yield child


def _is_text(node: ast.AST) -> bool:
    """A docstring, or a text after a field that documents it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_text_like(node: ast.AST) -> bool:
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple)) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_log_call(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
        return False
    holder = node.func.value
    name = holder.id if isinstance(holder, ast.Name) else holder.attr if isinstance(holder, ast.Attribute) else ""
    return name.strip("_").lower() in LOGGERS


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_export(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def _names(targets: Sequence[ast.AST]) -> list[str]:
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _bound_twice(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names that a function binds more than once: without one of these bindings they still have a value."""
    counts = Counter(a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg))
    counts.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    counts.update({name: 2 for n in ast.walk(node) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names})
    return {name for name, count in counts.items() if count > 1}
