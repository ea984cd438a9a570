"""Amounts of a pot: whole numbers of its smallest part, read from the user once and shown as decimals."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from costguard.errors import config_error
from costguard.units import MONEY_PLACES, Money, format_money, parse_money, plain, round_money

PARTS: int = 10**MONEY_PLACES
"""Smallest parts of one unit: what a pot counts in, so that every sum is exact."""

USD = "usd"
GPU_HOURS = "gpu_hours"
EXPECTED = {USD: "US dollars such as 250 or '2.49'", GPU_HOURS: "GPU-hours such as 500 or '0.5'"}

Amount = Money | Fraction | int
"""What a caller may give: money as users write it, or the exact rational that the ledger computes."""


def parts_of(value: Amount, *, up: bool = False) -> int:
    """Read an amount in smallest parts.

    Args:
        value: At least 0.
        up: Round up what is finer than a part, as for a spend; else down, as for a credit.

    Raises:
        ValueError: If it is not a finite number of at least 0.

    Example:
        >>> parts_of("0.25"), parts_of(Fraction(1, 3), up=True)
        (250000000000, 333333333334)
    """
    exact = value if isinstance(value, Fraction) else Fraction(parse_money(value))
    if exact < 0:
        raise ValueError("negative")
    return math.ceil(exact * PARTS) if up else math.floor(exact * PARTS)


def argument(owner: str, option: str, value: Amount, unit: str, *, up: bool = False) -> int:
    """Read an amount that the user gave, or say in one sentence what is wrong with it.

    Raises:
        ConfigError: If `value` is not a finite amount of at least 0.
    """
    try:
        return parts_of(value, up=up)
    except ValueError as why:
        raise config_error(f"{owner}({option}={value!r}): {why}; expected {EXPECTED[unit]}.") from None


def decimal_of(parts: int) -> Decimal:
    """The amount as a decimal, exactly."""
    return round_money(Fraction(parts, PARTS))


def text_of(parts: int) -> str:
    """The amount as it is written in a pot's files, exactly."""
    return plain(decimal_of(parts))


def shown(parts: int, unit: str) -> str:
    """The amount as it is shown to a person.

    Example:
        >>> shown(parts_of("12.5"), USD), shown(parts_of("12.5"), GPU_HOURS)
        ('$12.50', '12.5 GPU-hours')
    """
    if unit == USD:
        return format_money(decimal_of(parts))
    return f"{plain(round(decimal_of(parts), 4))} GPU-hours"
