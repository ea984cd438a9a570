"""How often a checkpoint is worth its money: the advised interval, and what the present one costs against it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from costguard.errors import config_error

PRIOR_FAILURES: Final = 1.0
PRIOR_GPU_HOURS: Final = 54 * 24 * 16_384 / 419
"""One interruption in about 50,700 GPU-hours, weighted as one failure seen.

Source: "The Llama 3 Herd of Models", arXiv 2407.21783, table 5: 419 unexpected interruptions in 54 days, 16,384 GPUs.
"""


RANGE: Final = (0.1, 0.9)
"""Quantiles of the failure rate between which an advice is shown: one in ten is lower, one in ten higher."""


class Range(NamedTuple):
    """A figure that is not known exactly: what it may well be at the least, what it most likely is, and at the most."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalAdvice:
    """How often to save.

    Args:
        every_s: Advised seconds of training between two checkpoints.
        mean_time_to_failure_s: Seconds between failures of the whole run that it assumes.
        usd_per_hour_lost: Dollars an hour that saves and lost work cost at that interval.
    """

    every_s: float
    mean_time_to_failure_s: float
    usd_per_hour_lost: float


def mean_time_to_failure_s(
    gpus: int,
    failures: int = 0,
    gpu_hours: float = 0.0,
    *,
    prior_failures: float = PRIOR_FAILURES,
    prior_gpu_hours: float = PRIOR_GPU_HOURS,
) -> float:
    """Seconds between failures that lose work, learned from a run's own on a prior (Gamma-Poisson mean).

    Args:
        gpus: GPUs of the run, >= 1.
        failures: Failures of this run that lost work; a user's stop and a budget's are none.
        gpu_hours: GPU-hours that the run has trained.
        prior_failures: Failures that the prior counts as seen, > 0.
        prior_gpu_hours: GPU-hours that the prior counts as seen, >= 0.
    """
    _check_failures(gpus, failures, gpu_hours, prior_failures, prior_gpu_hours)
    rate_per_gpu_hour = (prior_failures + failures) / max(prior_gpu_hours + gpu_hours, 1e-9)
    return 3600 / (rate_per_gpu_hour * gpus)


def failure_range_s(
    gpus: int,
    failures: int = 0,
    gpu_hours: float = 0.0,
    *,
    prior_failures: float = PRIOR_FAILURES,
    prior_gpu_hours: float = PRIOR_GPU_HOURS,
) -> Range:
    """Seconds between failures that lose work, as a range: the rate is Gamma distributed after what was seen.

    Failures that come together or early in a machine's life break the model, so that the range matters more than its
    middle, which is that of `mean_time_to_failure_s`.

    Args:
        gpus: GPUs of the run, >= 1.
        failures: Failures of this run that lost work.
        gpu_hours: GPU-hours that the run has trained.
        prior_failures: Failures that the prior counts as seen, > 0.
        prior_gpu_hours: GPU-hours that the prior counts as seen, >= 0.
    """
    _check_failures(gpus, failures, gpu_hours, prior_failures, prior_gpu_hours)
    seen, hours = prior_failures + failures, max(prior_gpu_hours + gpu_hours, 1e-9)
    often, seldom = (3600 * hours / (gamma_quantile(seen, p) * gpus) for p in reversed(RANGE))
    return Range(often, 3600 * hours / (seen * gpus), seldom)


def _check_failures(gpus: int, failures: int, gpu_hours: float, prior_failures: float, prior_gpu_hours: float) -> None:
    if gpus < 1 or prior_failures <= 0 or min(failures, gpu_hours, prior_gpu_hours) < 0:
        raise config_error(f"mean_time_to_failure_s(gpus={gpus}): expected gpus of at least 1 and no negative count.")


def gamma_quantile(shape: float, probability: float) -> float:
    """The value below which a Gamma variable of scale 1 falls with a probability, by bisection.

    Args:
        shape: > 0.
        probability: Above 0 and below 1.

    Example:
        >>> round(gamma_quantile(1, 0.9), 6)  # of an exponential variable: -log(0.1)
        2.302585
    """
    low, high = 0.0, shape + 1
    while _gamma_below(shape, high) < probability:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _gamma_below(shape, middle) < probability else (low, middle)
    return high


