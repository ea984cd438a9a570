"""How often a checkpoint is worth its money: the advised interval, and what the present one costs against it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from costguard.errors import config_error

PRIOR_FAILURES: Final = 1.0
PRIOR_GPU_HOURS: Final = 54 * 24 * 16_384 / 419
"""One interruption in about 50,700 GPU-hours, weighted as one failure seen.

Source: "The Llama 3 Herd of Models", arXiv 2407.21783, table 5: 419 unexpected interruptions in 54 days, 16,384 GPUs.
"""


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
    if gpus < 1 or prior_failures <= 0 or min(failures, gpu_hours, prior_gpu_hours) < 0:
        raise config_error(f"mean_time_to_failure_s(gpus={gpus}): expected gpus of at least 1 and no negative count.")
    rate_per_gpu_hour = (prior_failures + failures) / max(prior_gpu_hours + gpu_hours, 1e-9)
    return 3600 / (rate_per_gpu_hour * gpus)


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
