"""The identity of a row: a text that depends on the row's key columns and on nothing else.

One column: its text as it stands.  Several: SHA-256 over their length-prefixed texts, or `("a-b", "c")` would equal
`("a", "b-c")`.  The columns' types do not count, so a column that is read as text one day and as a number the next
keeps its ids.  Only strings, integers, booleans and dates may be keys: the text of a float depends on the Java, of a
decimal on the Spark version, of a timestamp on the time zone.

`identity` in Python and `identity_column` in Spark give the same text; the tests hold both to the same vectors.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from hashlib import sha256

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql import types as ty

from outbox.errors import Refused

ID_LENGTH_MAX = 1_024
BROKER_ID_LENGTH_MAX = 128

KeyValue = str | bool | int | datetime.date

_KEY_TYPES = (ty.StringType, ty.ByteType, ty.ShortType, ty.IntegerType, ty.LongType, ty.BooleanType, ty.DateType)


def identity(values: Sequence[KeyValue]) -> str:
    """The identity of the row whose key columns hold `values`."""
    texts = [_text(value) for value in values]
    if len(texts) == 1:
        return texts[0]
    return sha256("".join(f"{len(text.encode())}:{text}" for text in texts).encode()).hexdigest()


def _text(value: KeyValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def identity_column(columns: Sequence[str]) -> Column:
    """The same as a column; null where any key column is null."""
    texts = [fn.col(f"`{name}`").cast("string") for name in columns]
    if len(texts) == 1:
        return texts[0]
    # concat of a null is null, so a missing part makes the whole identity missing.
    prefixed = [part for text in texts for part in (fn.octet_length(text).cast("string"), fn.lit(":"), text)]
    return fn.sha2(fn.concat(*prefixed), 256)


def broker_id(identity: str) -> str:
    """The id for the broker's duplicate detection: the identity, or its digest where a broker would not take it."""
    return identity if len(identity) <= BROKER_ID_LENGTH_MAX else sha256(identity.encode()).hexdigest()


def check_key_columns(frame: DataFrame, columns: Sequence[str]) -> None:
    """Refuse keys whose text is not the same everywhere.

    Raises:
        Refused: no column, an unknown one, or one of a type that cannot be a key.
    """
    if not columns:
        raise Refused("an identity needs a column; name one with --id")
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name in columns:
        if name not in types:
            raise Refused(f"there is no column {name!r} to take the id from; there are {', '.join(sorted(types))}")
        if not isinstance(types[name], _KEY_TYPES):
            raise Refused(
                f"column {name!r} is {types[name].simpleString()}, and its text differs between machines or versions; "
                "an id may be made of string, integer, boolean and date columns: add one, for example "
                f"fn.date_format({name!r}, ...) or a cast that you choose"
            )