def _gamma_below(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function by its series, whose terms are all positive.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 6.5.29.
    """
    if x <= 0:
        return 0.0
    term = total = 1.0
    divisor = shape
    while term > total * 1e-16:
        divisor += 1
        term *= x / divisor
        total += term
    return min(1.0, total * math.exp(shape * math.log(x) - x - math.lgamma(shape + 1)))


def advise_interval(
    blocked_s: float,
    failure_s: float,
    *,
    usd_per_hour: float | Fraction | None = None,
    usd_per_checkpoint: float | Fraction = 0,
) -> IntervalAdvice:
    """The interval that costs least: `W* = sqrt(2 M (C + s / r))`, never less than the save itself takes.

    Args:
        blocked_s: C, seconds that one save blocks training, >= 0.
        failure_s: M, seconds between failures, > 0.
        usd_per_hour: r, price of the whole allocation an hour; without it a checkpoint's own price is left out.
        usd_per_checkpoint: s, dollars that one checkpoint costs to write and to keep until it goes.

    Source:
        Young, CACM 17(9), 1974, for `sqrt(2 M C)`; with the price of a checkpoint added to the price of the stall,
        `(C r + s) / W + r W / (2 M)` is least at the W above.
    """
    if blocked_s < 0 or failure_s <= 0 or usd_per_checkpoint < 0:
        raise config_error(f"advise_interval(blocked_s={blocked_s}, failure_s={failure_s}): expected >= 0 and > 0.")
    rate = float(usd_per_hour) / 3600 if usd_per_hour else 0.0
    own_s = float(usd_per_checkpoint) / rate if rate else 0.0
    every_s = max(math.sqrt(2 * failure_s * (blocked_s + own_s)), blocked_s)
    lost = _lost_per_s(every_s, blocked_s + own_s, failure_s) * rate * 3600
    return IntervalAdvice(every_s=every_s, mean_time_to_failure_s=failure_s, usd_per_hour_lost=lost)


def usd_per_hour_lost(
    every_s: float,
    blocked_s: float,
    failure_s: float,
    *,
    usd_per_hour: float | Fraction,
    usd_per_checkpoint: float | Fraction = 0,
) -> float:
    """Dollars an hour that saves and lost work cost at an interval, to be compared with the advised one's.

    Args:
        every_s: Seconds between two checkpoints, > 0.
        blocked_s: Seconds that one save blocks training.
        failure_s: Seconds between failures.
        usd_per_hour: Price of the whole allocation an hour.
        usd_per_checkpoint: Dollars that one checkpoint costs.
    """
    own_s = float(usd_per_checkpoint) / float(usd_per_hour) * 3600 if usd_per_hour else 0.0
    return _lost_per_s(every_s, blocked_s + own_s, failure_s) * float(usd_per_hour)


def _lost_per_s(every_s: float, cost_s: float, failure_s: float) -> float:
    return cost_s / every_s + every_s / (2 * failure_s) if every_s else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalReview:
    """The interval of a run beside the advised one; money is `None` without a price.

    Args:
        failure_s: Seconds between failures that lose work.
        advised_s: Advised seconds of training between two checkpoints; seldom failures advise long ones.
        usd_per_hour_now: Dollars an hour that saves and lost work cost at the present interval, `None` without one.
        usd_per_hour_advised: The same at the advised one.
        usd_per_hour_saved: What the advised interval saves of it; never below 0.
        failures_matter: Whether the advised interval is shorter than the run: else one save at its end is enough.
    """

    failure_s: Range
    advised_s: Range
    usd_per_hour_now: Range | None
    usd_per_hour_advised: Range | None
    usd_per_hour_saved: Range | None
    failures_matter: bool


def review_interval(
    blocked_s: float,
    failure_s: Range,
    *,
    length_s: float,
    every_s: float | None = None,
    usd_per_hour: float | Fraction | None = None,
    usd_per_checkpoint: float | Fraction = 0,
) -> IntervalReview:
    """Hold a run's interval against the advised one, over the range of what its failures may be.

    Args:
        blocked_s: C, seconds that one save blocks training, >= 0.
        failure_s: M, seconds between failures, as `failure_range_s` gives them.
        length_s: Seconds that the run takes, or will.
        every_s: Seconds between its checkpoints, > 0; `None` if it has none yet.
        usd_per_hour: r, price of the whole allocation an hour.
        usd_per_checkpoint: s, dollars that one checkpoint costs until it goes.

    Source:
        As `advise_interval`.
    """
    advice = [
        advise_interval(blocked_s, m, usd_per_hour=usd_per_hour, usd_per_checkpoint=usd_per_checkpoint)
        for m in failure_s
    ]
    lost = saved = None
    if usd_per_hour is not None and every_s is not None:
        now = [
            usd_per_hour_lost(every_s, blocked_s, m, usd_per_hour=usd_per_hour, usd_per_checkpoint=usd_per_checkpoint)
            for m in failure_s
        ]
        lost = _range(now)
        saved = _range([max(0.0, at - best.usd_per_hour_lost) for at, best in zip(now, advice, strict=True)])
    return IntervalReview(
        failure_s=failure_s,
        advised_s=Range(*(each.every_s for each in advice)),
        usd_per_hour_now=lost,
        usd_per_hour_advised=None if usd_per_hour is None else _range([each.usd_per_hour_lost for each in advice]),
        usd_per_hour_saved=saved,
        failures_matter=advice[1].every_s < length_s,
    )


def _range(values: list[float]) -> Range:
    """What goes with few, usual and many failures, in the order of the amounts."""
    return Range(min(values), values[1], max(values))


def would_have_lost_s(every_s: float, blocked_s: float, failures: int, trained_s: float) -> float:
    """Seconds of the whole allocation that saves and redone work would have taken at another interval.

    As many failures as there were, each at an instant that has nothing to do with the saves: half an interval is lost.

    Args:
        every_s: Seconds between two checkpoints, > 0.
        blocked_s: Seconds that one save blocks training.
        failures: Failures that lost work.
        trained_s: Seconds that were trained, redone work included.
    """
    return blocked_s * (trained_s // every_s) + failures * min(every_s, trained_s) / 2
