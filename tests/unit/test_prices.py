"""What a unit costs, from when to when, and how a wrong price is refused."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import HOUR_NS, NS, T0, examples
from costguard.errors import ConfigError
from costguard.prices import Price, PriceBook
from costguard.units import round_shares

DAY_NS = 24 * HOUR_NS


def book(*prices: Price, currency: str = "USD") -> PriceBook:
    return PriceBook(prices=prices, currency=currency)


def at(second: int) -> str:
    return f"2024-01-15T08:00:{second:02d}Z"


# -- what cannot be a price ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["usd_per_gpu_hour", "usd_per_hour"])
@pytest.mark.parametrize("value", ["abc", "-1", float("nan"), float("inf"), True, -0.5, "", None.__class__])
def test_a_bad_price_names_option_value_and_remedy(option: str, value: object) -> None:
    """One sentence: who, which option, which value, why, and what to write instead."""
    arguments = {"usd_per_gpu_hour": None, "usd_per_hour": None, option: value}
    with pytest.raises(ConfigError) as error:
        PriceBook.for_run("CostMonitor", arguments["usd_per_gpu_hour"], arguments["usd_per_hour"])
    text = str(error.value)
    assert text.startswith(f"CostMonitor({option}={value!r}): ")
    assert "such as 2.49 or '2.49'" in text
    assert "\n" not in text


def test_two_prices_for_one_thing_are_refused() -> None:
    """Both arguments at once: both values and the choice are named."""
    with pytest.raises(ConfigError) as error:
        PriceBook.for_run("CostMonitor", "2.49", 20)
    text = str(error.value)
    assert "usd_per_gpu_hour='2.49'" in text
    assert "usd_per_hour=20" in text
    assert "not both" in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"amount": "abc"}, ["amount='abc'", "not a number"]),
        ({"amount": -1}, ["amount=-1", "negative"]),
        ({"amount": 1, "mode": "free"}, ["mode='free'", "on_demand, reserved, spot, owned"]),
        ({"amount": 1, "valid_from": "tomorrow"}, ["valid_from='tomorrow'", "2026-12-01T00:00:00Z"]),
        ({"amount": 1, "valid_until": 5}, ["valid_until=5", "2026-12-01T00:00:00Z"]),
        ({"amount": 1, "valid_from": at(5), "valid_until": at(5)}, ["valid_until=", "valid_from=", "swap"]),
        ({"amount": 1, "valid_from": at(5), "valid_until": at(4)}, ["valid_until=", "valid_from=", "swap"]),
        ({"amount": 1, "retrieved": "last week"}, ["retrieved='last week'", "2026-11-30"]),
    ],
)
def test_a_price_that_makes_no_sense_is_refused(fields: dict[str, object], words: list[str]) -> None:
    """Each field of a price is checked when it is made, with a sentence that helps."""
    with pytest.raises(ConfigError) as error:
        Price(**fields)
    assert all(word in str(error.value) for word in words)


# -- the rate in force ---------------------------------------------------------------------------------------------


def test_short_arguments_make_a_book() -> None:
    """Each of the two arguments is a book of one price; neither is a book of none."""
    assert PriceBook.for_run("x", 0.1, None) == book(Price(amount="0.1", unit="gpu_hour"))
    assert PriceBook.for_run("x", None, Decimal("20")) == book(Price(amount="20", unit="hour"))
    assert PriceBook.for_run("x", None, None) == PriceBook()
    assert PriceBook.for_run("x", 0, None).prices, "a price of zero is a price"


def test_a_price_without_an_end_holds_for_ever() -> None:
    """One rate over any interval, exactly the price per nanosecond."""
    (rate,) = book(Price(amount="2.49")).device_rates(0, 10**20, 8)
    assert rate.per_unit == Fraction(249, 100) / HOUR_NS


def test_a_change_of_price_splits_the_interval() -> None:
    """The old price holds until the instant of the new one, to the nanosecond."""
    prices = book(Price(amount=1), Price(amount=2, valid_from=at(10)))
    rates = list(prices.device_rates(T0, T0 + 60 * NS, 1))
    assert [(r.start_ns - T0, r.end_ns - T0) for r in rates] == [(0, 10 * NS), (10 * NS, 60 * NS)]
    assert [r.per_unit * HOUR_NS for r in rates] == [1, 2]


@pytest.mark.parametrize(
    ("prices", "amounts"),
    [
        ([], [None]),
        ([Price(amount=1, valid_from=at(20))], [None, 1]),
        ([Price(amount=1, valid_until=at(20))], [1, None]),
        ([Price(amount=1, valid_from=at(10), valid_until=at(20))], [None, 1, None]),
        ([Price(amount=1), Price(amount=2, valid_from=at(10), valid_until=at(20))], [1, 2, 1]),
        ([Price(amount=2, valid_from=at(10)), Price(amount=1)], [1, 2]),
        ([Price(amount=1), Price(amount=2, valid_from=at(10)), Price(amount=3, valid_from=at(20))], [1, 2, 3]),
        ([Price(amount=1, unit="token")], [None]),
        ([Price(amount=0)], [0]),
        ([Price(amount=1, valid_from="2024-01-15T09:00:10+01:00"), Price(amount=5)], [5, 1]),
        ([Price(amount=1, valid_from="2024-01-15T08:00:10"), Price(amount=5)], [5, 1]),
        ([Price(amount=1, valid_from="2024-01-15"), Price(amount=5)], [1]),
    ],
)
def test_the_price_in_force(prices: list[Price], amounts: list[int | None]) -> None:
    """Of several that hold the one with the later start wins; where none holds the price is unknown, not zero."""
    rates = list(book(*prices).device_rates(T0, T0 + 60 * NS, 1))
    assert [None if r.per_unit is None else r.per_unit * HOUR_NS for r in rates] == amounts
    assert rates[0].start_ns == T0
    assert rates[-1].end_ns == T0 + 60 * NS
    assert all(a.end_ns == b.start_ns for a, b in zip(rates, rates[1:], strict=False))


@given(st.decimals(0, 1000, places=6), st.integers(1, 100_000))
@examples(100)
def test_the_allocations_price_is_divided_without_a_rest(amount: Decimal, devices: int) -> None:
    """The shares of all paid devices sum to the price of the whole, also where it cannot be divided in decimals."""
    text = str(amount)
    (rate,) = book(Price(amount=text, unit="hour")).device_rates(T0, T0 + 1, devices)
    assert rate.per_unit is not None
    assert rate.per_unit * devices * HOUR_NS == Fraction(amount)
    shares = round_shares(dict.fromkeys(range(min(devices, 50)), rate.per_unit * HOUR_NS))
    assert len(shares) == min(devices, 50)


def test_a_devices_own_price_goes_before_the_allocations() -> None:
    """Where both are known the price of the device counts."""
    (rate,) = book(Price(amount=80, unit="hour"), Price(amount=3)).device_rates(T0, T0 + 1, 8)
    assert rate.per_unit == Fraction(3, HOUR_NS)


def test_the_device_price_ends_and_the_allocations_goes_on() -> None:
    """Which of them holds is decided at every instant."""
    prices = book(Price(amount=80, unit="hour"), Price(amount=3, valid_until=at(10)))
    assert [r.per_unit * HOUR_NS for r in prices.device_rates(T0, T0 + 60 * NS, 8)] == [3, 10]


def test_another_meters_unit_has_its_own_price() -> None:
    """Tokens, bytes and requests are priced by their unit, and unknown where no price holds."""
    prices = book(Price(amount="0.000001", unit="token", valid_from=at(10)))
    assert prices.unit_price("token", T0) is None
    assert prices.unit_price("token", T0 + 10 * NS) == Fraction(1, 10**6)
    assert prices.unit_price("byte", T0 + 10 * NS) is None


def test_changes_are_all_instants_in_order() -> None:
    """Every begin and end, once each."""
    prices = book(
        Price(amount=1, valid_until=at(10)),
        Price(amount=2, valid_from=at(10), valid_until=at(30)),
        Price(amount=3, valid_from=at(20)),
    )
    assert [c - T0 for c in prices.changes_ns()] == [10 * NS, 20 * NS, 30 * NS]


# -- as data -------------------------------------------------------------------------------------------------------

PRICES = st.builds(
    Price,
    amount=st.decimals(min_value=0, max_value=10**9, allow_nan=False, allow_infinity=False) | st.integers(0, 10**9),
    unit=st.sampled_from(["gpu_hour", "hour", "token", "byte_second"]),
    mode=st.sampled_from(["on_demand", "reserved", "spot", "owned"]),
    valid_from=st.none() | st.integers(0, 28).map(at),
    valid_until=st.none() | st.integers(29, 59).map(at),
    source=st.text(max_size=10),
    retrieved=st.none() | st.dates().map(str),
)


@given(st.lists(PRICES, max_size=4), st.sampled_from(["USD", "EUR"]))
@examples(100)
def test_a_book_survives_json(prices: list[Price], currency: str) -> None:
    """Through the journal and back every price means the same, to the last digit."""
    whole = book(*prices, currency=currency)
    back = PriceBook.from_json(json.loads(json.dumps(whole.to_json(), allow_nan=False)))
    assert back.currency == currency
    assert [p.exact for p in back.prices] == [p.exact for p in prices]
    assert back.to_json() == whole.to_json()
    assert list(back.device_rates(T0, T0 + 60 * NS, 3)) == list(whole.device_rates(T0, T0 + 60 * NS, 3))


def test_a_price_is_kept_as_text() -> None:
    """The journal has money as the user wrote it and never as a binary float."""
    assert book(Price(amount=0.1)).to_json()["prices"][0]["amount"] == "0.1"
