"""Calendar days in any time zone: from local midnight to local midnight, never 24 hours on."""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import HOUR_NS, NS, examples
from costguard.days import day_of, days_between, zone_argument
from costguard.errors import ConfigError

ZONES = ["UTC", "Asia/Tokyo", "Europe/Amsterdam", "America/New_York", "Antarctica/Troll", "Australia/Lord_Howe"]
ZONES += ["America/Havana", "Pacific/Apia", "Asia/Kathmandu", "America/Sao_Paulo"]


def instant(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(timezone.utc).timestamp()) * NS


@pytest.mark.parametrize(
    ("zone", "noon", "hours"),
    [
        ("UTC", "2026-03-29T12:00:00+00:00", 24),
        ("Asia/Tokyo", "2026-11-30T12:00:00+09:00", 24),
        ("Europe/Amsterdam", "2026-03-29T12:00:00+02:00", 23),
        ("Europe/Amsterdam", "2026-10-25T12:00:00+01:00", 25),
        ("America/New_York", "2026-03-08T12:00:00-04:00", 23),
        ("America/New_York", "2026-11-01T12:00:00-05:00", 25),
        ("Antarctica/Troll", "2026-03-29T12:00:00+02:00", 22),
        ("Antarctica/Troll", "2026-10-25T12:00:00+00:00", 26),
        ("Australia/Lord_Howe", "2026-10-04T12:00:00+11:00", 23.5),
        ("America/Sao_Paulo", "2018-11-04T12:00:00-02:00", 23),  # there is no midnight
        ("America/Havana", "2026-11-01T12:00:00-05:00", 25),  # there are two
    ],
)
def test_a_day_has_as_many_hours_as_the_zone_gives_it(zone: str, noon: str, hours: float) -> None:
    """Days of 22 to 26 hours are one day, under the date that clocks on the wall show."""
    day = day_of(instant(noon), zone_argument("t", "zone", zone))
    assert (day.end_ns - day.start_ns) / HOUR_NS == hours
    assert day.label == noon[:10]


def test_tokyo_begins_its_day_nine_hours_before_utc() -> None:
    """15:00 UTC is tomorrow in Tokyo, to the nanosecond."""
    tokyo = ZoneInfo("Asia/Tokyo")
    midnight = instant("2026-11-30T15:00:00+00:00")
    assert day_of(midnight - 1, tokyo).label == "2026-11-30"
    assert day_of(midnight, tokyo).label == "2026-12-01"
    assert day_of(midnight, tokyo).start_ns == day_of(midnight - 1, tokyo).end_ns == midnight


@given(
    zone=st.sampled_from(ZONES),
    start=st.integers(946_684_800, 1_900_000_000),
    length=st.integers(0, 10 * 24 * 3600 * NS),
    odd=st.integers(0, NS - 1),
)
@examples(200)
def test_the_days_of_an_interval_add_up_to_it(zone: str, start: int, length: int, odd: int) -> None:
    """Every nanosecond lies in exactly one day, also where clocks are put forward or back."""
    begin = start * NS + odd
    parts = list(days_between(begin, begin + length, zone_argument("t", "zone", zone)))
    assert sum(until - since for _, since, until in parts) == length
    assert all(day.start_ns <= since < until <= day.end_ns for day, since, until in parts)
    labels = [day.label for day, _, _ in parts]
    assert labels == sorted(set(labels))


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "Europe", None, 3])
def test_an_unknown_zone_is_refused_with_the_remedy(name: str) -> None:
    """What is no IANA name is said to be none, whatever it is."""
    with pytest.raises(ConfigError, match=r"^Budget\(time_zone=.*IANA name.*pip install tzdata"):
        zone_argument("Budget", "time_zone", name)
