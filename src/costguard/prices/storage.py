"""What a gigabyte costs in each class of storage, and what moving, reading or deleting it early costs there."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from costguard.errors import config_error
from costguard.prices.book import price_argument
from costguard.units import Money, parse_money

DAY_NS: Final = 86_400 * 1_000_000_000
DAYS_PER_MONTH: Final = 30
"""A minimum of 90 days is billed as three months, so a month is 30 days wherever days and months meet."""
GB: Final = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageClass:
    """One class of storage and its prices.

    Args:
        name: As the store spells it, such as `GLACIER_IR`.
        usd_per_gb_month: US dollars for 10^9 bytes during 30 days.
        minimum_days: Days that are billed even where an object is deleted earlier, >= 0.
        retrieval_usd_per_gb: US dollars to read 10^9 bytes back, egress apart.
        put_usd_per_1000: US dollars for 1000 writing requests, `None` if unknown.
        restore_hours: Hours until an object can be read after it was asked for, 0 where it is read at once.
        source: Who says so.
        as_of: Date or month of the source, ISO 8601.

    Raises:
        ConfigError: If a value cannot be used.
    """

    name: str
    usd_per_gb_month: Money
    minimum_days: int = 0
    retrieval_usd_per_gb: Money = 0
    put_usd_per_1000: Money | None = None
    restore_hours: float = 0.0
    source: str = "user"
    as_of: str | None = None

    def __post_init__(self) -> None:
        for option in ("usd_per_gb_month", "retrieval_usd_per_gb", "put_usd_per_1000"):
            value = getattr(self, option)
            if value is not None:
                price_argument("StorageClass", option, value)
        if self.minimum_days < 0:
            raise config_error(f"StorageClass(minimum_days={self.minimum_days}): expected days of at least 0.")
        if not self.restore_hours >= 0:
            raise config_error(f"StorageClass(restore_hours={self.restore_hours}): expected hours of at least 0.")

    def month_usd(self, size_bytes: int) -> Fraction:
        """US dollars for keeping bytes during 30 days."""
        return Fraction(parse_money(self.usd_per_gb_month)) * size_bytes / GB

    def life_usd(self, size_bytes: int, days: Fraction | int) -> Fraction:
        """US dollars for a whole life here: at least the minimum is billed."""
        return self.month_usd(size_bytes) * max(Fraction(days), Fraction(self.minimum_days)) / DAYS_PER_MONTH

    def early_usd(self, size_bytes: int, held_ns: int) -> Fraction:
        """US dollars that deleting now still bills: the rest of the minimum.

        Args:
            size_bytes: Bytes, >= 0.
            held_ns: Nanoseconds since they were written here, >= 0.
        """
        rest_ns = max(0, self.minimum_days * DAY_NS - held_ns)
        return self.month_usd(size_bytes) * rest_ns / (DAYS_PER_MONTH * DAY_NS)

    def free_at_ns(self, put_ns: int) -> int:
        """First instant (ns since the epoch) at which deleting what was written at `put_ns` costs nothing."""
        return put_ns + self.minimum_days * DAY_NS

    def read_usd(self, size_bytes: int) -> Fraction:
        """US dollars for reading bytes back once, egress apart."""
        return Fraction(parse_money(self.retrieval_usd_per_gb)) * size_bytes / GB

    def put_usd(self, requests: int) -> Fraction | None:
        """US dollars for writing requests, `None` where their price is unknown."""
        return None if self.put_usd_per_1000 is None else Fraction(parse_money(self.put_usd_per_1000)) * requests / 1000

    def break_even_days(self, hot: StorageClass, *, size_bytes: int = GB, requests: int = 0) -> Fraction | None:
        """How long a thing must live for moving it here at once to cost less than leaving it hot.

        Below the minimum duration all of the minimum is billed here, so the life at which both cost the same is
        `(cold price x minimum days + requests) / hot price`.

        Args:
            hot: Where it lies now.
            size_bytes: Its bytes, >= 1.
            requests: Writing requests that the move takes.

        Returns:
            Days, `None` if it never pays.
        """
        here, there = self.month_usd(size_bytes), hot.month_usd(size_bytes)
        moving = self.put_usd(requests) or Fraction(0)
        if there == 0:
            return None
        days = (here * self.minimum_days + moving * DAYS_PER_MONTH) / there
        if days <= self.minimum_days and self.minimum_days:
            return days
        # Beyond the minimum both are billed by the day, and only the difference pays for the requests.
        return moving * DAYS_PER_MONTH / (there - here) if there > here else None

    def read_break_even_months(self, hot: StorageClass) -> Fraction | None:
        """Months of this class's saving that one read eats up, `None` if it saves nothing."""
        saved = hot.month_usd(GB) - self.month_usd(GB)
        return self.read_usd(GB) / saved if saved > 0 else None


_AWS = "AWS list prices, US East, as quoted by awsnegotiations.com/s3-storage and repost.aws"
_GCS = "Google list prices, US, as quoted by c3x.dev and oneuptime.com"
_AZURE = "Azure list prices, US, LRS, as quoted by inthetechpit.com"
_AS_OF = "2026-09"


def _listed(
    name: str,
    month: str,
    days: int = 0,
    read: str = "0",
    put: str | None = None,
    hours: float = 0.0,
    source: str = _AWS,
) -> StorageClass:
    return StorageClass(
        name=name,
        usd_per_gb_month=month,
        minimum_days=days,
        retrieval_usd_per_gb=read,
        put_usd_per_1000=put,
        restore_hours=hours,
        source=source,
        as_of=_AS_OF,
    )


STORAGE_CLASSES: Final[dict[str, StorageClass]] = {
    "s3:STANDARD": _listed("STANDARD", "0.023", put="0.005"),
    "s3:STANDARD_IA": _listed("STANDARD_IA", "0.0125", 30, "0.01", "0.01"),
    "s3:GLACIER_IR": _listed("GLACIER_IR", "0.004", 90, "0.03", "0.02"),
    "s3:GLACIER": _listed("GLACIER", "0.0036", 90, "0.01", "0.03", 5),
    "s3:DEEP_ARCHIVE": _listed("DEEP_ARCHIVE", "0.00099", 180, "0.02", "0.05", 12),
    "gs:STANDARD": _listed("STANDARD", "0.020", source=_GCS),
    "gs:NEARLINE": _listed("NEARLINE", "0.010", 30, "0.01", source=_GCS),
    "gs:COLDLINE": _listed("COLDLINE", "0.004", 90, "0.02", source=_GCS),
    "gs:ARCHIVE": _listed("ARCHIVE", "0.0012", 365, "0.05", source=_GCS),
    "az:Hot": _listed("Hot", "0.018", source=_AZURE),
    "az:Cool": _listed("Cool", "0.010", 30, source=_AZURE),
    "az:Cold": _listed("Cold", "0.0036", 90, source=_AZURE),
    "az:Archive": _listed("Archive", "0.002", 180, "0.022", hours=15, source=_AZURE),
    "ebs:gp3": _listed("gp3", "0.08", source="AWS list price of gp3 volumes, US East"),
}
"""List prices by `store:class`; they differ by region and change, so a bill of one's own comes first."""


def storage_class(name: str) -> StorageClass:
    """Find a class of the table.

    Args:
        name: Such as `s3:GLACIER_IR`.

    Raises:
        ConfigError: If the table has no such class.
    """
    try:
        return STORAGE_CLASSES[name]
    except KeyError:
        known = ", ".join(STORAGE_CLASSES)
        raise config_error(f"storage_class({name!r}): not in the price table; expected one of {known}.") from None
