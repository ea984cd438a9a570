"""The advised interval as a range: its arithmetic, the worked examples, and what is said of a run against it."""

from __future__ import annotations

import math

import pytest

from costguard.errors import ConfigError
from costguard.policies.interval import (
    PRIOR_GPU_HOURS,
    Range,
    failure_range_s,
    gamma_quantile,
    mean_time_to_failure_s,
    review_interval,
    would_have_lost_s,
)

SPOT = Range(6 * 3600, 6 * 3600, 6 * 3600)
"""A mean time to failure of 6 hours, known exactly."""


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_the_quantile_of_one_failure_is_that_of_an_exponential(probability: float) -> None:
    """Shape 1 has a closed form."""
    assert gamma_quantile(1, probability) == pytest.approx(-math.log1p(-probability), rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "probability", "value"),
    [(2, 0.1, 0.531812), (2, 0.9, 3.889720), (5, 0.5, 4.670909), (0.5, 0.9, 1.352772), (1000, 0.5, 999.66669)],
)
def test_quantiles_of_other_shapes(shape: float, probability: float, value: float) -> None:
    """Half of a chi-squared quantile of 2 x shape degrees of freedom, as tables have it."""
    assert gamma_quantile(shape, probability) == pytest.approx(value, rel=1e-6)


def test_the_prior_is_one_failure_in_50_700_gpu_hours() -> None:
    """419 interruptions in 54 days of 16,384 GPUs."""
    assert pytest.approx(50_700, rel=1e-3) == PRIOR_GPU_HOURS


def test_a_range_narrows_as_failures_are_seen() -> None:
    """Around the same middle, which is the mean of the rate; no failure leaves more than a factor of twenty open."""
    few, many = failure_range_s(8), failure_range_s(8, failures=99, gpu_hours=99 * PRIOR_GPU_HOURS)
    assert few.middle == pytest.approx(mean_time_to_failure_s(8))
    assert many.middle == pytest.approx(few.middle)
    assert few.low < many.low < few.middle < many.high < few.high
    assert few.high / few.low == pytest.approx(math.log(10) / -math.log(0.9))
    with pytest.raises(ConfigError, match="gpus=0"):
        failure_range_s(0)


def test_the_worked_example_on_spot_machines() -> None:
    """8 GPUs at $20 an hour, M = 6 h, C = 30 s: every 19 minutes; 36 with $0.45 a checkpoint, which is 81 s of them."""
    plain = review_interval(30, SPOT, length_s=86_400, usd_per_hour=20)
    assert plain.advised_s.middle / 60 == pytest.approx(18.97, abs=0.01)
    assert plain.usd_per_hour_now is None
    kept = review_interval(30, SPOT, length_s=86_400, usd_per_hour=20, usd_per_checkpoint=0.45)
    assert 0.45 / 20 * 3600 == 81
    assert kept.advised_s.middle == pytest.approx(math.sqrt(2 * 6 * 3600 * (30 + 81)))
    assert kept.advised_s.middle / 60 == pytest.approx(36.5, abs=0.05)


def test_what_the_present_interval_costs_against_the_advised_one() -> None:
    """Every 10 minutes: 111 s in 600 and 300 s in 21,600 of $20 an hour, against $2.03 at the advised 36 minutes."""
    review = review_interval(30, SPOT, length_s=86_400, every_s=600, usd_per_hour=20, usd_per_checkpoint=0.45)
    assert review.usd_per_hour_now is not None
    assert review.usd_per_hour_advised is not None
    assert review.usd_per_hour_saved is not None
    assert review.usd_per_hour_now.middle == pytest.approx(20 * (111 / 600 + 300 / 21_600))
    assert round(review.usd_per_hour_now.middle, 2) == 3.98
    assert round(review.usd_per_hour_advised.middle, 2) == 2.03
    assert review.usd_per_hour_saved.middle == pytest.approx(3.9778 - 2.0276, abs=1e-4)
    best = review_interval(
        30, SPOT, length_s=86_400, every_s=review.advised_s.middle, usd_per_hour=20, usd_per_checkpoint=0.45
    )
    assert best.usd_per_hour_saved == pytest.approx((0, 0, 0), abs=1e-12)


def test_a_range_of_failures_is_a_range_of_advice_and_money() -> None:
    """Seldom failures advise long intervals and cost less; low is never above high."""
    review = review_interval(30, failure_range_s(256), length_s=86_400, every_s=600, usd_per_hour=640)
    assert review.advised_s.low < review.advised_s.middle < review.advised_s.high
    for money in (review.usd_per_hour_now, review.usd_per_hour_advised, review.usd_per_hour_saved):
        assert money is not None
        assert 0 <= money.low <= money.middle <= money.high
    assert review.failures_matter


def test_hardware_is_no_risk_of_a_short_run_on_few_machines() -> None:
    """8 on-demand GPUs: the advised 10 hours are beyond a run of 5."""
    ten_hours = review_interval(30, failure_range_s(8), length_s=5 * 3600)
    assert ten_hours.advised_s.middle / 3600 == pytest.approx(10.3, abs=0.05)
    assert not ten_hours.failures_matter
    assert review_interval(30, failure_range_s(8), length_s=11 * 3600).failures_matter


def test_what_another_interval_would_have_lost() -> None:
    """A save a whole interval, and half an interval a failure, at most half of what was trained."""
    assert would_have_lost_s(600, 30, failures=2, trained_s=3700) == 6 * 30 + 2 * 300
    assert would_have_lost_s(7200, 30, failures=1, trained_s=3600) == 1800
    assert would_have_lost_s(7200, 30, failures=0, trained_s=3600) == 0
