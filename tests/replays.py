"""Runs to score forecasts on, as a random simulation of what happens to runs.

Written before the forecaster was tuned, and not to be changed for its sake: all it shares with the forecaster is the
form of a sample. Amounts are drawn anew for each seed, from ranges that are usual for runs of some hours to some days.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random

from costguard.plan.series import Plan, Replay, Sample

NS = 1_000_000_000
CHUNKS = 1000
"""Samples of the work: one at each thousandth of the plan."""
UNITS = 1_000_000
"""Tokens of a chunk."""
USD_PER_NS = Fraction(249, 100) * 8 / (3600 * NS)
"""Eight devices at $2.49 an hour."""

Shape = Callable[[float], float]
"""Relative cost of a token at a progress of 0 to 1."""


def steady(random: Random) -> Shape:
    """The same all the time."""
    return lambda q: 1.0


def warm_up(random: Random) -> Shape:
    """Up to three times as slow at first, soon faster: caches, autotuning, data that is read for the first time."""
    amount, length = random.uniform(0.5, 2.0), random.uniform(0.003, 0.015)
    return lambda q: 1 + amount * math.exp(-q / length)


def slow_second_half(random: Random) -> Shape:
    """From one moment on 30% to 80% slower: nothing before it tells."""
    amount = random.uniform(0.3, 0.8)
    return lambda q: 1.0 if q < 0.5 else 1 + amount


def growing_sequences(random: Random) -> Shape:
    """Sequences grow evenly over the run, so that a token costs 10% to 60% more at its end."""
    growth = random.uniform(0.1, 0.6)
    return lambda q: 1 + growth * q


SHAPES: dict[str, Callable[[Random], Shape]] = {
    "steady": steady,
    "warm-up": warm_up,
    "slow second half": slow_second_half,
    "growing sequences": growing_sequences,
    "failures": steady,
}


class _Run:
    """Time as it goes by."""

    def __init__(self) -> None:
        self.activities: dict[str, int] = {}
        self.samples: list[Sample] = []
        self.elapsed = self.done = self.validations = self.saves = 0
        self.attempt = 1

    def spend_time(self, activity: str, seconds: float) -> None:
        ns = max(1, round(seconds * NS))
        self.activities[activity] = self.activities.get(activity, 0) + ns
        self.elapsed += ns

    def sample(self) -> None:
        self.samples.append(
            Sample(
                elapsed_ns=self.elapsed,
                done=self.done * UNITS,
                spend=self.elapsed * USD_PER_NS,
                activities_ns=dict(self.activities),
                validations=self.validations,
                saves=self.saves,
                attempt=self.attempt,
            )
        )


def replay(scenario: str, seed: int) -> Replay:
    """One run of a scenario of `SHAPES`."""
    random = Random(f"{scenario}/{seed}")
    shape = SHAPES[scenario](random)
    nominal_s = 3600 * math.exp(random.uniform(math.log(2), math.log(72)))
    failures = random.uniform(2, 8) if scenario == "failures" else 0.0
    chunk_s = nominal_s / CHUNKS
    noise, memory = random.uniform(0.01, 0.04), random.uniform(0.3, 0.7)
    every_validation, every_save = random.randint(20, 100), random.randint(10, 50)
    validation_s, save_s = nominal_s * random.uniform(0.003, 0.01), nominal_s * random.uniform(0.0005, 0.003)
    startup_s, compile_s = random.uniform(120, 480), random.uniform(30, 300)
    reschedule_s = random.uniform(60, 1200)

    run, level, saved = _Run(), 0.0, 0
    run.spend_time("startup", startup_s)
    run.spend_time("compile", compile_s)
    run.sample()
    while run.done < CHUNKS:
        level = memory * level + random.gauss(0, noise * math.sqrt(1 - memory**2))
        straggler = random.uniform(1.3, 3.0) if random.random() < 0.01 else 1.0
        seconds = chunk_s * shape(run.done / CHUNKS) * math.exp(level) * straggler
        if random.random() < failures / CHUNKS:
            run.spend_time("train", seconds * random.random())
            run.done = saved
            run.spend_time("gap", reschedule_s * random.uniform(0.5, 1.5))
            run.attempt += 1
            run.spend_time("startup", startup_s * random.uniform(0.8, 1.2))
            run.spend_time("compile", compile_s * random.uniform(0.8, 1.2))
            run.sample()
            continue
        run.spend_time("data_wait", seconds * 0.03)
        run.spend_time("train", seconds * 0.97)
        run.done += 1
        if run.done % every_validation == 0:
            run.spend_time("validation", validation_s * random.uniform(0.95, 1.05))
            run.validations += 1
        if run.done % every_save == 0:
            run.spend_time("checkpoint", save_s * random.uniform(0.85, 1.15))
            run.saves += 1
            saved = run.done
        run.sample()
    run.spend_time("teardown", random.uniform(1, 10))
    run.sample()
    plan = Plan(total=CHUNKS * UNITS, validations=CHUNKS // every_validation, saves=CHUNKS // every_save)
    return Replay(plan=plan, samples=run.samples)
