"""Session tokens of Cosmos DB for requests that are given none."""

from __future__ import annotations

from outbox.azure.cosmos.store import RANGE_COUNT_MAX, SessionTokens


def test_the_latest_token_of_each_range_is_given() -> None:
    tokens = SessionTokens()
    assert tokens.latest == ""
    assert [tokens.learn(token) for token in ("0:-1#5", "1:-1#7", "0:-1#6")] == ["0:-1#5", "1:-1#7", "0:-1#6"]
    assert tokens.latest == "0:-1#6,1:-1#7"


def test_an_answer_that_was_overtaken_takes_nothing_back() -> None:
    tokens = SessionTokens()
    for token in ("0:-1#105", "0:-1#99", "0:-1#100#1=7"):
        tokens.learn(token)
    assert tokens.latest == "0:-1#105"
    tokens.learn("0:2#7#1=7#2=5")
    assert tokens.latest == "0:2#7#1=7#2=5", "a later version of the range, behind a failover"


def test_what_is_no_token_of_one_range_is_handed_on_and_not_given() -> None:
    tokens = SessionTokens()
    for token in ("", "25", "0:-1#5,1:-1#7", "0:garbage", "0:-1", f"0:-1#{'9' * 40}", ":-1#5"):
        assert tokens.learn(token) == token
        assert tokens.latest == ""


def test_of_many_ranges_none_is_given() -> None:
    tokens = SessionTokens()
    for number in range(RANGE_COUNT_MAX):
        tokens.learn(f"{number}:-1#5")
    assert tokens.latest.count(",") == RANGE_COUNT_MAX - 1
    tokens.learn(f"{RANGE_COUNT_MAX}:-1#5")
    assert tokens.latest == ""


def test_what_is_forgotten_is_not_given() -> None:
    tokens = SessionTokens()
    tokens.learn("0:-1#5")
    tokens.forget()
    assert tokens.latest == ""
    tokens.learn("0:-1#5")
    assert tokens.latest == "0:-1#5"
