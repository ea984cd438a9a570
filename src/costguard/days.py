"""Calendar days of a time zone as intervals of the wall clock, from local midnight to local midnight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from costguard.errors import config_error
from costguard.units import NS_PER_S

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Day:
    """One calendar day.

    Args:
        label: Its date, ISO 8601.
        start_ns: First instant, nanoseconds since the Unix epoch.
        end_ns: First instant of the next day; 23, 24 or 25 hours later, elsewhere half an hour more or less.
    """

    label: str
    start_ns: int
    end_ns: int


def zone_argument(owner: str, option: str, name: str) -> tzinfo:
    """Read the name of a time zone, or say in one sentence what is wrong with it.

    Args:
        owner: Whose argument it is.
        option: Its name.
        name: An IANA name such as `Asia/Tokyo`; `UTC` needs no time zone data.

    Raises:
        ConfigError: If there is no such zone on this machine.
    """
    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError, AttributeError):
        raise config_error(
            f"{owner}({option}={name!r}): no such time zone here; expected an IANA name such as 'Asia/Tokyo' or "
            "'UTC', and where the machine has no time zone data, `pip install tzdata`."
        ) from None


def day_of(wall_ns: int, zone: tzinfo) -> Day:
    """The calendar day that an instant lies in.

    Args:
        wall_ns: Nanoseconds since the Unix epoch.
        zone: Whose midnight begins a day.
    """
    local = (_EPOCH + timedelta(seconds=wall_ns // NS_PER_S)).astimezone(zone)
    today = local.date()
    return Day(today.isoformat(), _midnight_ns(today, zone), _midnight_ns(today + timedelta(days=1), zone))


def days_between(start_ns: int, end_ns: int, zone: tzinfo) -> Iterator[tuple[Day, int, int]]:
    """Cut an interval at each midnight within.

    Args:
        start_ns: Nanoseconds since the Unix epoch.
        end_ns: Not before `start_ns`.
        zone: Whose midnight begins a day.

    Yields:
        Each day with the part of the interval that lies in it; the parts add up to the interval.
    """
    while start_ns < end_ns:
        day = day_of(start_ns, zone)
        until = min(end_ns, day.end_ns)
        yield day, start_ns, until
        start_ns = until


def _midnight_ns(day: date, zone: tzinfo) -> int:
    # Where clocks leap over midnight this is the instant of the leap, where they repeat it the first of both: fold=0.
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    since = midnight.astimezone(timezone.utc) - _EPOCH
    return (since.days * 86_400 + since.seconds) * NS_PER_S
