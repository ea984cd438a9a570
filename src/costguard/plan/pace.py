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
DRIFT = 0.008
"""How far what is left may differ from what was seen, relative, for no reason that shows, once a whole plan has been
seen; it falls with the root of the share that has been: chosen."""
MAX_DRIFT = 0.25
"""The same at the very beginning."""
NORMAL = 0.6745
"""The median of the absolute value of a standard normal variable."""
OUTLIER = 3.0
"""Robust standard deviations from which on a block is a straggler."""
CUT_COST = 1.5
"""What a block that is cut off costs, where one that fits costs 1: chosen."""
FEW_SIGMA = 0.15
"""Relative error of one block where there are so few that they cannot tell it themselves: chosen."""
FEW = 4
"""With fewer blocks there is neither a cut nor a trend to be seen."""


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through the paces of blocks, relative to their level.

    Args:
        level_ns: Mean wall time for a unit.
        at: Progress that the level holds at.
        slope: Relative change of the pace over a whole plan; 0 with few blocks.
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

    Stragglers are set apart, as a surcharge on all that is left. What came before the latest break (a warm-up, a
    change of regime) is cut off. Through the rest goes a level, or a line with some probability, by how much the
    blocks speak for it. The errors of both are drawn by a moving-block bootstrap of the residuals, so that noise with
    a memory widens them.

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
    calm, surcharges = set_stragglers_apart(blocks)
    line = fit_line(calm[find_cut(calm, total) :], total)
    errors = _widened(line, [_error(line, random) for _ in range(draws)])
    keep, chance = _belief(line.slope, fmean(e * e for _, e in errors), len(line.residuals))
    seen, ahead = 2 * (left[0] - line.at), (left[0] + left[1]) / 2 - line.at
    # What is left has noise of its own: that of as many blocks as it will be.
    future = math.sqrt(max(0.0, seen) / max(left[1] - left[0], 1e-9))
    drift = min(MAX_DRIFT, DRIFT / math.sqrt(max(seen, 1e-9))) * (left[1] - left[0])
    settled = 1 + (line.slope * seen / 2 if _is_settling(line) else 0.0)
    paces = []
    for (level_error, slope_error), (future_error, _) in zip(errors, random.sample(errors, draws), strict=True):
        relative = max(0.3, settled) + level_error + future_error * future + random.gauss(0, drift)
        if random.random() < chance:
            slope = keep * line.slope + math.sqrt(keep) * slope_error if keep else random.gauss(0, TREND_SIGMA)
            # What gets quicker levels off, as caches fill; what gets slower may go on.
            relative += slope * (ahead if slope > 0 else min(ahead, seen))
        surcharge = fmean(random.choices(surcharges, k=len(surcharges)))
        paces.append(line.level_ns * min(3.0, max(0.2, relative)) * (1 + surcharge))
    return paces


def set_stragglers_apart(blocks: Sequence[Block]) -> tuple[list[Block], list[float]]:
    """Cut off what a block takes far longer than its neighbours.

    Returns:
        The blocks without it, and what it was for each, relative to them: 0 for most, and for those a run began with,
        since a first step that compiles does not come again.
    """
    paces = [b.pace_ns for b in blocks]
    around = [median(paces[max(0, i - 2) : i + 3]) for i in range(len(paces))]
    off = [p / m - 1 if m else 0.0 for p, m in zip(paces, around, strict=True)]
    border = OUTLIER * median(abs(o) for o in off) / NORMAL
    if len(blocks) < 2 * FEW or not border:
        return list(blocks), [0.0] * len(blocks)
    calm = [m * (1 + min(o, border)) if o > border else p for p, m, o in zip(paces, around, off, strict=True)]
    quiet = [Block(b.middle, b.units, round(c * b.units)) for b, c in zip(blocks, calm, strict=True)]
    steady = next((i for i, o in enumerate(off) if o <= border), 0)
    return quiet, [p / c - 1 if i >= steady else 0.0 for i, (p, c) in enumerate(zip(paces, calm, strict=True))]


def fit_line(blocks: Sequence[Block], total: int) -> Line:
    """Fit level and slope by least squares, weighted with units.

    Args:
        blocks: At least one.
        total: Units of the plan.
    """
    units = sum(b.units for b in blocks)
    level = sum(b.ns for b in blocks) / units
    at = sum(b.middle * b.units for b in blocks) / units / total
    offsets = tuple(b.middle / total - at for b in blocks)
    relative = [b.pace_ns / level - 1 if level else 0.0 for b in blocks]
    spread = sum(b.units * x * x for b, x in zip(blocks, offsets, strict=True))
    slope = 0.0
    if len(blocks) >= FEW and spread:
        slope = sum(b.units * x * y for b, x, y in zip(blocks, offsets, relative, strict=True)) / spread
    residuals = tuple(y - slope * x for x, y in zip(offsets, relative, strict=True))
    return Line(level, at, slope, residuals, offsets)


