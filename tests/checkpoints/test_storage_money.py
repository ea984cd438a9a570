"""The money of tiers and intervals, to the cent, as worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from costguard.errors import ConfigError
from costguard.policies.disk import DiskFull, predict_full
from costguard.policies.interval import advise_interval, mean_time_to_failure_s, usd_per_hour_lost
from costguard.prices.storage import DAY_NS, GB, STORAGE_CLASSES, StorageClass, storage_class
from costguard.units import round_money

CHECKPOINT = 84 * GB  # 7B parameters, fp32 weights and Adam, 12 bytes each


def cents(amount: Fraction) -> str:
    return str(round_money(amount, 2))


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("ebs:gp3", "1344.00"),
        ("s3:STANDARD", "386.40"),
        ("gs:STANDARD", "336.00"),
        ("az:Hot", "302.40"),
        ("s3:STANDARD_IA", "210.00"),
        ("gs:NEARLINE", "168.00"),
        ("az:Cool", "168.00"),
    ],
)
def test_a_month_of_200_checkpoints_in_each_class(name: str, usd: str) -> None:
    """16.8 TB on one tier."""
    assert cents(storage_class(name).month_usd(200 * CHECKPOINT)) == usd


@pytest.mark.parametrize(
    ("cold", "count", "size_bytes", "usd"),
    [
        ("s3:GLACIER_IR", 190, CHECKPOINT, "83.16"),
        ("s3:DEEP_ARCHIVE", 190, CHECKPOINT, "35.12"),
        ("s3:GLACIER_IR", 20, CHECKPOINT, "26.04"),
        ("s3:GLACIER_IR", 20, 14 * GB, "20.44"),
    ],
)
def test_a_month_of_ten_hot_checkpoints_and_the_rest_cold(cold: str, count: int, size_bytes: int, usd: str) -> None:
    """What demoting, thinning and stripping save against 386.40."""
    hot = storage_class("s3:STANDARD").month_usd(10 * CHECKPOINT)
    assert cents(hot + storage_class(cold).month_usd(count * size_bytes)) == usd


@pytest.mark.parametrize(
    ("cold", "hot", "days"),
    [
        ("s3:STANDARD_IA", "s3:STANDARD", "16.3"),
        ("s3:GLACIER_IR", "s3:STANDARD", "15.7"),
        ("s3:GLACIER", "s3:STANDARD", "14.1"),
        ("s3:DEEP_ARCHIVE", "s3:STANDARD", "7.7"),
        ("gs:NEARLINE", "gs:STANDARD", "15.0"),
        ("gs:COLDLINE", "gs:STANDARD", "18.0"),
        ("gs:ARCHIVE", "gs:STANDARD", "21.9"),
        ("az:Cool", "az:Hot", "16.7"),
        ("az:Cold", "az:Hot", "18.0"),
        ("az:Archive", "az:Hot", "20.0"),
    ],
)
def test_break_even_lives_of_the_classes(cold: str, hot: str, days: str) -> None:
    """Below so many days left, demoting costs more than staying."""
    even = storage_class(cold).break_even_days(storage_class(hot))
    assert even is not None
    assert str(round_money(even, 1)) == days


@pytest.mark.parametrize("name", [n for n, c in STORAGE_CLASSES.items() if c.minimum_days])
def test_at_the_break_even_life_both_cost_the_same(name: str) -> None:
    """The formula is the crossing of the two bills, requests and all."""
    cold, hot = storage_class(name), storage_class("s3:STANDARD")
    even = cold.break_even_days(hot, size_bytes=CHECKPOINT, requests=1603)
    assert even is not None
    moved = cold.life_usd(CHECKPOINT, even) + (cold.put_usd(1603) or 0)
    assert moved == hot.life_usd(CHECKPOINT, even)


@pytest.mark.parametrize(
    ("name", "usd"), [("s3:GLACIER_IR", "191.52"), ("s3:DEEP_ARCHIVE", "94.80"), ("s3:STANDARD_IA", "199.50")]
)
def test_regret_at_once_bills_the_whole_minimum(name: str, usd: str) -> None:
    """190 checkpoints moved and deleted the same minute."""
    assert cents(storage_class(name).early_usd(190 * CHECKPOINT, 0)) == usd
    assert storage_class(name).early_usd(190 * CHECKPOINT, 180 * DAY_NS) == 0


def test_one_restore_and_the_requests_of_one_upload() -> None:
    """84 GB read from Glacier IR, and written in parts of 50 MiB."""
    cold = storage_class("s3:GLACIER_IR")
    assert cents(cold.read_usd(CHECKPOINT)) == "2.52"
    requests = -(-CHECKPOINT // (50 << 20))
    assert requests == 1603
    assert cold.put_usd(requests) == Fraction("0.03206")


@pytest.mark.parametrize(
    ("cold", "hot", "months"),
    [
        ("s3:GLACIER_IR", "s3:STANDARD", 1.6),
        ("gs:COLDLINE", "gs:STANDARD", 1.3),
        ("gs:ARCHIVE", "gs:STANDARD", 2.7),
        ("s3:DEEP_ARCHIVE", "s3:STANDARD", 0.9),
    ],
)
def test_one_read_eats_so_many_months_of_saving(cold: str, hot: str, months: float) -> None:
    """Why a checkpoint that will be resumed is not archived."""
    eaten = storage_class(cold).read_break_even_months(storage_class(hot))
    assert eaten == pytest.approx(months, abs=0.051)


def test_unknown_prices_stay_unknown() -> None:
    """No price is None, never zero; nothing of it costs nothing; a class that is not listed is an error."""
    unknown = StorageClass(name="x", usd_per_gb_month="0.01")
    assert unknown.put_usd(10) is None
    assert unknown.read_usd(GB) is None
    assert unknown.read_break_even_months(storage_class("s3:STANDARD")) is None
    assert (unknown.put_usd(0), unknown.read_usd(0)) == (0, 0)
    with pytest.raises(ConfigError, match="not in the price table; expected one of s3:STANDARD"):
        storage_class("s3:COLDEST")
    with pytest.raises(ConfigError, match=r"StorageClass\(usd_per_gb_month='cheap'\)"):
        StorageClass(name="x", usd_per_gb_month="cheap")
    with pytest.raises(ConfigError, match="usd_per_gb_month=None"):
        StorageClass(name="x", usd_per_gb_month=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="minimum_days=-1"):
        StorageClass(name="x", usd_per_gb_month=0, minimum_days=-1)


def test_what_the_sources_do_not_say_is_not_free() -> None:
    """Reading is free from the standard classes alone; requests of Google and Azure are not known."""
    free = {name for name, each in STORAGE_CLASSES.items() if each.read_usd(GB) == 0}
    assert free == {"s3:STANDARD", "gs:STANDARD", "az:Hot", "ebs:gp3"}
    assert {name for name, each in STORAGE_CLASSES.items() if each.read_usd(GB) is None} == {"az:Cool", "az:Cold"}
    assert all(c.put_usd(1) is None for name, c in STORAGE_CLASSES.items() if not name.startswith("s3:"))


def test_the_break_even_life_without_the_price_of_requests_is_a_lower_bound() -> None:
    """Coldline: 18 days at the least, as if its requests were free; more as soon as they have a price."""
    cold, hot = storage_class("gs:COLDLINE"), storage_class("gs:STANDARD")
    least = cold.break_even_days(hot, size_bytes=CHECKPOINT, requests=1603)
    assert least == 18
    priced = StorageClass.from_json(cold.to_json() | {"put_usd_per_1000": "0.02"})
    known = priced.break_even_days(hot, size_bytes=CHECKPOINT, requests=1603)
    assert known is not None
    assert known > least


def test_a_class_of_ones_own_stands_wherever_a_name_does() -> None:
    """It is taken as it is, and survives being written down to the last digit."""
    own = StorageClass(name="GLACIER_IR", usd_per_gb_month="0.0033", minimum_days=90, retrieval_usd_per_gb=0.03)
    assert storage_class(own) is own
    again = StorageClass.from_json(own.to_json())
    assert again.month_usd(CHECKPOINT) == own.month_usd(CHECKPOINT) == Fraction("0.2772")
    assert (again.read_usd(GB), again.put_usd(1), again.source) == (Fraction("0.03"), None, "user")
    with pytest.raises(ConfigError, match="not a class of storage"):
        StorageClass.from_json({"name": "x"})


def test_every_listed_price_says_where_from_and_when() -> None:
    """No price without a source and a date."""
    assert all(c.source != "user" and c.as_of for c in STORAGE_CLASSES.values())


def test_advised_interval_in_money() -> None:
    """8 GPUs at $20 an hour on spot: 19 minutes; 36 when each checkpoint is kept hot for a week."""
    plain = advise_interval(30, 6 * 3600, usd_per_hour=20)
    assert plain.every_s / 60 == pytest.approx(18.97, abs=0.01)
    kept = storage_class("s3:STANDARD").life_usd(CHECKPOINT, 7)
    assert cents(kept) == "0.45"
    dear = advise_interval(30, 6 * 3600, usd_per_hour=20, usd_per_checkpoint=kept)
    assert dear.every_s / 60 == pytest.approx(36.5, abs=0.05)


def test_the_advised_interval_costs_least() -> None:
    """Any other interval loses more money an hour."""
    advice = advise_interval(30, 21_600, usd_per_hour=20, usd_per_checkpoint=0.45)
    for factor in (0.25, 0.5, 0.9, 1.1, 2, 4):
        other = usd_per_hour_lost(advice.every_s * factor, 30, 21_600, usd_per_hour=20, usd_per_checkpoint=0.45)
        assert other > advice.usd_per_hour_lost > 0


def test_failures_are_learned_on_the_prior_of_llama_3() -> None:
    """8 GPUs: 264 days and 10 hours between saves; 256: 198 hours and 2.6; each failure of its own counts."""
    assert mean_time_to_failure_s(8) / 86_400 == pytest.approx(264, abs=0.5)
    assert advise_interval(30, mean_time_to_failure_s(8)).every_s / 3600 == pytest.approx(10.3, abs=0.05)
    assert mean_time_to_failure_s(256) / 3600 == pytest.approx(198, abs=0.1)
    assert advise_interval(60, mean_time_to_failure_s(256)).every_s / 3600 == pytest.approx(2.57, abs=0.01)
    assert mean_time_to_failure_s(256, failures=9, gpu_hours=0) == pytest.approx(mean_time_to_failure_s(256) / 10)


def test_without_a_price_the_interval_is_youngs() -> None:
    """The rule of 1974 is what is left."""
    assert advise_interval(30, 21_600, usd_per_checkpoint=5).every_s == pytest.approx((2 * 21_600 * 30) ** 0.5)
    with pytest.raises(ConfigError):
        advise_interval(-1, 1)


def test_a_full_disk_is_foretold() -> None:
    """The step of the first save that does not fit, counting that a save is whole before its predecessor goes."""
    facts = {"bytes_per_save": 10, "step": 1000, "steps_per_save": 100}
    assert predict_full(free_bytes=35, seconds_per_step=2, **facts) == DiskFull(step=1400, in_s=800, saves_left=3)
    assert predict_full(free_bytes=9, **facts) == DiskFull(step=1100, in_s=None, saves_left=0)
    assert predict_full(free_bytes=10, freed_per_save=10, **facts) is None
    assert predict_full(free_bytes=9, freed_per_save=10, **facts) is not None
    assert predict_full(free_bytes=35, freed_per_save=5, spare_bytes=5, **facts) == DiskFull(
        step=1600, in_s=None, saves_left=5
    )
