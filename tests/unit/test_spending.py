"""What was spent in an interval: exact, additive, priced by the instant, and shared among runs by label."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from costguard.ledger.spending import Spent, device_spent
from costguard.prices import Price, PriceBook
from costguard.records import Amount
from helpers import NS_PER_S

HOUR = 3600 * NS_PER_S
BASE = 1_800_000_000 * NS_PER_S
TENTH = PriceBook(prices=[Price(amount="0.1")])
CHANGE = "2027-01-15T09:00:00+00:00"
"""An hour after `BASE`."""
CHANGING = PriceBook(prices=[Price(amount=1, valid_until=CHANGE), Price(amount=3, valid_from=CHANGE)])

instants = st.integers(min_value=BASE - 10 * HOUR, max_value=BASE + 10 * HOUR)


def test_a_tenth_of_a_dollar_is_exact() -> None:
    """Three devices for ten hours at 0.1 are three dollars, not 3.0000000000000004."""
    spent = device_spent(TENTH, BASE, BASE + 10 * HOUR, 3, 3)
    assert spent == Spent(Amount(money=Fraction(3), device_ns=30 * HOUR))


def test_a_price_holds_from_its_instant_on() -> None:
    """Half an hour at the old price and half an hour at the new one."""
    spent = device_spent(CHANGING, BASE + HOUR // 2, BASE + 3 * HOUR // 2, 1, 1)
    assert spent.amount.money == Fraction(1, 2) + Fraction(3, 2)


def test_time_without_a_price_is_counted_apart() -> None:
    """It is no money, and it is not nothing."""
    book = PriceBook(prices=[Price(amount=3, valid_from=CHANGE)])
    spent = device_spent(book, BASE, BASE + 2 * HOUR, 2, 2)
    assert (spent.amount.money, spent.unpriced_ns) == (6, 2 * HOUR)
    assert spent.amount.device_ns == 4 * HOUR


def test_a_price_of_the_allocation_is_shared_by_its_devices() -> None:
    """One of four devices bears a quarter."""
    book = PriceBook.for_run("test", None, "8")
    assert device_spent(book, BASE, BASE + HOUR, 1, 4).amount.money == 2


@given(instants, instants, instants, st.integers(0, 9))
def test_parts_add_up_to_the_whole(a: int, b: int, c: int, devices: int) -> None:
    """Cut anywhere, at a price change or not: the same to the last digit."""
    begin, cut, end = sorted((a, b, c))
    whole = device_spent(CHANGING, begin, end, devices, 9)
    parts = device_spent(CHANGING, begin, cut, devices, 9).plus(device_spent(CHANGING, cut, end, devices, 9))
    assert parts == whole


@given(instants, instants)
def test_an_interval_that_ends_before_it_begins_is_empty(a: int, b: int) -> None:
    """Never negative money."""
    low, high = sorted((a, b))
    assert device_spent(TENTH, high, low, 3, 3) == Spent()
    assert device_spent(TENTH, low, high, 3, 3).amount.money >= 0  # type: ignore[operator]
