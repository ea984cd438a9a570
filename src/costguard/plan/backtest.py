"""How good forecasts were: a run that has ended is gone through again, and each forecast is held to what came."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean, median

from costguard.plan.forecast import Forecast, forecast_run
from costguard.plan.history import History
from costguard.plan.series import Plan, Replay

POINTS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75)
"""Progress at which forecasts are scored."""

Forecaster = Callable[[History, Plan], Forecast | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One forecast and what came, in any unit of cost or time.

    Args:
        progress: Share of the plan done when it was made.
        forecast: What it said (median).
        low: Its 10th percentile.
        high: Its 90th percentile.
        naive: What the rule of three said.
        real: What came, above 0.
    """

    progress: float
    forecast: float
    low: float
    high: float
    naive: float
    real: float

    @property
    def error(self) -> float:
        """Relative error: above 0 where too much was forecast."""
        return self.forecast / self.real - 1

    @property
    def naive_error(self) -> float:
        """That of the rule of three."""
        return self.naive / self.real - 1

    @property
    def covered(self) -> bool:
        """Whether what came lies in the band."""
        return self.low <= self.real <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How good some forecasts were.

    Args:
        count: How many.
        error: Median of the absolute relative error.
        bias: Mean of the relative error: above 0 where too much was forecast.
        coverage: Share of them in whose 80% band the truth lies.
        width: Mean width of the band, relative to what came.
        naive_error: Median of the absolute relative error of the rule of three.
    """

    count: int
    error: float
    bias: float
    coverage: float
    width: float
    naive_error: float

    @property
    def skill(self) -> float | None:
        """1 - error / naive error: 1 is perfect, 0 as good as the rule of three; `None` if that was perfect."""
        return 1 - self.error / self.naive_error if self.naive_error else None


def score(outcomes: Iterable[Outcome]) -> Score | None:
    """Score forecasts.

    Returns:
        The score, `None` if there are none.
    """
    seen = list(outcomes)
    if not seen:
        return None
    return Score(
        count=len(seen),
        error=median(abs(o.error) for o in seen),
        bias=fmean(o.error for o in seen),
        coverage=fmean(o.covered for o in seen),
        width=fmean((o.high - o.low) / o.real for o in seen),
        naive_error=median(abs(o.naive_error) for o in seen),
    )


def backtest(replay: Replay, points: Sequence[float] = POINTS, forecaster: Forecaster = forecast_run) -> list[Outcome]:
    """Go through a run again, and forecast its time whenever a point is first reached.

    Args:
        replay: A run that has ended.
        points: Shares of the plan, ascending.
        forecaster: Makes the forecasts.

    Returns:
        One outcome for each point at which there was a forecast.
    """
    history, outcomes, left = History(), [], list(points)
    real = replay.samples[-1].elapsed_ns
    for sample in replay.samples:
        history.see(sample)
        progress = sample.done / replay.plan.total
        reached = [point for point in left if progress >= point]
        if not reached:
            continue
        left = [point for point in left if point not in reached]
        made = forecaster(history, replay.plan)
        if made is not None:
            outcomes.append(outcome_of(made, real, point=reached[-1]))
    return outcomes


def outcome_of(made: Forecast, real_ns: int, *, point: float | None = None) -> Outcome:
    """Hold a forecast, also one read from a journal, to the time that the run took.

    Args:
        made: The forecast.
        real_ns: Paid wall time of the whole run, above 0.
        point: Progress that it is filed under, its own by default.
    """
    band = made.total_ns
    return Outcome(
        progress=made.progress if point is None else point,
        forecast=band.median,
        low=band.low,
        high=band.high,
        naive=made.elapsed_ns / made.progress if made.progress else math.inf,
        real=real_ns,
    )


def spend_outcome_of(made: Forecast, real: Fraction, *, point: float | None = None) -> Outcome | None:
    """Hold a forecast to the money that the run cost.

    Args:
        made: The forecast.
        real: Money spent on the whole run, above 0, in the forecast's currency.
        point: Progress that it is filed under, its own by default.

    Returns:
        `None` if it forecast no money.
    """
    if made.spend is None or made.spent is None:
        return None
    low, middle, high = (float(amount) for amount in made.spend)
    return Outcome(
        progress=made.progress if point is None else point,
        forecast=middle,
        low=low,
        high=high,
        naive=float(made.spent) / made.progress if made.progress else math.inf,
        real=float(real),
    )
