"""What a gigabyte costs in each class of storage, and what moving, reading or deleting it early costs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final

from costguard.errors import config_error
from costguard.prices.book import price_argument
from costguard.units import Money, parse_money, plain

DAY_NS: Final = 86_400 * 1_000_000_000
DAYS_PER_MONTH: Final = 30
"""A minimum of 90 days is billed as three months, so a month is 30 days wherever days and months meet."""
GB: Final = 10**9
_PRICES: Final = ("usd_per_gb_month", "retrieval_usd_per_gb", "put_usd_per_1000")


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageClass:
    """One class of storage and its prices.

    Args:
        name: As the store spells it, such as `GLACIER_IR`.
        usd_per_gb_month: US dollars for 10^9 bytes during 30 days.
        minimum_days: Days that are billed even where an object is deleted earlier, >= 0.
        retrieval_usd_per_gb: US dollars to read 10^9 bytes back, egress apart; 0 if free, `None` if unknown.
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
    retrieval_usd_per_gb: Money | None = None
    put_usd_per_1000: Money | None = None
    restore_hours: float = 0.0
    source: str = "user"
    as_of: str | None = None

    def __post_init__(self) -> None:
        for option in _PRICES:
            value = getattr(self, option)
            if value is not None or option == "usd_per_gb_month":
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

    def read_usd(self, size_bytes: int) -> Fraction | None:
        """US dollars for reading bytes back once, egress apart; `None` where their price is unknown."""
        return _times(self.retrieval_usd_per_gb, Fraction(size_bytes, GB))

    def put_usd(self, requests: int) -> Fraction | None:
        """US dollars for writing requests, `None` where their price is unknown and there are any."""
        return _times(self.put_usd_per_1000, Fraction(requests, 1000))

    def break_even_days(self, hot: StorageClass, *, size_bytes: int = GB, requests: int = 0) -> Fraction | None:
        """How long a thing must live for moving it here at once to cost less than leaving it hot.

        Below the minimum duration all of the minimum is billed here, so the life at which both cost the same is
        `(cold price x minimum days + requests) / hot price`. Where the price of requests is unknown they are left out:
        no life below the result pays, and one above it pays only if the requests cost less than it saves.

        Args:
            hot: Where it lies now.
            size_bytes: Its bytes, >= 1.
            requests: Writing requests that the move takes.

        Returns:
            Days, a lower bound if `put_usd(requests)` is `None`; `None` if it never pays.
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
        """Months of this class's saving that one read eats up, `None` if it saves nothing or that is unknown."""
        saved, read = hot.month_usd(GB) - self.month_usd(GB), self.read_usd(GB)
        return read / saved if saved > 0 and read is not None else None

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back; prices as decimal strings."""
        said = asdict(self)
        return said | {name: _text(said[name]) for name in _PRICES}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StorageClass:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: If it is something else.
        """
        try:
            return StorageClass(**data)
        except TypeError as error:
            raise config_error(f"StorageClass.from_json: not a class of storage ({error}).") from None


def _times(price: Money | None, quantity: Fraction) -> Fraction | None:
    """Nothing of something costs nothing, whatever its price."""
    if not quantity:
        return Fraction(0)
    return None if price is None else Fraction(parse_money(price)) * quantity


def _text(price: Money | None) -> str | None:
    return None if price is None else plain(parse_money(price))


_AWS = "AWS list prices, US East, as quoted by awsnegotiations.com/s3-storage and repost.aws"
_GCS = "Google list prices, US, as quoted by c3x.dev and oneuptime.com"
_AZURE = "Azure list prices, US, LRS, as quoted by inthetechpit.com"
_AS_OF = "2026-09"


def _listed(
    name: str,
    month: str,
    days: int = 0,
    read: str | None = None,
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
    "s3:STANDARD": _listed("STANDARD", "0.023", read="0", put="0.005"),
    "s3:STANDARD_IA": _listed("STANDARD_IA", "0.0125", 30, "0.01", "0.01"),
    "s3:GLACIER_IR": _listed("GLACIER_IR", "0.004", 90, "0.03", "0.02"),
    "s3:GLACIER": _listed("GLACIER", "0.0036", 90, "0.01", "0.03", 5),
    "s3:DEEP_ARCHIVE": _listed("DEEP_ARCHIVE", "0.00099", 180, "0.02", "0.05", 12),
    "gs:STANDARD": _listed("STANDARD", "0.020", read="0", source=_GCS),
    "gs:NEARLINE": _listed("NEARLINE", "0.010", 30, "0.01", source=_GCS),
    "gs:COLDLINE": _listed("COLDLINE", "0.004", 90, "0.02", source=_GCS),
    "gs:ARCHIVE": _listed("ARCHIVE", "0.0012", 365, "0.05", source=_GCS),
    "az:Hot": _listed("Hot", "0.018", read="0", source=_AZURE),
    "az:Cool": _listed("Cool", "0.010", 30, source=_AZURE),
    "az:Cold": _listed("Cold", "0.0036", 90, source=_AZURE),
    "az:Archive": _listed("Archive", "0.002", 180, "0.022", hours=15, source=_AZURE),
    "ebs:gp3": _listed("gp3", "0.08", read="0", source="AWS list price of gp3 volumes, US East"),
}
"""List prices by `store:class`; they differ by region and change, so a bill of one's own comes first.

What no source says is `None`, not 0: requests of Google and Azure, reading from Azure's Cool and Cold.
"""


def storage_class(which: str | StorageClass) -> StorageClass:
    """A class of the table by its name, or one of a user's own as it is.

    Args:
        which: Such as `s3:GLACIER_IR`, or a `StorageClass` with the prices of a contract or another region.

    Raises:
        ConfigError: If the table has no such class.
    """
    if isinstance(which, StorageClass):
        return which
    found = STORAGE_CLASSES.get(which) if isinstance(which, str) else None
    if found is None:
        known = ", ".join(STORAGE_CLASSES)
        raise config_error(
            f"storage_class({which!r}): not in the price table; expected one of {known}, or a StorageClass of your own."
        )
    return found
