"""How long a unit of a plan will take from here to its end, drawn at random from what the blocks so far allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median

from costguard.plan.history import Block

TREND_SIGMA = 0.4
"""Standard deviation of the pace's change over a whole plan, relative, where it has a trend: chosen."""
TREND_CHANCE = 0.5
"""Share of runs that are taken to have one, before anything is known: chosen."""
NORMAL = 0.6745
"""The median of the absolute value of a standard normal variable."""
OUTLIER = 3.0
"""Robust standard deviations from which on a block weighs no more when a cut is chosen."""
FEW = 4
"""With fewer blocks there is neither a cut nor a trend to be seen."""


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through the paces of blocks, relative to their level.

    Args:
        level_ns: Mean wall time for a unit.
        at: Progress that the level holds at.
        slope: Relative change of the pace over a whole plan, as least squares have it; 0 with few blocks.
        residuals: What each block is off the line, relative.
        offsets: Progress of each block less `at`.
    """

    level_ns: float
    at: float
    slope: float
    residuals: tuple[float, ...]
    offsets: tuple[float, ...]


def draw_paces(
    blocks: Sequence[Block], total: int, left: tuple[float, float], random: Random, draws: int
) -> list[float]:
    """Draw the mean pace of what is left.

    What came before the latest break (a warm-up, a change of regime) is cut off. Through the rest goes a level, or a
    line with some probability, by how much the blocks speak for it. The errors of both are drawn by a moving-block
    bootstrap of the residuals, so that noise with a memory widens them.

    Args:
        blocks: At least one.
        total: Units of the plan.
        left: Progress now and at the end.
        random: Source of randomness.
        draws: How many.

    Returns:
        Wall time for a unit, in nanoseconds, one for each draw.

    Source:
        Künsch, The jackknife and the bootstrap for general stationary observations, Annals of Statistics 17, 1989.
    """
    cut = find_cut(blocks, total)
    line = fit_line(blocks[cut:], total)
    near = _winsorized(line.residuals)
    errors = [_error(line, near, random) for _ in range(draws)]
    keep, chance = _belief(line.slope, fmean(e * e for _, e in errors), len(line.residuals))
    ahead = (left[0] + left[1]) / 2 - line.at
    seen = 2 * (left[0] - line.at)
    # What is left has noise of its own: that of as many blocks as it will be.
    noise = math.sqrt(max(0.0, seen) / max(left[1] - left[0], 1e-9))
    paces = []
    for (level_error, slope_error), (future_error, _) in zip(errors, random.sample(errors, draws), strict=True):
        relative = 1 + level_error + future_error * noise
        if random.random() < chance:
            slope = keep * line.slope + math.sqrt(keep) * slope_error if keep else random.gauss(0, TREND_SIGMA)
            # What gets quicker levels off, as caches fill; what gets slower may go on.
            relative += slope * (ahead if slope > 0 else min(ahead, seen))
        paces.append(line.level_ns * min(3.0, max(0.3, relative)))
    return paces


def fit_line(blocks: Sequence[Block], total: int) -> Line:
    """Fit level and slope, weighted with units: the level is the mean of all, stragglers do not bend the slope.

    Args:
        blocks: At least one.
        total: Units of the plan.
    """
    weights = [b.units for b in blocks]
    units = sum(weights)
    level = sum(b.ns for b in blocks) / units
    at = sum(b.middle * b.units for b in blocks) / units / total
    offsets = tuple(b.middle / total - at for b in blocks)
    relative = [b.pace_ns / level - 1 if level else 0.0 for b in blocks]
    slope = _robust_slope(weights, offsets, relative) if len(blocks) >= FEW else 0.0
    residuals = tuple(y - slope * x for x, y in zip(offsets, relative, strict=True))
    return Line(level, at, slope, residuals, offsets)


def _robust_slope(weights: Sequence[int], offsets: Sequence[float], values: Sequence[float]) -> float:
    """Least squares, again and again with what is far off the line drawn nearer to it."""
    slope, spread = 0.0, sum(w * x * x for w, x in zip(weights, offsets, strict=True))
    pulled = values
    for _ in range(4 if spread else 0):
        slope = sum(w * x * y for w, x, y in zip(weights, offsets, pulled, strict=True)) / spread
        residuals = [y - slope * x for x, y in zip(offsets, values, strict=True)]
        pulled = [slope * x + r for x, r in zip(offsets, _winsorized(residuals), strict=True)]
    return slope


def _winsorized(residuals: Sequence[float]) -> list[float]:
    """Residuals with outliers put at the border of what is none."""
    middle = median(residuals)
    border = OUTLIER * median(abs(r - middle) for r in residuals) / NORMAL
    return [min(middle + border, max(middle - border, r)) for r in residuals]


def find_cut(blocks: Sequence[Block], total: int) -> int:
    """Where the latest stretch begins that one line explains.

    Each block that is cut off costs a little more than one that fits; so blocks are cut off only while they, on average,
    fit worse than noise explains, which is measured between neighbours and knows nothing of trends and breaks.

    Returns:
        Index of its first block; at least `FEW` are left.
    """
    if len(blocks) < 2 * FEW:
        return _first_cut(blocks)
    sigma = _noise([b.pace_ns for b in blocks])
    if not sigma:
        return 0
    fitting = _misfit((b - a) / math.sqrt(2) / sigma for a, b in _apart([b.pace_ns for b in blocks])) / len(blocks)
    best, best_cost = 0, math.inf
    for cut in _candidates(len(blocks)):
        rest = blocks[cut:]
        line = fit_line(rest, total)
        misfit = _misfit(r * line.level_ns / sigma for r in line.residuals)
        cost = misfit + fitting * (1.3 * cut + (2 * math.log(len(blocks)) if cut else 0))
        if cost < best_cost:
            best, best_cost = cut, cost
    return _past_transient(blocks, best, total, sigma)


def _past_transient(blocks: Sequence[Block], cut: int, total: int, sigma: float) -> int:
    """Cut on while the rest changes much faster than trends do: it is still settling, and its end tells most."""
    while len(blocks) - cut >= 2 * FEW:
        line = fit_line(blocks[cut:], total)
        spread = math.sqrt(sum(x * x for x in line.offsets))
        error = sigma / line.level_ns / spread if spread else math.inf
        if abs(line.slope) < max(3 * TREND_SIGMA, 4 * error):
            break
        cut += (len(blocks) - cut) // 2
    return cut


def _first_cut(blocks: Sequence[Block]) -> int:
    """Of a handful of blocks the first is cut off if it took much longer than the others: a warm-up step."""
    if len(blocks) < 3:
        return 0
    return int(blocks[0].pace_ns > 1.5 * median(b.pace_ns for b in blocks[1:]))


def _candidates(n: int) -> list[int]:
    """Each of the first and last few, and between them one in five."""
    return [cut for cut in range(n - FEW + 1) if cut < 12 or cut > n - 16 or cut % 5 == 0]


def _misfit(deviations: Iterable[float]) -> float:
    return sum(min(OUTLIER, abs(deviation)) ** 2 for deviation in deviations)


def _apart(paces: Sequence[float]) -> list[tuple[float, float]]:
    """Pairs of blocks three apart: noise with a short memory is independent there, trends have not gone far."""
    return list(zip(paces, paces[3:], strict=False))


def _noise(paces: Sequence[float]) -> float:
    """Robust standard deviation of a pace."""
    differences = [abs(b - a) for a, b in _apart(paces)]
    return median(differences) / NORMAL / math.sqrt(2) if differences else 0.0


def _error(line: Line, near: Sequence[float], random: Random) -> tuple[float, float]:
    """Errors of level and slope in one bootstrap sample."""
    n = len(line.residuals)
    if n < FEW:
        return random.gauss(0, 0.15 / math.sqrt(n)), 0.0
    length = max(1, round(n ** (1 / 3)))
    picked: list[int] = []
    while len(picked) < n:
        start = random.randrange(n - length + 1)
        picked += range(start, start + length)
    spread = sum(x * x for x in line.offsets)
    level = fmean(line.residuals[i] for i in picked[:n])
    slope = sum(x * near[i] for x, i in zip(line.offsets, picked, strict=False)) / spread if spread else 0.0
    grow = math.sqrt(n / (n - 2))
    return level * grow, slope * grow


def _belief(slope: float, variance: float, n: int) -> tuple[float, float]:
    """How much of a slope is believed if there is a trend, and the probability that there is one."""
    if n < FEW or variance <= 0:
        return 0.0, TREND_CHANCE
    prior = TREND_SIGMA**2
    wide, narrow = variance + prior, variance
    log_odds = -0.5 * math.log(wide / narrow) + 0.5 * slope**2 * (1 / narrow - 1 / wide)
    odds = math.exp(min(50.0, log_odds)) * TREND_CHANCE / (1 - TREND_CHANCE)
    return prior / wide, odds / (1 + odds)
