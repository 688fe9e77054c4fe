"""Expectations of inputs and their effects: each is a function that returns findings.

    effects   {message_id, correlation_id, type, kind, account, amount, digest}    one per ledger row
    findings  {category, id, detail}                                               nothing, where all is well

An expectation of your own has the same signature; hand it to `reconcile(..., expectations=[...])`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql import types as ty

LOST, DOUBLED, PHANTOM, BROKEN, STATE = CATEGORIES = ("lost", "doubled", "phantom", "broken", "state")


@dataclass(frozen=True, slots=True)
class Books:
    """Both sides: `expected` {id} are the inputs that must have effects, `effects` is what the ledger holds.

    `excused` {id} are those with a dead letter: they may have none, and one that was applied after all is like others.
    """

    expected: DataFrame
    effects: DataFrame
    excused: DataFrame | None = None

    @property
    def explained(self) -> DataFrame:
        """The inputs that may have effects."""
        return self.expected if self.excused is None else self.expected.unionByName(self.excused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a body by their meaning; `own_kinds` have no input, `still_kinds` move nothing."""

    kind: str = "kind"
    account: str = "account"
    amount: str = "amount"
    own_kinds: tuple[str, ...] = ("opened",)
    still_kinds: tuple[str, ...] = ("refused",)


Expectation = Callable[[Books, Fields], DataFrame]


def effects_of(ledger: DataFrame, fields: Fields) -> DataFrame:
    """A ledger's rows with the fields that expectations look at; what a body does not have is null."""
    names = {name: getattr(fields, name) for name in ("kind", "account", "amount")}
    # Parsed once: asking for one field after the other costs three times as much, and is most of a comparison's time.
    body = fn.from_json("body", ty.StructType([ty.StructField(name, ty.StringType()) for name in {*names.values()}]))
    inner = [fn.col("parsed").getField(field).alias(name) for name, field in names.items()]
    return (
        ledger.select("message_id", "correlation_id", "type", body.alias("parsed"), "fingerprint")
        .select("message_id", "correlation_id", "type", *inner, "fingerprint")
        .select(
            "message_id",
            "correlation_id",
            "type",
            "kind",
            "account",
            fn.expr("try_cast(amount as bigint)").alias("amount"),
            # Two effects of one kind are one too many; where bodies tell no kind, two equal bodies are.
            fn.coalesce("kind", "fingerprint").alias("digest"),
        )
    )


def each_input_has_effects(books: Books, fields: Fields) -> DataFrame:
    """Lost: an input without any ledger row."""
    touched = books.effects.select(fn.col("correlation_id").alias("id")).distinct()
    return finding(books.expected.join(touched, "id", "left_anti"), LOST, fn.lit("no row in the ledger"))


def each_effect_has_an_input(books: Books, fields: Fields) -> DataFrame:
    """Phantom: a ledger row that no input explains."""
    caused = books.effects.where(~fn.coalesce(fn.col("kind").isin(*fields.own_kinds), fn.lit(False)))
    orphans = caused.withColumn("id", fn.col("correlation_id")).join(books.explained, "id", "left_anti")
    what = fn.concat(label(), fn.lit(" message "), fn.col("message_id"), fn.lit(" has no input"))
    return finding(orphans, PHANTOM, what)


def no_message_twice(books: Books, fields: Fields) -> DataFrame:
    """Doubled: one identity in two rows; a ledger that only `consume` writes has none."""
    rows = books.effects.groupBy(fn.col("message_id").alias("id")).agg(fn.count(fn.lit(1)).alias("rows"))
    twice = rows.where(fn.col("rows") > 1)
    return finding(twice, DOUBLED, fn.concat(fn.lit("the same message in "), fn.col("rows"), fn.lit(" rows")))


