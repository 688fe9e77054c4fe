"""Files to rows: one row is {id, row (typed columns), problem, text}, whatever the format.

CSV is read as text, so that an id is the column's text as it stands (`007` stays `007`), and is typed afterwards: by
`--schema`, or by one cautious rule: a column is `bigint` only if all its values are integers without leading zeros,
anything else is a string, and id columns always are.  JSON and Parquet bring their types.  What cannot be read or
typed is not dropped but carries its problem on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql import types as ty

from outbox.errors import Refused
from spark_jobs.common.ids import check_key_columns, identity_column

CORRUPT = "_corrupt_row"
FORMATS = ("csv", "json", "parquet")
INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"  # 18 digits always fit a bigint
ZERO_LED = r"^-?0[0-9]+$"  # a code, not a number
SHOWN_CHARACTERS = 80

_CSV = {"header": "true", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "escape": '"'}
_JSON = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one format; `format` empty: by the name's ending, `schema` empty: inferred, `options`: the reader's."""

    path: str
    format: str = ""
    schema: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The format.

        Raises:
            Refused: it is not known.
        """
        name = self.path.rstrip("/").removesuffix(".gz").lower()
        found = self.format or ("json" if name.endswith(".jsonl") else name.rpartition(".")[2])
        if found not in FORMATS:
            raise Refused(f"{self.path} tells no format by its name; give --format {' or '.join(FORMATS)}")
        return found


def read(spark: SparkSession, source: Source) -> DataFrame:
    """The rows as they stand in the files: text columns for CSV, typed ones else; broken ones in `_corrupt_row`."""
    if source.kind == "parquet":
        return spark.read.options(**source.options).parquet(source.path)
    if source.kind == "json":
        reader = spark.read.options(**{**_JSON, **source.options})
        schema = parsed(spark, source.schema) if source.schema else reader.json(source.path).schema
        return reader.schema(with_corrupt(schema)).json(source.path)
    reader = spark.read.options(**{**_CSV, **source.options})
    names = [name for name in reader.csv(source.path).columns if name != CORRUPT]
    text = ty.StructType([ty.StructField(name, ty.StringType()) for name in names])
    # enforceSchema=false: a second file with other or reordered columns is an error, not silently other columns.
    return reader.option("enforceSchema", "false").schema(with_corrupt(text)).csv(source.path)


def with_corrupt(schema: ty.StructType) -> ty.StructType:
    kept = [part for part in schema.fields if part.name != CORRUPT]
    return ty.StructType([*kept, ty.StructField(CORRUPT, ty.StringType())])


def rows_of(raw: DataFrame, source: Source, ids: Sequence[str], told: Row | None = None) -> DataFrame:
    """Rows of files that `read` has read; CSV is typed here, by what `type_tests` have told if they were asked."""
    if source.kind != "csv":
        return rows(raw, ids)
    if source.schema:
        return typed(raw, declared_types(parsed(raw.sparkSession, source.schema), raw), ids)
    found = told or raw.agg(*type_tests(raw, source)).collect()[0]
    return typed(raw, inferred_types(data_columns(raw), found, ids), ids)


def rows(frame: DataFrame, ids: Sequence[str]) -> DataFrame:
    """Rows of a frame whose columns have their types already."""
    check_key_columns(frame, ids)
    columns = data_columns(frame)
    text = fn.to_json(fn.struct(*(fn.col(f"`{name}`") for name in columns)))
    problem: Column = fn.lit(None).cast("string")
    if CORRUPT in frame.columns:
        problem = fn.when(fn.col(CORRUPT).isNotNull(), fn.lit("malformed-row: it does not fit the schema"))
        text = fn.coalesce(fn.col(CORRUPT), text)
    return frame.select(
        identity_column(ids).alias("id"),
        fn.struct(*(fn.col(f"`{name}`") for name in columns)).alias("row"),
        problem.alias("problem"),
        text.alias("text"),
    )


def typed(raw: DataFrame, types: Mapping[str, str], ids: Sequence[str]) -> DataFrame:
    """Rows of text columns, each cast to its type; a value that does not fit is a problem that names both."""
    check_key_columns(raw, ids)
    casts = {name: fn.expr(f"try_cast(`{name}` as {kind})") for name, kind in types.items()}
    wrong = [
        fn.when(
            fn.col(f"`{name}`").isNotNull() & cast.isNull(),
            fn.concat(
                fn.lit(f"wrong-type: column {name} is {types[name]}, not "),
                fn.substring(fn.col(f"`{name}`"), 1, SHOWN_CHARACTERS),
            ),
        )
        for name, cast in casts.items()
        if types[name] != "string"
    ]
    broken = fn.when(fn.col(CORRUPT).isNotNull(), fn.lit("malformed-row: more or fewer fields than the header"))
    return raw.select(
        identity_column(ids).alias("id"),
        fn.struct(*(cast.alias(name) for name, cast in casts.items())).alias("row"),
        fn.coalesce(broken, *wrong).alias("problem"),
        fn.coalesce(fn.col(CORRUPT), fn.to_json(fn.struct(*(fn.col(f"`{name}`") for name in data_columns(raw))))).alias(
            "text"
        ),
    )


def parsed(spark: SparkSession, schema: str) -> ty.StructType:
    """The schema that a text such as `id string, amount bigint` describes."""
    return spark.createDataFrame([], schema).schema


def declared_types(schema: ty.StructType, raw: DataFrame) -> dict[str, str]:
    """Column to type as the user's schema says.

    Raises:
        Refused: it names a column that the files do not have.
    """
    missing = [part.name for part in schema.fields if part.name not in raw.columns]
    if missing:
        raise Refused(f"--schema names {', '.join(missing)}; the files have {', '.join(data_columns(raw))}")
    return {part.name: part.dataType.simpleString() for part in schema.fields}


def type_tests(raw: DataFrame, source: Source) -> list[Column]:
    """Aggregates over all rows that tell the columns' types; none where the types are known.

    Raises:
        Refused: there are no columns.
    """
    if source.kind != "csv" or source.schema:
        return []
    columns = data_columns(raw)
    if not columns:
        raise Refused("the input has no columns; is its first line the header?")
    tests = []
    for index, name in enumerate(columns):
        value = fn.when(fn.col(CORRUPT).isNull(), fn.col(f"`{name}`"))  # a broken row tells nothing
        other = value.isNotNull() & ~value.rlike(INTEGER)
        tests += [
            fn.count(value).alias(f"values{index}"),
            fn.count(fn.when(other, 1)).alias(f"others{index}"),
            fn.coalesce(fn.bool_or(value.rlike(ZERO_LED)), fn.lit(False)).alias(f"zeros{index}"),
            fn.min(fn.when(other, fn.substring(value, 1, SHOWN_CHARACTERS))).alias(f"shown{index}"),
        ]
    return tests


def inferred_types(columns: Sequence[str], found: Row, ids: Sequence[str]) -> dict[str, str]:
    """`bigint` where every value is an integer that reads back the same, else `string`.

    Raises:
        Refused: most values of a column are integers and some are not: either guess would spoil messages.
    """
    kinds = {}
    for index, name in enumerate(columns):
        values, others, zeros = (found[f"{word}{index}"] for word in ("values", "others", "zeros"))
        text = name in ids or values == 0 or zeros or others * 2 >= values
        if others and not text:
            raise Refused(
                f"column {name!r} is unclear: {others} of {values} values are no integers, {found[f'shown{index}']!r} "
                f"for one; --schema with `{name} bigint` sets those rows aside, with `{name} string` sends all as text"
            )
        kinds[name] = "string" if text else "bigint"
    return kinds


def data_columns(frame: DataFrame) -> list[str]:
    """The columns that are the user's."""
    return [name for name in frame.columns if name != CORRUPT]
