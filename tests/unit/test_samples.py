"""A journal gone through again as samples: time, steps, money and counts over attempts, as forecasts see them."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import HOUR_NS, NS, TWO_DOLLARS, Attempt, Journal, examples, random_journal
from costguard.ledger.samples import samples_of
from costguard.plan.backtest import backtest
from costguard.plan.forecast import forecast_run
from costguard.plan.history import History
from costguard.plan.series import Plan, Replay
from costguard.prices import PriceBook


def batch(attempt: Attempt, seconds: float = 10) -> None:
    attempt.train(seconds)
    attempt.writer.tick()


def two_attempts() -> Journal:
    """20 steps with a save at 10 and a validation, death, 60 s of a held gap, 15 steps from the save on."""
    journal = Journal()
    held = {"gap": "held", "paid_devices": 8}
    first = journal.attempt(**held)
    first.spend("startup", 100)
    first.writer.tick()
    for n in range(20):
        batch(first)
        if n == 9:
            first.spend("validation", 30)
            first.writer.tick()
            first.save()
    first.die()
    journal.wait(60)
    second = journal.attempt(**held)
    second.spend("startup", 100)
    second.writer.tick()
    second.resume(1, 1, step=10)
    for _ in range(15):
        batch(second)
    second.close()
    return journal


def test_time_steps_and_counts_go_on_over_attempts() -> None:
    """Elapsed time has the gap, steps go back to the save, validations and saves are counted once."""
    samples = samples_of(two_attempts().account())
    last = samples[-1]
    assert (last.elapsed_ns, last.done, last.attempt) == ((100 + 200 + 30 + 60 + 100 + 150) * NS, 25, 2)
    assert (last.validations, last.saves) == (1, 1)
    assert last.activities_ns["gap"] == 60 * NS
    assert max(s.done for s in samples if s.attempt == 1) == 20
    assert [s.done for s in samples if s.attempt == 2][:1] == [20]  # before it has loaded, nothing is known to be lost
    history = History()
    for sample in samples:
        history.see(sample)
    assert history.lost_units == [10]
    assert history.restarts == 1
    assert history.starts_ns == [100 * NS, 160 * NS]
    assert history.validation.durations_ns == [30 * NS]
    assert all(b.pace_ns == 10 * NS for b in history.blocks)


def test_money_is_that_of_all_paid_devices() -> None:
    """Eight devices at $2 an hour, the gap as far as devices are known to have been held; without prices, unknown."""
    last = samples_of(two_attempts().account())[-1]
    gap_ns = 60 * NS
    assert last.spend == Fraction(2 * ((last.elapsed_ns - gap_ns) * 8 + gap_ns), HOUR_NS)
    journal = Journal()
    journal.attempt(book=PriceBook()).train(10).close()
    assert samples_of(journal.account())[-1].spend is None


def test_a_journal_can_be_forecast_and_scored() -> None:
    """What was written while it ran is enough to see how good a forecast would have been."""
    journal = Journal()
    attempt = journal.attempt(book=TWO_DOLLARS)
    attempt.spend("startup", 100)
    for _ in range(100):
        batch(attempt)
    attempt.close()
    samples = samples_of(journal.account())
    outcomes = backtest(Replay(plan=Plan(total=100), samples=samples))
    assert [o.progress for o in outcomes] == [0.01, 0.05, 0.1, 0.25, 0.5, 0.75]
    assert outcomes[2].error == pytest.approx(0, abs=0.05)
    assert outcomes[2].naive_error == pytest.approx(0.82, abs=0.05)


@given(st.integers(0, 10**9))
@examples(60)
def test_samples_of_any_run_add_up(seed: int) -> None:
    """Whatever the journal: time never goes back, activities add up to it, and a forecast does not fail."""
    samples = samples_of(random_journal(Random(seed)).account())
    history = History()
    for sample in samples:
        assert sum(sample.activities_ns.values()) == sample.elapsed_ns
        history.see(sample)
    assert all(a.elapsed_ns <= b.elapsed_ns for a, b in pairwise(samples))
    assert all(a.spend is None or b.spend is None or a.spend <= b.spend for a, b in pairwise(samples))
    forecast_run(history, Plan(total=50), draws=20)
