"""Money, durations and counts: read from the user in one place, rounded once, and shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TypeVar

NS_PER_S = 1_000_000_000
NS_PER_HOUR = 3600 * NS_PER_S
MONEY_PLACES = 12
"""Decimal places of money in any output: small enough for one token of the cheapest model."""

Money = float | str | Decimal
"""What a user may write for an amount: 2.49, "2.49" or Decimal("2.49")."""

_K = TypeVar("_K")


def parse_money(value: Money | int) -> Decimal:
    """Read an amount of money exactly as the user wrote it.

    Args:
        value: A number or its text; a float means its shortest text, so 0.1 is a tenth.

    Returns:
        The amount, finite and not negative.

    Raises:
        ValueError: If it is not a finite number of at least 0.

    Example:
        >>> parse_money(0.1)
        Decimal('0.1')
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise ValueError("not a number")
    try:
        amount = value if isinstance(value, Decimal) else Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError("not a number") from None
    if not amount.is_finite():
        raise ValueError("not a finite number")
    if amount < 0:
        raise ValueError("negative")
    return amount


def round_shares(
    parts: Mapping[_K, Fraction], places: int = MONEY_PLACES, whole: Decimal | None = None
) -> dict[_K, Decimal]:
    """Round the parts of a whole so that they still add up to the rounded whole.

    The whole is rounded half to even; the units that flooring each part leaves over go to the parts with
    the largest remainders (Hamilton's method), first named first on a tie.

    Args:
        parts: Exact amounts by name, none negative.
        places: Decimal places.
        whole: The rounded whole where it has been rounded already as a part of another one: within one unit of
            the parts' sum.

    Returns:
        The same names with decimals whose sum is the whole, by default `round_money(sum(parts))`.
    """
    scale = 10**places
    scaled = {name: part * scale for name, part in parts.items()}
    units = {name: math.floor(part) for name, part in scaled.items()}
    target = round(sum(scaled.values(), Fraction(0))) if whole is None else int(Fraction(whole) * scale)
    left = target - sum(units.values())
    by_remainder = sorted(scaled, key=lambda name: units[name] - scaled[name])
    for name in by_remainder[: max(0, left)]:
        units[name] += 1
    if left < 0 and units:
        units[max(units, key=lambda name: units[name])] += left
    return {name: _exact(n, places) for name, n in units.items()}


def round_money(amount: Fraction, places: int = MONEY_PLACES) -> Decimal:
    """Round an exact amount half to even at `places` decimals."""
    return _exact(round(amount * 10**places), places)


def _exact(units: int, places: int) -> Decimal:
    """A decimal from its digits: the user's decimal context, which rounds results of arithmetic, has no say in it."""
    return Decimal((int(units < 0), tuple(int(d) for d in str(abs(units))), -places))


def plain(amount: Decimal) -> str:
    """Write a decimal without exponent and without trailing zeros.

    Example:
        >>> plain(Decimal("2.500000000000"))
        '2.5'
    """
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}


def format_money(amount: Decimal | Fraction | str | None, currency: str = "USD") -> str:
    """Show an amount to a person: cents above a dollar, four significant digits below, never a false zero.

    Example:
        >>> format_money("1234.5"), format_money("0.0123456"), format_money(None)
        ('$1,234.50', '$0.01235', 'unknown')
    """
    if amount is None:
        return "unknown"
    value = round_money(amount) if isinstance(amount, Fraction) else Decimal(amount)
    sign = _SIGNS.get(currency)
    if value == 0:
        text = "0.00"
    elif abs(value) >= 1:
        text = f"{value:,.2f}"
    else:
        places = min(MONEY_PLACES, max(2, 3 - value.adjusted()))
        text = f"{value:.{places}f}"
    return f"{sign}{text}" if sign else f"{text} {currency}"


_DURATION_UNITS_NS = {
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": NS_PER_HOUR,
    "d": 24 * NS_PER_HOUR,
    "w": 7 * 24 * NS_PER_HOUR,
}


def parse_duration_ns(text: str) -> int:
    """Read a duration as a user writes it: a number above 0 and a unit, one of s, m, h, d, w.

    Args:
        text: Such as `90m`, `12h`, `7d`, `1.5w`.

    Returns:
        Nanoseconds, at least 1.

    Raises:
        ValueError: If it is none; a bare number could be anything.

    Example:
        >>> parse_duration_ns("7d") == 7 * 24 * NS_PER_HOUR
        True
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", text.strip()) if isinstance(text, str) else None
    length_ns = round(Fraction(found[1]) * _DURATION_UNITS_NS[found[2]]) if found else 0
    if length_ns < 1:
        raise ValueError("expected a number above 0 and a unit: 90m, 12h, 7d or 2w")
    return length_ns


_BYTE_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


def parse_bytes(value: float | str) -> int:
    """Read a number of bytes as a user writes it.

    Args:
        value: A number of bytes, or a number and a unit: `500GB` (powers of ten) or `2TiB` (powers of two).

    Returns:
        Bytes, at least 0.

    Raises:
        ValueError: If it is none.

    Example:
        >>> parse_bytes("1.5GB"), parse_bytes("1KiB"), parse_bytes(20e6)
        (1500000000, 1024, 20000000)
    """
    units = {name.lower(): size for name, size in {**_BYTE_UNITS, **_BINARY_UNITS}.items()}
    if isinstance(value, str):
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?i?b)", value.strip().lower())
        if found is not None and found[2] in units:
            return round(Fraction(found[1]) * units[found[2]])
    elif not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return round(value)
    raise ValueError("expected a number of bytes, or one with a unit such as 500GB or 2TiB")


def parse_share(text: str) -> float:
    """Read a percentage such as `10%` as a share of one.

    Raises:
        ValueError: If it is none, or not between 0% and 100%.

    Example:
        >>> parse_share("10%")
        0.1
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", text.strip())
    share = float(Fraction(found[1]) / 100) if found else -1.0
    if not 0 <= share < 1:
        raise ValueError("expected a percentage below 100, such as 10%")
    return share


def format_bytes(size: int | None) -> str:
    """Show bytes to a person, in powers of ten as storage is sold.

    Example:
        >>> format_bytes(84_000_000_000), format_bytes(12), format_bytes(None)
        ('84.0 GB', '12 B', 'unknown')
    """
    if size is None:
        return "unknown"
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def format_duration_s(seconds: float) -> str:
    """Show a duration to a person.

    Example:
        >>> format_duration_s(0.25), format_duration_s(75), format_duration_s(90_000)
        ('0.25 s', '1 min 15 s', '25 h 0 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600):,} h {int(seconds % 3600 // 60)} min"


def format_count(number: float) -> str:
    """Show a large count with a metric suffix.

    Example:
        >>> format_count(2_457_600), format_count(999)
        ('2.46 M', '999')
    """
    for size, suffix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {suffix}"
    return f"{number:.3g}" if isinstance(number, float) else str(number)
