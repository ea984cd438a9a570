"""What a run will have cost, and when it will be done: a simulation of what is left, part by part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from statistics import fmean
from typing import Any

from costguard.plan.history import History
from costguard.plan.pace import draw_paces
from costguard.plan.series import Plan, Sample
from costguard.prices import PriceBook
from costguard.records import Amount
from costguard.units import plain, round_money

DRAWS = 300
VALIDATION_SHARE = 0.05
"""Share of training that all validations take together, until one has been seen: chosen."""
SAVE_SHARE = 0.02
"""The same of checkpoints."""
UNSEEN_SIGMA = 0.7
"""Log standard deviation of what has not been seen yet."""

Money = Callable[[int], Fraction | None]
"""Exact money for so many nanoseconds of the whole allocation from now on, known price changes included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailurePrior:
    """What is assumed of failures before any has been seen: a Gamma distribution of their rate.

    By default half a failure in a quarter of a plan: two a plan on average, but none at all in about half of the runs.
    Chosen, not measured; it counts for less than the second failure that is seen.

    Args:
        events: How many failures the prior is worth.
        plans: In how many whole plans they are taken to have happened.
    """

    events: float = 0.5
    plans: float = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A distribution in three numbers, in nanoseconds: one in ten is below `low`, one in ten above `high`."""

    low: int
    median: int
    high: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """How a run is expected to end.

    Args:
        elapsed_ns: Paid wall time by now.
        done: Units of the plan done by now.
        total: Units of the plan.
        spent: Money by now as a decimal string, `None` if unpriced.
        total_ns: Paid wall time at the end.
        spend: Money at the end as decimal strings (low, median, high), `None` if it cannot be priced.
        parts_ns: Mean wall time that is left, by part: train, validation, checkpoint, failures.
    """

    elapsed_ns: int
    done: int
    total: int
    total_ns: Band
    spent: str | None = None
    spend: tuple[str, str, str] | None = None
    parts_ns: Mapping[str, int] = field(default_factory=dict)

    @property
    def progress(self) -> float:
        """Share of the plan done, 0 to 1."""
        return min(1.0, self.done / self.total)

    def amounts(self, device_ns: int, devices: int) -> tuple[Amount, Amount]:
        """Median and 90th percentile at the end, as budgets are judged by.

        Args:
            device_ns: Device time by now.
            devices: Devices paid for from now on.
        """
        money = (None, None) if self.spend is None else (Fraction(self.spend[1]), Fraction(self.spend[2]))
        rest = (self.total_ns.median - self.elapsed_ns, self.total_ns.high - self.elapsed_ns)
        middle, high = (Amount(money=m, device_ns=device_ns + ns * devices) for m, ns in zip(money, rest, strict=True))
        return middle, high

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {
            "elapsed_ns": self.elapsed_ns,
            "done": self.done,
            "total": self.total,
            "spent": self.spent,
            "total_ns": [self.total_ns.low, self.total_ns.median, self.total_ns.high],
            "spend": None if self.spend is None else list(self.spend),
            "parts_ns": dict(self.parts_ns),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Forecast:
        """Read what `to_json` wrote."""
        low, middle, high = data["total_ns"]
        return Forecast(
            elapsed_ns=data["elapsed_ns"],
            done=data["done"],
            total=data["total"],
            spent=data["spent"],
            total_ns=Band(low=low, median=middle, high=high),
            spend=None if data["spend"] is None else tuple(data["spend"]),
            parts_ns=dict(data["parts_ns"]),
        )


def money_from(book: PriceBook, wall_ns: int, devices: int) -> Money:
    """What time from an instant on will cost by a price book, whose known changes count from their dates.

    Args:
        book: The prices.
        wall_ns: Now, wall clock in nanoseconds since the Unix epoch.
        devices: Paid devices.
    """
    return lambda ns: book.device_money(wall_ns, wall_ns + ns, devices, devices)


def forecast_run(
    history: History,
    plan: Plan,
    money: Money | None = None,
    *,
    failures: FailurePrior | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Forecast | None:
    """Forecast the end of a run.

    Args:
        history: What has been seen of it.
        plan: What it sets out to do.
        money: What time from now on will cost; without it no money is forecast.
        failures: What is assumed of failures.
        seed: Of the random numbers: equal histories and seeds give equal forecasts.
        draws: Simulations of what is left.

    Returns:
        The forecast, `None` until something has been trained.
    """
    now = history.latest
    if now is None or not history.blocks:
        return None
    rest = _Simulation(history, now, plan, failures or FailurePrior(), Random(seed)).run(draws)
    totals = sorted(round(sum(parts.values())) for parts in rest)
    low, middle, high = (totals[min(draws - 1, int(share * draws))] for share in (0.1, 0.5, 0.9))
    return Forecast(
        elapsed_ns=now.elapsed_ns,
        done=now.done,
        total=plan.total,
        spent=None if now.spend is None else plain(round_money(now.spend)),
        total_ns=Band(low=now.elapsed_ns + low, median=now.elapsed_ns + middle, high=now.elapsed_ns + high),
        spend=_spend(now.spend, money, (low, middle, high)),
        parts_ns={name: round(fmean(parts[name] for parts in rest)) for name in rest[0]},
    )


def _spend(spent: Fraction | None, money: Money | None, rest: Sequence[int]) -> tuple[str, str, str] | None:
    if spent is None or money is None:
        return None
    amounts = [money(ns) for ns in rest]
    if any(amount is None for amount in amounts):
        return None
    low, middle, high = (plain(round_money(spent + amount)) for amount in amounts if amount is not None)
    return low, middle, high


class _Simulation:
    """Draws what is left of a run."""

    def __init__(self, history: History, now: Sample, plan: Plan, failures: FailurePrior, random: Random) -> None:
        self.history = history
        self.plan = plan
        self.failures = failures
        self.random = random
        self.done = now.done
        self.left = max(0, plan.total - self.done)

    def run(self, draws: int) -> list[dict[str, float]]:
        """The parts of what is left, in nanoseconds, once for each draw."""
        span = (min(1.0, self.done / self.plan.total), 1.0)
        paces = draw_paces(self.history.blocks, self.plan.total, span, self.random, draws)
        return [self._one(pace) for pace in paces]

    def _one(self, pace_ns: float) -> dict[str, float]:
        train, history, plan = pace_ns * self.left, self.history, self.plan
        validations = self._count(plan.validations, history.validation.ended)
        saves = self._count(plan.saves, history.save.ended)
        parts = {
            "train": train,
            "validation": self._events(history.validation.durations_ns, validations, train * VALIDATION_SHARE),
            "checkpoint": self._events(history.save.durations_ns, saves, train * SAVE_SHARE),
        }
        # What is done again is done with all that belongs to it.
        parts["failures"] = self._failures(sum(parts.values()) / self.left if self.left else 0.0)
        return parts

    def _count(self, planned: int | None, ended: int) -> float | None:
        """Events still to come, `None` if nothing is known of them."""
        if planned is not None:
            # Where work was lost, events have been paid for twice: only the place in the plan tells how many are left.
            place = math.floor(planned * self.done / self.plan.total) if self.history.lost_units else ended
            return max(0.0, planned - place)
        return ended * self.left / self.done if ended and self.done else None

    def _events(self, durations_ns: Sequence[int], count: float | None, unseen_ns: float) -> float:
        if not count or not self.left:
            return 0.0
        if not durations_ns:
            return unseen_ns * math.exp(self.random.gauss(0, UNSEEN_SIGMA))
        return fmean(self.random.choices(durations_ns, k=len(durations_ns))) * count

    def _failures(self, pace_ns: float) -> float:
        """Failures come with units trained, of which those done again are some."""
        exposure = self.failures.plans * self.plan.total + self.history.trained_units
        rate = self.random.gammavariate(self.failures.events + self.history.restarts, 1 / exposure)
        again = min(0.9, rate * self._between() / 2)
        return sum(self._failure(pace_ns) for _ in range(self._poisson(rate * self.left / (1 - again))))

    def _between(self) -> float:
        """Units between two saves."""
        return self.plan.total / (self.plan.saves or 20)

    def _failure(self, pace_ns: float) -> float:
        starts = self.history.starts_ns
        again = self.random.choice(starts[1:] or starts or [0])
        return again + self.random.random() * self._between() * pace_ns

    def _poisson(self, mean: float) -> int:
        """Knuth's method, fine for the few failures of a run."""
        count, product, floor = 0, self.random.random(), math.exp(-min(mean, 500.0))
        while product > floor:
            count += 1
            product *= self.random.random()
        return count
