"""Money is read exactly as it was written, exact inside, and rounded once so that parts add up to their whole."""

from __future__ import annotations

import decimal
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import examples
from costguard.units import (
    MONEY_PLACES,
    format_count,
    format_duration_s,
    format_money,
    parse_money,
    plain,
    round_money,
    round_shares,
)

AMOUNTS = st.builds(Fraction, st.integers(0, 10**14), st.integers(1, 10**9) | st.sampled_from([3, 10**6, 10**14]))
PARTS = st.lists(AMOUNTS, max_size=8).map(lambda amounts: dict(enumerate(amounts)))
UNIT = Fraction(1, 10**MONEY_PLACES)


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (0.1, "0.1"),
        (2.49, "2.49"),
        (1e-9, "0.000000001"),
        (0, "0"),
        (8, "8"),
        ("2.49", "2.49"),
        (" 2.49 ", "2.49"),
        ("1e3", "1000"),
        ("0", "0"),
        ("+1.5", "1.5"),
        (Decimal("2.49"), "2.49"),
        (Decimal("0.1000000000000000055511151231257827"), "0.1000000000000000055511151231257827"),
        (1e22, "10000000000000000000000"),
    ],
)
def test_an_amount_is_what_the_user_wrote(value: object, amount: str) -> None:
    """A float means its shortest text, a text means itself, and a Decimal is taken as it is."""
    assert parse_money(value) == Decimal(amount)


def test_a_tenth_is_a_tenth() -> None:
    """The float 0.1 becomes exactly a tenth and not its binary neighbour."""
    assert parse_money(0.1) == Decimal("0.1")
    assert Fraction(parse_money(0.1)) == Fraction(1, 10)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("abc", "not a number"),
        ("", "not a number"),
        ("2,49", "not a number"),
        ("$2.49", "not a number"),
        (True, "not a number"),
        (False, "not a number"),
        (None, "not a number"),
        ([2], "not a number"),
        (b"2", "not a number"),
        (2j, "not a number"),
        ("nan", "not a finite number"),
        ("sNaN", "not a finite number"),
        ("inf", "not a finite number"),
        (float("nan"), "not a finite number"),
        (float("inf"), "not a finite number"),
        (float("-inf"), "not a finite number"),
        (Decimal("NaN"), "not a finite number"),
        (Decimal("sNaN"), "not a finite number"),
        ("-1", "negative"),
        (-1, "negative"),
        (-0.01, "negative"),
        (Decimal("-1e-30"), "negative"),
    ],
)
def test_what_is_no_amount_is_refused_with_its_reason(value: object, why: str) -> None:
    """Text that is no number, truth values, what is not finite and what is negative each say so."""
    with pytest.raises(ValueError, match=f"^{why}$"):
        parse_money(value)


@given(st.decimals(min_value=0, allow_nan=False, allow_infinity=False, places=20))
@examples(100)
def test_an_amount_survives_its_text(amount: Decimal) -> None:
    """Written plainly and read again an amount is the same."""
    assert parse_money(plain(amount)) == amount
    assert "E" not in plain(amount)


@given(PARTS)
@examples(300)
def test_rounded_parts_add_up_to_the_rounded_whole(parts: dict[int, Fraction]) -> None:
    """Whatever the parts are, no unit is lost or made, and each part is within one unit of what it was."""
    rounded = round_shares(parts)
    assert rounded.keys() == parts.keys()
    assert sum(map(Fraction, rounded.values())) == Fraction(round_money(sum(parts.values(), Fraction(0))))
    for name, amount in parts.items():
        assert abs(Fraction(rounded[name]) - amount) < UNIT


