"""Rows checked by the application that will handle them, without a Spark session."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from outbox.errors import Refused
from spark_jobs.feeding.app_check import AppCheck
from spark_jobs.reading.source import Source
from tests.spark.reading import outcome

APP = """
from dataclasses import dataclass
from outbox import App

app = App("shop")
app.queue("ordered", "per_key")

@dataclass
class Order:
    id: str
    amount: int
    shop: str = "x"

@app.message("Renamed", version=2, upcasts={1: lambda fields: {**fields, "amount": fields["sum"]}})
@dataclass
class Versioned:
    id: str
    amount: int

@app.handler("orders")
def take(order: Order) -> None:
    raise AssertionError("no handler runs")

@app.handler("ordered", key=lambda order: order.shop)
def take_in_order(order: Order) -> None:
    raise AssertionError("no handler runs")

@dataclass
class Note:
    author: str

@app.handler("ordered", key=lambda note: note.author)
def take_notes(note: Note) -> None:
    raise AssertionError("no handler runs")

app.topic("news")

@app.handler("news", subscription="all", key=lambda order: order.shop)
def take_news(order: Order) -> None:
    raise AssertionError("no handler runs")

@app.handler("versioned")
def take_versioned(order: Versioned) -> None:
    raise AssertionError("no handler runs")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "shop_of_rows.py").write_text(APP)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop_of_rows", raising=False)
    return str(tmp_path)


def test_what_the_handler_could_not_decode_is_set_aside_in_the_decoders_words(tmp_path: Path, folder: str) -> None:
    (tmp_path / "in.csv").write_text("id,amount\na,5\nb,\n")
    check = pickle.loads(pickle.dumps(AppCheck("shop_of_rows:app", "orders", "Order", folder)))  # noqa: S301  # its own
    found = outcome(Source(str(tmp_path / "in.csv")), check_body=check)
    assert set(found.messages) == {"a"} and found.aside == [("b", "undecodable")]
    assert found.rows[1]["detail"] == "not a Order: Object missing required field `amount`"


def test_a_row_whose_key_cannot_be_taken_is_set_aside(folder: str) -> None:
    for queue, handler in (("ordered", "take_in_order"), ("news", "take_news")):
        check = AppCheck("shop_of_rows:app", queue, "Order", folder)
        assert check(b'{"id":"a","amount":5}') is None
        assert f"the key for {handler} cannot be taken" in str(check(b'{"id":"a","amount":5,"shop":""}'))
    assert AppCheck("shop_of_rows:app", "orders", "Order", folder)(b'{"id":"a","amount":5,"shop":""}') is None


def test_a_body_is_read_as_the_first_schema_which_is_what_a_feed_sends(folder: str) -> None:
    check = AppCheck("shop_of_rows:app", "versioned", "Renamed", folder)
    assert check(b'{"id":"a","sum":5}') is None
    assert "KeyError" in str(check(b'{"id":"a","amount":5}')) or "sum" in str(check(b'{"id":"a","amount":5}'))


@pytest.mark.parametrize(
    ("app", "queue", "type", "told"),
    [
        ("shop_of_rows:app", "orders", "Other", "no handler of shop_of_rows:app takes a Other from orders; they take"),
        ("shop_of_rows:app", "nowhere", "Order", "takes a Order from nowhere; it has none"),
        ("shop_of_rows:other", "orders", "Order", "is no outbox.App; give module:attribute"),
        ("no_such_shop:app", "orders", "Order", "importing no_such_shop failed: ModuleNotFoundError"),
    ],
)
def test_an_application_that_takes_no_such_message_is_refused(
    app: str, queue: str, type: str, told: str, folder: str
) -> None:
    with pytest.raises(Refused, match=told):
        AppCheck(app, queue, type, folder).check()
