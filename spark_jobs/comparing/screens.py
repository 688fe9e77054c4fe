"""A cheap pass before the joins: which inputs, messages and accounts deserve a closer look.

Comparing texts row by row, rule by rule, takes a shuffle and a join of everything for each.  Here everything moves at
most once, as hashes and sums, and only what a sum speaks against is joined, by the expectations as they stand.  So a
screen decides nothing: it may suspect too much, never too little.

    inputs     rows of both sides meet under 16 bytes of their input's hash.  How many effects an input has is the
               application's affair, so sums over many inputs would prove nothing: they are taken for each
    messages   the hashes of identities that come more than once
    accounts   4,096 buckets of hashed accounts: in each, postings and balances, weighted by the account's hash, add up
               to the same, or one of its accounts differs

Suspicion spreads to what an expectation would look at together: the inputs, and the accounts, of a message that is
there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from spark_jobs.comparing.expectations import (
    BalancesAgree,
    Expectation,
    Fields,
    each_effect_has_an_input,
    each_input_has_effects,
    money_is_conserved,
    no_effect_twice,
    no_message_twice,
)

BUCKET_COUNT = 4_096
WEIGHT_MASK = (1 << 15) - 1
AMOUNT_MAX = 1 << 46
"""The largest amount whose weighted sums stay in 64 bits; a larger one's bucket is always examined."""
WHOLE_KINDS = ((1, 1, 0, 0), (1, 0, 1, 0), (0, 0, 0, 1))
KINDS = ("withdraw", "deposit", "refund", "refused")
KIND_BITS = 15
WHOLE_INPUT = 1 << 62
PAIR, MARKS = ("h1", "h2"), ("mark1", "mark2", "mark3")


@dataclass(frozen=True, slots=True)
class Screen:
    """Sums for each input over its effects, and the condition under which they are wrong.

    `wrong` may also use `expected` (the input must have effects), `excused` (it may have none), `rows` (how many it
    has) and `alike` (some of them may be the same).
    """

    wrong: Column
    sums: Mapping[str, Column] = field(default_factory=dict)


def lost(fields: Fields) -> Screen:
    """An input without effects."""
    return Screen(fn.col("expected") & (fn.col("rows") == 0))


def phantom(fields: Fields) -> Screen:
    """Effects without an input."""
    owned = fn.coalesce(fn.col("kind").isin(*fields.own_kinds), fn.lit(False))
    unexplained = ~fn.col("expected") & ~fn.col("excused")
    return Screen(unexplained & (fn.col("caused") > 0), {"caused": fn.when(owned, 0).otherwise(1)})


def doubled(fields: Fields) -> Screen:
    """The same effect more than once."""
    return Screen(fn.col("alike"))


def unbalanced(fields: Fields) -> Screen:
    """Kinds that are no whole transfer, or money that does not add up to zero."""
    ones = [fn.when(fn.col("kind") == kind, 1 << KIND_BITS * at) for at, kind in enumerate(KINDS)]
    whole = [sum(count << KIND_BITS * at for at, count in enumerate(counts)) for counts in WHOLE_KINDS]
    moves = ~fn.col("kind").isin(*fields.still_kinds)
    fits = fn.col("kinds").isin(*whole) & (fn.col("moved") == 0) & (fn.col("huge") == 0)
    return Screen(
        (fn.col("expected") | fn.col("excused")) & (fn.col("rows") > 0) & ~fits,
        {
            "kinds": fn.coalesce(*ones, fn.lit(0)).cast("bigint"),
            "moved": fn.when(moves & ~is_huge(), fn.coalesce("amount", fn.lit(0))).otherwise(0),
            "huge": fn.when(is_huge(), 1).otherwise(0),
        },
    )


SCREENS: dict[Expectation, Callable[[Fields], Screen]] = {
    each_input_has_effects: lost,
    each_effect_has_an_input: phantom,
    no_effect_twice: doubled,
    money_is_conserved: unbalanced,
}


def is_screened(expectation: Expectation) -> bool:
    """Whether a cheap pass finds everything that an expectation could."""
    return expectation in SCREENS or expectation is no_message_twice or isinstance(expectation, BalancesAgree)


