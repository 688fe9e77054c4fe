"""A number in a request is what the client wrote: it reaches the message whole, and tells requests apart."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from outbox import App
from outbox.http import BODY_BYTES_MAX
from outbox.runtime.http.requests import DIGIT_COUNT_MAX, read_body, write_body
from outbox.testing import Harness

EXACT = ("12345678901234567.89", "0.10", "1E+2", "-0.0", "123456789012345678901234567890", "1e-400")
"""Numbers that a float, or a program that writes one again, would not give back."""

UNFIT = (
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "01", "1.", ".5", "+1", "1e", "0x1"),
    *("9" * (DIGIT_COUNT_MAX + 1), "1." + "9" * DIGIT_COUNT_MAX),
    *('1, "amount": 2', '{"x": {"y": 1, "\\u0079": 2}}', '1, "other": NaN', '1, "other": [-Infinity]'),
)


@dataclass
class Amount:
    purse: str
    amount: Decimal = Decimal(0)
    rate: float = 0.0


class Modelled(BaseModel):
    purse: str
    amount: Decimal


@dataclass
class Sums:
    amounts: list[str] = field(default_factory=list)


def paying() -> App:
    app = App("sums")

    @app.http("POST", "/payments", key="purse")
    def pay(message: Amount, sums: Sums) -> str:
        sums.amounts.append(str(message.amount))
        return str(message.amount)

    @app.http("POST", "/purses/{purse}/payments", key="purse")
    def pay_in(message: Amount, sums: Sums) -> str:
        return pay(message, sums)

    @app.http("POST", "/rates/{rate}/{amount}", key="purse")
    def exchange(message: Amount, sums: Sums) -> str:
        return pay(message, sums)

    @app.http("POST", "/modelled/{purse}", key="purse")
    def model(message: Modelled, sums: Sums) -> str:
        return str(message.amount)

    return app


def body(amount: str) -> bytes:
    return b'{"purse": "a", "amount": %s}' % amount.encode()


@pytest.mark.parametrize("path", ["/payments", "/purses/a/payments"])
async def test_a_number_reaches_the_message_as_it_was_written(path: str) -> None:
    async with Harness(paying()) as world:
        for number, text in enumerate(EXACT):
            assert (await world.request("POST", path, body=body(text), key=f"k{number}")).json() == str(Decimal(text))
        assert await world.state(Sums, "a") == Sums([str(Decimal(text)) for text in EXACT])


@pytest.mark.parametrize("path", ["/payments", "/purses/a/payments"])
async def test_two_numbers_under_one_key_are_two_requests(path: str) -> None:
    async with Harness(paying()) as world:
        first = await world.request("POST", path, body=body("12345678901234567.89"), key="k")
        for text in ("12345678901234567.11", "12345678901234567.890", "12345678901234567.89e0"):
            other = await world.request("POST", path, body=body(text), key="k")
            assert (other.status, other.json()["code"]) == (422, "idempotency-key-reused")
        spaced = b'{ "amount":\n12345678901234567.89,"purse" :"\\u0061"}'
        assert await world.request("POST", path, body=spaced, key="k") == first
        assert await world.state(Sums, "a") == Sums(["12345678901234567.89"])


async def test_a_model_of_pydantic_has_the_whole_number_too() -> None:
    async with Harness(paying()) as world:
        response = await world.request("POST", "/modelled/a", body=b'{"amount": 123456789012345678901}', key="k")
        assert response.json() == "123456789012345678901"


@pytest.mark.parametrize(
    ("given", "status"),
    [('"rate": 3', 200), ('"rate": 3.0', 200), ('"amount": 1.5', 200), ('"amount": "1.50"', 200), ('"rate": 3.1', 400)],
)
async def test_the_body_may_say_what_the_path_says_in_other_digits(given: str, status: int) -> None:
    async with Harness(paying()) as world:
        sent = b'{"purse": "a", %s}' % given.encode()
        assert (await world.request("POST", "/rates/3/1.50", body=sent, key="k")).status == status


@pytest.mark.parametrize("amount", UNFIT, ids=lambda text: text[:20])
@pytest.mark.parametrize("path", ["/payments", "/purses/a/payments"])
async def test_what_is_no_number_or_is_said_twice_is_refused(path: str, amount: str) -> None:
    async with Harness(paying()) as world:
        response = await world.request("POST", path, body=body(amount), key="k")
        assert (response.status, response.json()["code"]) == (400, "undecodable")
        assert len(response.body) < 2_000 and await world.state(Sums, "a") is None


@pytest.mark.parametrize("number", ["-0", "9" * DIGIT_COUNT_MAX, "1." + "9" * (DIGIT_COUNT_MAX - 2)], ids=len)
@pytest.mark.engine_only
def test_a_number_up_to_the_limit_is_written_as_it_was_read(number: str) -> None:
    assert write_body(read_body(body(number))) == b'{"amount":%s,"purse":"a"}' % number.encode()


@pytest.mark.engine_only
@pytest.mark.parametrize("part", [b"[", b'{"a":', b"9", b"1.", b"-", b'"', b'{"a":1,"a":'])
async def test_a_hostile_body_takes_no_time(part: bytes) -> None:
    async with Harness(paying()) as world:
        hostile, began_s = (part * BODY_BYTES_MAX)[:BODY_BYTES_MAX], time.thread_time()
        assert (await world.request("POST", "/purses/a/payments", body=hostile, key="k")).status == 400
        assert time.thread_time() - began_s < 1


@pytest.mark.engine_only
async def test_many_members_of_which_the_last_is_there_twice_take_no_time() -> None:
    members = [*(f'"{number}":0' for number in range(60_000)), '"59999":1']
    sent, taken_s = ("{" + ",".join(members) + "}").encode(), list[float]()
    async with Harness(paying()) as world:
        for _ in range(3):  # the best of them: servers of other tests have threads in this process
            began_s = time.thread_time()
            assert (await world.request("POST", "/payments", body=sent, key="k")).status == 400
            taken_s.append(time.thread_time() - began_s)
    assert min(taken_s) < 1, taken_s


@pytest.mark.engine_only
async def test_texts_that_are_not_utf_8_are_refused() -> None:
    async with Harness(paying()) as world:
        for hostile in (
            '{"purse": "a"}'.encode("utf-16"),
            b"\xef\xbb\xbf{}",
            b'{"purse": "\xff"}',
            b"\xa0{}",
            b"{}\x00",
        ):
            assert (await world.request("POST", "/payments", body=hostile, key="k")).status == 400


def test_the_digest_of_plain_data_is_that_of_its_sorted_json() -> None:
    plain: Any = {"b": [1, -2, 1.5, True, None], "a": {"z": "ü\n", "y": []}}
    assert write_body(read_body(msgspec.json.encode(plain))) == msgspec.json.encode(plain, order="sorted")
