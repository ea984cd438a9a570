"""How good forecasts were: the scores themselves, and those of the forecaster on runs that it was not made for."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from builders import NS
from costguard.plan.backtest import POINTS, Outcome, Score, backtest, outcome_of, score, spend_outcome_of
from costguard.plan.forecast import Band, Forecast
from costguard.plan.history import History
from costguard.plan.series import Plan
from replays import SHAPES, USD_PER_NS, replay

FORESEEABLE = sorted(set(SHAPES) - {"slow second half"})


def outcome(forecast: float, real: float = 100, *, low: float = 90, high: float = 110, naive: float = 150) -> Outcome:
    return Outcome(progress=0.5, forecast=forecast, low=low, high=high, naive=naive, real=real)


def test_the_scores_are_what_they_say() -> None:
    """Median absolute error, mean signed error, coverage and width of the band, skill by the naive error."""
    made = score([outcome(110), outcome(95, low=96, high=99), outcome(120, naive=90), outcome(100)])
    assert made is not None
    assert (made.count, made.error, made.naive_error) == (4, pytest.approx(0.075), pytest.approx(0.5))
    assert made.bias == pytest.approx(0.0625)
    assert made.coverage == 0.75
    assert made.width == pytest.approx((3 * 0.2 + 0.03) / 4)
    assert made.skill == pytest.approx(1 - 0.075 / 0.5)
    assert score([]) is None


def test_skill_is_unknown_where_the_rule_of_three_was_perfect() -> None:
    """Nothing can be better than no error."""
    made = score([outcome(110, naive=100)])
    assert made is not None
    assert made.skill is None


def test_each_point_is_forecast_when_it_is_first_reached() -> None:
    """A run goes through every point once, also one that falls back behind it; the forecaster sees nothing later."""
    run = replay("failures", 2)
    seen: list[tuple[float, int]] = []

    def forecaster(history: History, plan: Plan) -> Forecast | None:
        assert history.latest is not None
        seen.append((history.latest.done / plan.total, history.latest.elapsed_ns))
        now = history.latest.elapsed_ns
        band = Band(low=now, median=now, high=now)
        return Forecast(elapsed_ns=history.latest.elapsed_ns, done=history.latest.done, total=plan.total, total_ns=band)

    outcomes = backtest(run, forecaster=forecaster)
    assert tuple(o.progress for o in outcomes) == POINTS
    assert [q for q, _ in seen] == pytest.approx(list(POINTS))
    assert [at for _, at in seen] == sorted(at for _, at in seen)
    assert {o.real for o in outcomes} == {run.samples[-1].elapsed_ns}


def test_forecasts_from_a_journal_are_scored_alike() -> None:
    """Plain data that was kept is held to time and money as if it were made now."""
    made = Forecast(
        elapsed_ns=40 * NS, done=25, total=100, total_ns=Band(low=90 * NS, median=120 * NS, high=150 * NS), spent="4",
        spend=("9", "12", "15"),
    )  # fmt: skip
    kept = Forecast.from_json(json.loads(json.dumps(made.to_json())))
    timed, priced = outcome_of(kept, 100 * NS), spend_outcome_of(kept, Fraction(10))
    assert priced is not None
    for each in (timed, priced):
        assert (each.progress, each.covered) == (0.25, True)
        assert each.error == pytest.approx(0.2)
        assert each.naive_error == pytest.approx(0.6)
    unpriced = Forecast(elapsed_ns=1, done=1, total=2, total_ns=made.total_ns)
    assert spend_outcome_of(unpriced, Fraction(10)) is None
    nothing = Forecast(elapsed_ns=1, done=0, total=2, total_ns=made.total_ns)
    assert outcome_of(nothing, 5).naive == float("inf")


@pytest.mark.parametrize("scenario", sorted(SHAPES))
def test_a_replay_is_a_run(scenario: str) -> None:
    """The runs to score on add up: activities to elapsed time, elapsed time to money; and they end with the plan."""
    run = replay(scenario, 5)
    assert run.samples[-1].done == run.plan.total
    for sample in run.samples:
        assert sum(sample.activities_ns.values()) == sample.elapsed_ns
        assert sample.spend == sample.elapsed_ns * USD_PER_NS
    assert [s.elapsed_ns for s in run.samples] == sorted({s.elapsed_ns for s in run.samples})
    assert (run.samples[-1].attempt > 1) is (scenario == "failures")


def scores(scenarios: list[str], seeds: range, since: float = 0.0) -> Score:
    outcomes = [o for name in scenarios for seed in seeds for o in backtest(replay(name, seed)) if o.progress >= since]
    made = score(outcomes)
    assert made is not None
    return made


def test_the_forecast_beats_the_rule_of_three() -> None:
    """Over the foreseeable runs its median error is at most half of the naive one's."""
    made = scores(FORESEEABLE, range(3000, 3003))
    assert made.skill is not None
    assert made.skill >= 0.5
    assert 0.65 <= made.coverage <= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("scenario", FORESEEABLE)
def test_from_a_twentieth_on_the_median_error_is_below_a_tenth(scenario: str) -> None:
    """For each foreseeable kind of run, on seeds that nothing was tuned on."""
    assert scores([scenario], range(2000, 2020), since=0.05).error < 0.1


@pytest.mark.slow
def test_the_band_covers_what_it_says() -> None:
    """The 80% band holds 75% to 90% of what came, from the first hundredth on, over all foreseeable runs."""
    made = scores(FORESEEABLE, range(2000, 2020))
    assert 0.75 <= made.coverage <= 0.90
    assert made.skill is not None
    assert made.skill >= 0.5


@pytest.mark.slow
def test_a_change_of_regime_is_taken_in_once_it_has_come() -> None:
    """Nobody foresees it; half-way after it, the error is a tenth of the naive one's."""
    made = scores(["slow second half"], range(2000, 2020), since=0.75)
    assert made.error < made.naive_error / 10