def find_cut(blocks: Sequence[Block], total: int) -> int:
    """Where the latest stretch begins that one line explains.

    Each block that is cut off costs somewhat more than one that fits; so blocks are cut off only while they, on
    average, fit worse than noise explains, which is measured between neighbours and knows nothing of trends and breaks.

    Returns:
        Index of its first block; at least `FEW` are left.
    """
    n, paces = len(blocks), [b.pace_ns for b in blocks]
    if n < 2 * FEW:
        # Of a handful of blocks, only a warm-up step can be told.
        return int(n >= 3 and paces[0] > 1.5 * median(paces[1:]))
    differences = _differences(paces)
    sigma = median(abs(d) for d in differences) / NORMAL
    if not sigma:
        return 0
    fitting = _misfit(d / sigma for d in differences) / len(differences)
    best, best_cost = 0, math.inf
    for cut in _candidates(n):
        line = fit_line(blocks[cut:], total)
        misfit = _misfit(r * line.level_ns / sigma for r in line.residuals)
        cost = misfit + fitting * (CUT_COST * cut + (2 * math.log(n) if cut else 0))
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


def _is_settling(line: Line) -> bool:
    """Whether the pace falls so fast, and so clearly, that this can be no trend."""
    n, spread = len(line.residuals), sum(x * x for x in line.offsets)
    if n < FEW or not spread or line.slope > -3 * TREND_SIGMA:
        return False
    error = math.sqrt(sum(r * r for r in line.residuals) / (n - 2) / spread)
    return -line.slope > 4 * error


def _candidates(n: int) -> list[int]:
    """Each of the first and last few, and between them one in five; of many blocks, eight at least are left."""
    least = FEW if n < 8 * FEW else 2 * FEW
    return [cut for cut in range(n - least + 1) if cut < 12 or cut > n - 20 or cut % 5 == 0]


def _misfit(deviations: Iterable[float]) -> float:
    return sum(min(OUTLIER, abs(deviation)) ** 2 for deviation in deviations)


def _differences(paces: Sequence[float]) -> list[float]:
    """Differences of blocks a little apart, as if of one block: without their trend, and past the noise's memory."""
    apart = 6 if len(paces) >= 24 else 3
    differences = [(b - a) / math.sqrt(2) for a, b in zip(paces, paces[apart:], strict=False)]
    usual = median(differences)
    return [d - usual for d in differences]


def _error(line: Line, random: Random) -> tuple[float, float]:
    """Errors of level and slope in one bootstrap sample."""
    n = len(line.residuals)
    if n < FEW:
        return random.gauss(0, FEW_SIGMA / math.sqrt(n)), 0.0
    length = max(1, round(math.sqrt(n)))
    resampled: list[float] = []
    while len(resampled) < n:
        start = random.randrange(n - length + 1)
        resampled += line.residuals[start : start + length]
    spread = sum(x * x for x in line.offsets)
    level = fmean(resampled[:n])
    slope = sum(x * y for x, y in zip(line.offsets, resampled, strict=False)) / spread if spread else 0.0
    grow = math.sqrt(n / (n - 2))
    return level * grow, slope * grow


def _widened(line: Line, errors: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Errors no smaller than an autoregressive model of the residuals has them: a bootstrap of few blocks is too sure.

    Source:
        Kendall, Note on bias in the estimation of autocorrelation, Biometrika 41, 1954.
    """
    n, r = len(line.residuals), line.residuals
    variance, spread = sum(x * x for x in r) / max(1, n - 2), sum(x * x for x in line.offsets)
    if n < FEW or not variance or not spread:
        return errors
    memory = sum(a * b for a, b in zip(r, r[1:], strict=False)) / sum(x * x for x in r)
    memory = min(0.9, max(0.0, memory + (1 + 4 * max(0.0, memory)) / n))
    longrun = variance * (1 + memory) / (1 - memory)
    level, slope = (math.sqrt(fmean(e[i] ** 2 for e in errors)) for i in (0, 1))
    wider = max(1.0, math.sqrt(longrun / n) / level), max(1.0, math.sqrt(longrun / spread) / slope)
    return [(a * wider[0], b * wider[1]) for a, b in errors]


def _belief(slope: float, variance: float, n: int) -> tuple[float, float]:
    """How much of a slope is believed if there is a trend, and the probability that there is one."""
    if n < FEW:
        return 0.0, TREND_CHANCE
    prior, narrow = TREND_SIGMA**2, max(variance, 1e-12)
    wide = narrow + prior
    log_odds = -0.5 * math.log(wide / narrow) + 0.5 * slope**2 * (1 / narrow - 1 / wide)
    odds = math.exp(min(50.0, log_odds)) * TREND_CHANCE / (1 - TREND_CHANCE)
    return prior / wide, odds / (1 + odds)