def is_huge() -> Column:
    """Whether an amount is too large to be weighted or added up here."""
    return fn.coalesce((fn.col("amount") > AMOUNT_MAX) | (fn.col("amount") < -AMOUNT_MAX), fn.lit(False))


def pair(column: str) -> list[Column]:
    """The 16 bytes that stand for a text; null is one like any other."""
    return [fn.xxhash64(fn.col(column)).alias("h1"), fn.xxhash64(fn.lit(1), fn.col(column)).alias("h2")]


def inputs_screen(
    given: DataFrame,
    effects: DataFrame,
    quarantined: DataFrame | None,
    dead_letters: DataFrame | None,
    screens: Sequence[Screen],
    *,
    everything: bool = True,
) -> DataFrame:
    """{h1, h2, given, sent, rows, others}: one row for each suspect, and one without a hash for all others.

    `given` {id} has a row for each row of the input; `sent` counts the inputs that must have effects, and those with a
    dead letter that have them.  Without `everything` only the effects of these inputs are judged and are `rows`;
    `others` counts what else there is.  The counts of all rows together are those of both sides.
    """
    sums = {name: column for screen in screens for name, column in screen.sums.items()}
    if dead_letters is not None:
        sums["dead"] = fn.lit(0)
    sides = [of_inputs(given, fn.lit(1), fn.lit(0), sums)]
    if quarantined is not None:
        sides.append(of_inputs(quarantined, fn.lit(0), fn.coalesce("count", fn.lit(WHOLE_INPUT)), sums))
    if dead_letters is not None:
        sides.append(of_inputs(dead_letters, fn.lit(0), fn.lit(0), sums).withColumn("dead", fn.lit(1).cast("bigint")))
    own = [column.cast("bigint").alias(name) for name, column in sums.items()]
    sides.append(effects.select(*pair("correlation_id"), *counted(0, 0, 1), *marks_of(), *own))
    added = [fn.sum(name).alias(name) for name in ("given", "rows", *sums)]
    marked = [fn.bit_or(name).alias(name) for name in MARKS]
    each = reduce(DataFrame.unionByName, sides).groupBy(*PAIR).agg(*added, *marked, fn.max("aside").alias("aside"))
    is_given = fn.col("given") > 0
    is_dead = fn.col("dead") > 0 if dead_letters is not None else fn.lit(False)
    judged = each.select(
        *PAIR,
        "given",
        "rows",
        *sums,
        (is_given & ~is_dead & (fn.col("given") > fn.col("aside"))).alias("expected"),
        (is_given & is_dead).alias("excused"),
        (fn.lit(True) if everything else is_given).alias("asked"),
        reduce(Column.__and__, [fn.bit_count(name) < fn.col("rows") for name in MARKS]).alias("alike"),
    )
    wrong: Column = fn.lit(False)
    for screen in screens:
        wrong = wrong | screen.wrong
    return suspects_of(judged, wrong)


def suspects_of(judged: DataFrame, wrong: Column) -> DataFrame:
    """The suspects of a screen: each wrong one among the asked inputs, all others together."""
    shown = judged.withColumn("wrong", fn.col("asked") & fn.coalesce(wrong, fn.lit(True)))
    named = [fn.when(fn.col("wrong"), fn.col(name)).alias(name) for name in PAIR]
    is_sent = fn.col("expected") | (fn.col("excused") & (fn.col("rows") > 0))
    return shown.groupBy(*named).agg(
        fn.count(fn.when(fn.col("given") > 0, 1)).alias("given"),
        fn.count(fn.when(is_sent, 1)).alias("sent"),
        fn.sum(fn.when(fn.col("asked"), fn.col("rows")).otherwise(0)).alias("rows"),
        fn.sum(fn.when(fn.col("asked"), 0).otherwise(fn.col("rows"))).alias("others"),
    )


def marks_of() -> list[Column]:
    """Three marks of an effect, each one bit of 64: as many bits in one as effects, and all differ.

    Of two that differ one in 262,144 is taken for the same, of ten one in seven.
    """
    what = fn.xxhash64("type", "digest")
    bits = [fn.shiftrightunsigned(what, 6 * number).bitwiseAND(63).cast("int") for number in range(len(MARKS))]
    return [
        fn.call_function("shiftleft", fn.lit(1).cast("bigint"), bit).alias(name)
        for name, bit in zip(MARKS, bits, strict=True)
    ]