@given(PARTS.filter(bool), st.sampled_from([-1, 0, 1]))
@examples(200)
def test_parts_add_up_to_a_whole_that_was_rounded_elsewhere(parts: dict[int, Fraction], off: int) -> None:
    """A whole that is itself a rounded part, within a unit of the sum, is met exactly, and nothing turns negative."""
    exact = sum(parts.values(), Fraction(0))
    whole = Fraction(round_money(exact)) + off * UNIT
    if whole < 0 or abs(whole - exact) > UNIT:
        whole = Fraction(round_money(exact))
    rounded = round_shares(parts, whole=Decimal(whole.numerator) / Decimal(whole.denominator))
    assert sum(map(Fraction, rounded.values())) == whole
    assert all(amount >= 0 for amount in rounded.values())


@pytest.mark.parametrize(
    ("parts", "rounded"),
    [
        ({}, {}),
        ({"a": Fraction(0)}, {"a": "0"}),
        ({"a": Fraction(1, 3), "b": Fraction(1, 3), "c": Fraction(1, 3)}, {"a": "0.34", "b": "0.33", "c": "0.33"}),
        ({"a": Fraction(2, 3), "b": Fraction(1, 3)}, {"a": "0.67", "b": "0.33"}),
        ({"a": Fraction(5, 1000), "b": Fraction(5, 1000)}, {"a": "0.01", "b": "0"}),
        ({"a": Fraction(5, 1000)}, {"a": "0"}),
        ({"a": Fraction(15, 1000)}, {"a": "0.02"}),
    ],
)
def test_units_left_over_go_to_the_largest_remainders(parts: dict[str, Fraction], rounded: dict[str, str]) -> None:
    """Hamilton's method, first named first on a tie; the whole is rounded half to even."""
    assert {k: plain(v) for k, v in round_shares(parts, places=2).items()} == rounded


@pytest.mark.parametrize("precision", [1, 3, 28])
def test_the_users_decimal_context_changes_nothing(precision: int) -> None:
    """A training script may set the precision of its own decimals: money is rounded as ever."""
    parts = {"a": Fraction(123456789, 1000), "b": Fraction(1, 3), "c": Fraction(2, 7)}
    expected = round_shares(parts)
    whole = round_money(sum(parts.values()))
    with decimal.localcontext() as context:
        context.prec = precision
        assert round_shares(parts) == expected
        assert round_money(sum(parts.values())) == whole
        assert round_shares(parts, whole=whole) == expected
        assert parse_money("123456.789123") == Decimal("123456.789123")


@pytest.mark.parametrize("digits", [10, 15, 16, 20, 30])
def test_large_amounts_are_rounded_as_exactly_as_small_ones(digits: int) -> None:
    """Money has no size at which it becomes approximate."""
    amount = 10**digits + Fraction(1, 7)
    assert abs(Fraction(round_money(amount)) - amount) <= UNIT / 2
    assert sum(map(Fraction, round_shares({"a": amount, "b": amount}).values())) == Fraction(round_money(2 * amount))


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (None, "unknown"),
        ("0", "$0.00"),
        ("1234.5", "$1,234.50"),
        ("0.0123456", "$0.01235"),
        ("0.5", "$0.5000"),
        (Fraction(1, 3), "$0.3333"),
        (Decimal("0.000000000001"), "$0.000000000001"),
        ("0.00000123456", "$0.000001235"),
        ("1", "$1.00"),
    ],
)
def test_an_amount_is_shown_without_a_false_zero(amount: Fraction | Decimal | str | None, shown: str) -> None:
    """Cents above a dollar, four digits below, and what is unknown is not zero."""
    assert format_money(amount) == shown


def test_other_currencies_are_named() -> None:
    """A currency with a sign has it in front, another its code behind."""
    assert format_money("2", "EUR") == "€2.00"
    assert format_money("2", "CHF") == "2.00 CHF"


def test_durations_and_counts_are_shown_to_a_person() -> None:
    """Seconds, minutes, hours; thousands to quintillions."""
    assert [format_duration_s(s) for s in (0, 0.25, 75, 3600)] == ["0 s", "0.25 s", "1 min 15 s", "1 h 0 min"]
    assert [format_count(n) for n in (0, 999, 1000, 2_457_600, 3e18)] == ["0", "999", "1 k", "2.46 M", "3 E"]
