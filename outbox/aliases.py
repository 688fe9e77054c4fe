"""The aliases of pydantic models: each field must be read under the name that it is written under.

A field that is not would be read back as its default, without an error.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from outbox.encoding import is_pydantic
from outbox.errors import NotRegistrable


def check_aliases(model: type[Any]) -> None:
    """Check a pydantic model, and the models of its fields.

    Raises:
        NotRegistrable: a field is not read under the name that it is written under.
    """
    waiting, seen = [model], {model}
    while waiting:
        kind = waiting.pop()
        for name, field in kind.model_fields.items():
            if field.exclude:
                continue  # it is not written
            if not _converts(kind):
                _check_field(kind, name, field)
            found = [each for each in _models_in(field.annotation) if each not in seen]
            seen.update(found)
            waiting += found


def _check_field(kind: type[Any], name: str, field: Any) -> None:
    written, read = field.serialization_alias or field.alias or name, _read_names(kind, name, field)
    if written in read:
        return
    known = " or ".join(map(repr, sorted(read))) or "a path"
    raise NotRegistrable(
        f"{kind.__name__}.{name} is written as {written!r} and read as {known}, so what is written would be "
        f"read back without it; give it one alias=, or add {written!r} to what it is read as: "
        f"validation_alias=AliasChoices(..., {written!r})"
    )


def _read_names(kind: type[Any], name: str, field: Any) -> set[str]:
    """The names under which a model reads a field."""
    config, alias = kind.model_config, field.validation_alias
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    names = {name} if by_name or alias is None or config.get("validate_by_alias") is False else set()
    if alias is None or config.get("validate_by_alias") is False:
        return names
    for each in getattr(alias, "choices", [alias]):
        path = getattr(each, "path", [each])
        if len(path) == 1 and isinstance(path[0], str):
            names.add(path[0])
    return names


def _converts(kind: type[Any]) -> bool:
    """Whether a model has code of its own that may rename what it reads or writes."""
    decorators = kind.__pydantic_decorators__
    return bool(decorators.model_serializers) or any(
        each.info.mode in ("before", "wrap") for each in decorators.model_validators.values()
    )


def _models_in(hint: Any) -> Iterator[type[Any]]:
    """The pydantic models in an annotation."""
    if isinstance(hint, type) and is_pydantic(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _models_in(part)