def of_inputs(frame: DataFrame, given: Column, aside: Column, sums: Mapping[str, Column]) -> DataFrame:
    """One side that has no effects."""
    named = frame.where(fn.coalesce(fn.col("id"), fn.lit("")) != "")
    none = [zero(name) for name in sums]
    counts = [given.cast("bigint").alias("given"), aside.cast("bigint").alias("aside"), zero("rows")]
    return named.select(*pair("id"), *counts, *map(zero, MARKS), *none)


def counted(given: int, aside: int, rows: int) -> list[Column]:
    """The counts of one row."""
    return [fn.lit(n).cast("bigint").alias(name) for name, n in (("given", given), ("aside", aside), ("rows", rows))]


def zero(name: str) -> Column:
    """Nothing of a count."""
    return fn.lit(0).cast("bigint").alias(name)


def messages_screen(ledger: DataFrame) -> DataFrame:
    """{message}: the hashes of identities that come more than once; unequal ones that share a hash come too."""
    hashed = ledger.select(fn.xxhash64("message_id").alias("message"))
    return hashed.groupBy("message").agg(fn.count(fn.lit(1)).alias("n")).where("n > 1").select("message")


def rows_of_messages(ledger: DataFrame, messages: DataFrame) -> DataFrame:
    """The ledger's rows whose identity has one of these hashes."""
    hashed = ledger.withColumn("message", fn.xxhash64("message_id"))
    return hashed.join(messages, "message", "left_semi").drop("message")


def accounts_screen(effects: DataFrame, balances: BalancesAgree, fields: Fields) -> DataFrame:
    """{bucket}: those in which postings and opening balances do not add up to what the states hold."""
    still = fn.col("account").isNull() | fn.coalesce(fn.col("kind").isin(*fields.still_kinds), fn.lit(False))
    # No `where`: it would be moved below the body's fields, which then are read from it again for each of them.
    moving = effects.select("account", fn.when(still, 0).otherwise(fn.col("amount")).alias("amount"))
    sides = [weighted(moving, "account", 1), weighted(held(balances.states), "key", -1)]
    if balances.openings is not None:
        sides.append(weighted(held(balances.openings), "key", 1))
    sums = reduce(DataFrame.unionByName, sides).groupBy("bucket").agg(
        *(fn.sum(name).alias(name) for name in ("sum1", "sum2")), fn.max("huge").alias("huge")
    )  # fmt: skip
    return sums.where("huge or sum1 != 0 or sum2 != 0").select("bucket")


def held(states: DataFrame) -> DataFrame:
    """States with their balance as an amount."""
    return states.select("key", fn.col("balance").alias("amount"))


def bucket_of(column: str) -> Column:
    """The bucket of an account."""
    return fn.pmod(fn.xxhash64(fn.col(column)), fn.lit(BUCKET_COUNT))


def weighted(frame: DataFrame, column: str, sign: int) -> DataFrame:
    """{bucket, sum1, sum2, huge}: amounts by two weights of their account, added up where they are."""
    amount = fn.when(is_huge(), 0).otherwise(fn.coalesce("amount", fn.lit(0))) * sign
    weights = [fn.xxhash64(fn.lit(seed), fn.col(column)).bitwiseAND(WEIGHT_MASK) + 1 for seed in (2, 3)]
    return frame.groupBy(bucket_of(column).alias("bucket")).agg(
        *(fn.sum((amount * weight).cast("decimal(28,0)")).alias(f"sum{n}") for n, weight in enumerate(weights, 1)),
        fn.max(is_huge()).alias("huge"),
    )


def within(frame: DataFrame, column: str, suspects: DataFrame) -> DataFrame:
    """The rows of a frame whose text is one of the suspects."""
    hashed = frame.select("*", *pair(column))
    return hashed.join(suspects, list(PAIR), "left_semi").drop(*PAIR)


def in_buckets(frame: DataFrame, column: str, buckets: DataFrame) -> DataFrame:
    """The rows of a frame whose account is in one of the buckets."""
    hashed = frame.withColumn("bucket", bucket_of(column))
    return hashed.join(fn.broadcast(buckets), "bucket", "left_semi").drop("bucket")
