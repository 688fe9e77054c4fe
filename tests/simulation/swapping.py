"""Plant a fault in a package that is imported already: the code of the functions that it changes is exchanged.

Importing the package anew for each fault takes longer than most tests that find one.  A fault in a function's body
needs no import: the function gets the body that the changed source compiles to, wherever it is referred to.  A fault
outside of all bodies (a constant, a default, a decorator, a class's own lines) cannot be planted so; `exchanged` says
that, and such a fault is planted while its module is imported.  So is one that no test finds when it is planted so:
what ran at the import ran without it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

Functions = dict[tuple[str, str], list[FunctionType]]
"""Functions by the file and the qualified name of their code."""

OWN_LINES = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable", "co_flags")
SIGNATURE = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars")


def functions_below(folder: str) -> Functions:
    """All functions that exist whose source lies below a folder."""
    found: Functions = {}
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # what is frozen is not among the objects
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(folder):
            found.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
    if is_frozen:
        gc.freeze()
    return found


def exchanged(functions: Functions, file: str, text: str, changed_text: str) -> bool:
    """Give functions the code of a changed source; whether that plants all of the change."""
    old, new = (compile(source, file, "exec", dont_inherit=True) for source in (text, changed_text))
    try:
        changes = list(_changes(old, new))
    except Outside:
        return False
    found = [[one for one in functions.get((file, old.co_qualname), ()) if one.__code__ == old] for old, _ in changes]
    if not changes or not all(found):
        return False
    for (_, code), same in zip(changes, found, strict=True):
        for function in same:
            function.__code__ = code
    return True


class Outside(Exception):
    """A change is outside of functions' bodies."""


def _changes(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code, old and new, of the outermost functions that differ."""
    if not _is_same_outside(old, new):
        raise Outside
    for before, after in zip(_inner(old), _inner(new), strict=True):
        if _is_same(before, after):
            continue
        if _is_body(after):
            yield before, after
        else:
            yield from _changes(before, after)


def _is_body(code: CodeType) -> bool:
    """Whether code is a function's; a class's has no locals of its own and runs once."""
    return bool(code.co_flags & 0x1)  # CO_OPTIMIZED


def _inner(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _is_same_outside(old: CodeType, new: CodeType) -> bool:
    """Whether code is the same but for the code within it, which takes the same arguments."""
    plain = [[repr(const) for const in code.co_consts if not isinstance(const, CodeType)] for code in (old, new)]
    names = [[inner.co_qualname for inner in _inner(code)] for code in (old, new)]
    signatures = [[_signature(inner) for inner in _inner(code)] for code in (old, new)]
    is_same = plain[0] == plain[1] and names[0] == names[1] and signatures[0] == signatures[1]
    return is_same and _parts(old, OWN_LINES) == _parts(new, OWN_LINES)


def _is_same(old: CodeType, new: CodeType) -> bool:
    return _is_same_outside(old, new) and all(map(_is_same, _inner(old), _inner(new)))


def _signature(code: CodeType) -> tuple[object, ...]:
    return _parts(code, SIGNATURE)


def _parts(code: CodeType, names: Iterable[str]) -> tuple[object, ...]:
    return tuple(getattr(code, name) for name in names)