def no_effect_twice(books: Books, fields: Fields) -> DataFrame:
    """Doubled: one input with the same effect under two identities."""
    distinct = books.effects.dropDuplicates(["message_id"])
    groups = distinct.groupBy("correlation_id", "type", "digest").agg(
        fn.count(fn.lit(1)).alias("rows"), fn.max("kind").alias("kind")
    )
    twice = groups.where(fn.col("rows") > 1).withColumn("id", fn.col("correlation_id"))
    return finding(twice, DOUBLED, fn.concat(label(), fn.lit(" x "), fn.col("rows")))


def money_is_conserved(books: Books, fields: Fields) -> DataFrame:
    """The bank's rule: withdraw and deposit, or withdraw and refund, that add up to zero; or one refusal."""
    kinds = ("withdraw", "deposit", "refund", "refused")
    counts = [fn.count(fn.when(fn.col("kind") == kind, 1)).alias(kind) for kind in kinds]
    moved = fn.sum(fn.when(~fn.col("kind").isin(*fields.still_kinds), fn.col("amount")))
    known = books.effects.join(
        books.explained.withColumnRenamed("id", "correlation_id"), "correlation_id", "left_semi"
    ).dropDuplicates(["message_id"])
    sums = known.groupBy(fn.col("correlation_id").alias("id")).agg(*counts, fn.coalesce(moved, fn.lit(0)).alias("sum"))
    pattern = fn.concat_ws("", *kinds)
    whole, half = pattern.isin("1100", "1010", "0001"), pattern.isin("1000", "0100", "0010")
    text = fn.concat_ws(", ", *(fn.concat(fn.lit(f"{kind} "), fn.col(kind)) for kind in kinds))
    lost = finding(sums.where(half), LOST, fn.concat(fn.lit("its other half: "), text))
    odd = finding(sums.where(~whole & ~half), BROKEN, text)
    unequal = sums.where(whole & (fn.col("sum") != 0))
    return lost.unionByName(odd).unionByName(
        finding(unequal, BROKEN, fn.concat(fn.lit("postings add up to "), fn.col("sum").cast("string")))
    )


@dataclass(frozen=True, slots=True)
class BalancesAgree:
    """Each account's exported balance is its opening balance plus its postings.

    `states` and `openings` have {key, balance}; an account that is missing on one side counts as 0 there.
    """

    states: DataFrame
    openings: DataFrame | None = None

    def __call__(self, books: Books, fields: Fields) -> DataFrame:
        moving = books.effects.dropDuplicates(["message_id"]).where(
            fn.col("account").isNotNull() & ~fn.coalesce(fn.col("kind").isin(*fields.still_kinds), fn.lit(False))
        )
        posted = moving.select(fn.col("account").alias("key"), fn.col("amount").alias("balance"))
        if self.openings is not None:
            posted = posted.unionByName(self.openings.select("key", "balance"))
        posted = posted.groupBy("key").agg(fn.sum("balance").alias("posted"))
        both = posted.join(self.states.select("key", "balance"), "key", "full_outer")
        held, due = fn.coalesce("balance", fn.lit(0)), fn.coalesce("posted", fn.lit(0))
        detail = fn.concat(
            fn.lit("state holds "), held.cast("string"), fn.lit(", postings add up to "), due.cast("string")
        )
        return finding(both.where(held != due).withColumnRenamed("key", "id"), STATE, detail)


def finding(frame: DataFrame, category: str, detail: Column) -> DataFrame:
    """Findings of one category, from a frame with a column `id`."""
    return frame.select(fn.lit(category).alias("category"), fn.col("id").cast("string"), detail.alias("detail"))


def label() -> Column:
    """`Posting deposit`, or only the type."""
    return fn.concat_ws(" ", fn.when(fn.col("type") != "", fn.col("type")), "kind")


GENERIC: tuple[Expectation, ...] = (
    each_input_has_effects,
    each_effect_has_an_input,
    no_message_twice,
    no_effect_twice,
)
RULES: dict[str, tuple[Expectation, ...]] = {"generic": GENERIC, "bank": (*GENERIC, money_is_conserved)}
