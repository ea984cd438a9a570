"""The forecast with a band: what it is made from, what it knows of prices, and what it never says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import HOUR_NS, NS, T0, examples
from costguard.errors import ConfigError
from costguard.plan.forecast import FailurePrior, Forecast, forecast_run, money_from
from costguard.plan.history import MAX_BLOCKS, MAX_EVENTS, Block, History
from costguard.plan.pace import find_cut, fit_line, set_stragglers_apart
from costguard.plan.series import Plan, Sample
from costguard.prices import Price, PriceBook
from replays import SHAPES, replay

NO_FAILURES = FailurePrior(events=1e-9, plans=1e9)
PLAN = Plan(total=1000, validations=10, saves=20)


def even(
    until: int, *, step_s: float = 10, startup_s: float = 100, start: int = 0, spend: Fraction | None = None
) -> list[Sample]:
    """A run like clockwork: a validation of 50 s each 100 units, a save of 5 s each 50."""
    samples, elapsed, activities = [], round(startup_s * NS), {"startup": round(startup_s * NS)}

    def add(name: str, seconds: float) -> None:
        nonlocal elapsed
        elapsed += round(seconds * NS)
        activities[name] = activities.get(name, 0) + round(seconds * NS)

    for done in range(start + 1, until + 1):
        add("train", step_s)
        if done % 100 == 0:
            add("validation", 50)
        if done % 50 == 0:
            add("checkpoint", 5)
        money = None if spend is None else spend * elapsed
        counts = {"validations": done // 100, "saves": done // 50}
        samples.append(Sample(elapsed_ns=elapsed, done=done, spend=money, activities_ns=dict(activities), **counts))
    return samples


def history_of(samples: Sequence[Sample]) -> History:
    history = History()
    for sample in samples:
        history.see(sample)
    return history


def total_of(history: History, plan: Plan = PLAN, **more: Any) -> Forecast:
    made = forecast_run(history, plan, **{"failures": NO_FAILURES, **more})
    assert made is not None
    return made


def test_a_run_like_clockwork_is_foreseen_to_a_percent() -> None:
    """After a tenth: training, the validations and saves to come, and the start that is paid once."""
    whole = even(1000)[-1].elapsed_ns
    made = total_of(history_of(even(100)))
    assert made.total_ns.median == pytest.approx(whole, rel=0.01)
    assert made.total_ns.low <= whole <= made.total_ns.high
    assert made.parts_ns["train"] == pytest.approx(9000 * NS, rel=0.01)
    assert made.parts_ns["validation"] == pytest.approx(9 * 50 * NS)
    assert made.parts_ns["checkpoint"] == pytest.approx(18 * 5 * NS)
    assert made.parts_ns["failures"] == 0


def test_nothing_is_foreseen_before_anything_is_trained() -> None:
    """A run that is still starting has no forecast; one unit is enough for a wide one."""
    assert forecast_run(History(), PLAN) is None
    starting = history_of([Sample(elapsed_ns=NS, done=0, activities_ns={"startup": NS})])
    assert forecast_run(starting, PLAN) is None
    first = total_of(history_of(even(1)))
    later = total_of(history_of(even(500)))
    assert first.total_ns.high - first.total_ns.low > 10 * (later.total_ns.high - later.total_ns.low)


def test_a_plan_that_is_done_has_nothing_left() -> None:
    """At the end, and beyond it, the forecast is what was spent."""
    for total in (1000, 900):
        made = total_of(history_of(even(1000)), Plan(total=total, validations=10, saves=20))
        assert made.total_ns.low == made.total_ns.high == made.elapsed_ns
        assert made.progress == 1


def test_events_that_are_not_planned_go_on_as_they_came() -> None:
    """With unknown counts the seen ones go on at their rate; none seen, none foreseen."""
    made = total_of(history_of(even(200)), Plan(total=1000))
    assert made.parts_ns["validation"] == pytest.approx(8 * 50 * NS)
    early = total_of(history_of(even(40)), Plan(total=1000))
    assert early.parts_ns["validation"] == 0
    planned = total_of(history_of(even(40)), PLAN)
    assert planned.parts_ns["validation"] > 0


def test_work_that_was_lost_does_not_shrink_what_is_left() -> None:
    """Validations that were paid for twice are not taken off those to come."""
    before = even(300)
    again = [
        Sample(
            elapsed_ns=before[-1].elapsed_ns + s.elapsed_ns, done=s.done, attempt=2, validations=3 + s.validations,
            saves=6 + s.saves,
            activities_ns={n: ns + s.activities_ns.get(n, 0) for n, ns in before[-1].activities_ns.items()},
        )
        for s in even(300)
    ]  # fmt: skip
    made = total_of(history_of([*before, *again]))
    assert made.parts_ns["validation"] == pytest.approx(7 * 50 * NS)
    assert made.parts_ns["checkpoint"] == pytest.approx(14 * 5 * NS)


def failing(attempts: int) -> History:
    """Attempts of 50 units each, of which the last 10 are lost."""
    samples, elapsed, done = [], 0, 0
    activities: dict[str, int] = {}
    for attempt in range(1, attempts + 1):
        activities["startup"] = activities.get("startup", 0) + 300 * NS
        elapsed += 300 * NS
        samples.append(Sample(elapsed_ns=elapsed, done=done, activities_ns=dict(activities), attempt=attempt))
        for _ in range(50):
            done, elapsed = done + 1, elapsed + 10 * NS
            activities["train"] = activities.get("train", 0) + 10 * NS
            samples.append(Sample(elapsed_ns=elapsed, done=done, activities_ns=dict(activities), attempt=attempt))
        done -= 10
    return history_of(samples)


def test_failures_are_learned() -> None:
    """What was lost to restarts is foreseen to go on, with what each start takes; the prior fades."""
    plan = Plan(total=1000, saves=50)
    history = failing(6)
    assert history.restarts == 5
    assert history.starts_ns == [300 * NS] * 6
    assert history.lost_units == [10] * 5
    made = forecast_run(history, plan, draws=2000)
    assert made is not None
    # 5 failures and the prior's half one in 300 units and the prior's 250; 750 to go, of which a tenth is done again;
    # for each 300 s and half of the 20 units between saves, at 10 s.
    assert made.parts_ns["failures"] == pytest.approx(5.5 / 550 * 750 / 0.9 * 400 * NS, rel=0.1)
    calm = forecast_run(failing(1), plan, draws=2000)
    assert calm is not None
    assert calm.parts_ns["failures"] < made.parts_ns["failures"] / 2


def test_a_known_price_change_is_counted_from_its_date() -> None:
    """Money is exact by the price book: what is left before the change at the old price, the rest at the new one."""
    samples = even(500, spend=Fraction(2, HOUR_NS) * 8)
    now_ns = T0 + samples[-1].elapsed_ns
    change = datetime.fromtimestamp((now_ns + 1000 * NS) // NS, tz=timezone.utc).isoformat()
    flat = PriceBook(prices=(Price(amount="2"),))
    dearer = PriceBook(prices=(Price(amount="2"), Price(amount="6", valid_from=change)))
    made = [total_of(history_of(samples), money=money_from(book, now_ns, 8)) for book in (flat, dearer)]
    change_ns = next(iter(dearer.changes_ns()))
    for i, end in enumerate((made[0].total_ns.low, made[0].total_ns.median, made[0].total_ns.high)):
        rest = round(end - made[0].elapsed_ns)
        spends = [m.spend for m in made]
        assert spends[0] is not None
        assert spends[1] is not None
        extra = Fraction(8 * 4, HOUR_NS) * (rest - (change_ns - now_ns))
        assert float(Decimal(spends[1][i]) - Decimal(spends[0][i])) == pytest.approx(float(extra), rel=1e-9)
    middle, high = made[1].amounts(device_ns=8 * samples[-1].elapsed_ns, devices=8)
    assert middle.money == Fraction(made[1].spend[1])  # type: ignore[index]
    assert high.device_ns == pytest.approx(8 * made[1].total_ns.high, abs=8)


def test_an_unknown_price_is_no_money() -> None:
    """Without prices, or where they end before the run does, money is unknown, and time is not."""
    samples = even(500, spend=Fraction(1, NS))
    now_ns = T0 + samples[-1].elapsed_ns
    ends = datetime.fromtimestamp(now_ns // NS + 60, tz=timezone.utc).isoformat()
    short = PriceBook(prices=(Price(amount="2", valid_until=ends),))
    for money in (None, money_from(PriceBook(), now_ns, 8), money_from(short, now_ns, 8)):
        made = total_of(history_of(samples), money=money)
        assert made.spend is None
        assert made.amounts(device_ns=0, devices=8)[0].money is None
    unpriced = total_of(history_of(even(500)), money=money_from(PriceBook.for_run("t", 2, None), now_ns, 8))
    assert (unpriced.spend, unpriced.spent) == (None, None)


def test_a_forecast_is_plain_data_and_repeatable() -> None:
    """It goes through JSON unharmed; the same history and seed give the same one, another seed a similar one."""
    history = history_of(even(300, spend=Fraction(1, NS)))
    money = money_from(PriceBook.for_run("t", 2, None), T0, 8)
    made = total_of(history, money=money)
    assert Forecast.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False))) == made
    assert total_of(history, money=money) == made
    assert total_of(history, money=money, seed=1).total_ns.median == pytest.approx(made.total_ns.median, rel=0.01)


def test_a_history_stays_small() -> None:
    """100,000 samples leave at most 128 blocks and 64 durations, and no unit or nanosecond is lost in blocks."""
    history, activities = History(), {"train": 0, "validation": 0}
    for n in range(1, 100_001):
        activities = {"train": n * NS, "validation": n * NS}
        history.see(Sample(elapsed_ns=2 * n * NS, done=n, activities_ns=activities, validations=n))
    assert len(history.blocks) < MAX_BLOCKS
    assert len(history.validation.durations_ns) == MAX_EVENTS
    assert sum(b.units for b in history.blocks) > 98_000
    assert all(b.pace_ns == NS for b in history.blocks)
    assert history.trained_units == 100_000


def blocks(*paces: float) -> list[Block]:
    return [Block(n + 0.5, 1, round(pace * NS)) for n, pace in enumerate(paces)]


def noisy(n: int, shape: Any = lambda q: 1.0, sigma: float = 0.02) -> list[Block]:
    random = Random(7)
    return blocks(*(shape(i / n) * 10 * (1 + random.gauss(0, sigma)) for i in range(n)))


def test_a_break_is_cut_off_and_steady_noise_is_not() -> None:
    """The cut lies at a change of regime, behind a warm-up, and nowhere in noise or in an even trend."""
    assert find_cut(noisy(100), 100) == 0
    assert find_cut(noisy(100, lambda q: 1 + 0.5 * q), 100) == 0
    assert 48 <= find_cut(noisy(100, lambda q: 1.0 if q < 0.5 else 1.5), 100) <= 52
    assert 2 <= find_cut(noisy(100, lambda q: 3.0 if q < 0.05 else 1.0), 100) <= 10
    assert find_cut(blocks(30, 10, 10), 100) == 1
    assert find_cut(blocks(10, 10, 10), 100) == 0


def test_stragglers_are_set_apart_and_not_lost() -> None:
    """A block that takes three times as long bends no line, but its time stays a surcharge."""
    each = noisy(40)
    slow = [Block(b.middle, b.units, b.ns * (3 if n == 35 else 1)) for n, b in enumerate(each)]
    calm, surcharges = set_stragglers_apart(slow)
    assert calm[35].pace_ns < 12 * NS
    assert surcharges[35] > 1.5
    assert sum(c.ns * (1 + s) for c, s in zip(calm, surcharges, strict=True)) == pytest.approx(sum(b.ns for b in slow))
    assert abs(fit_line(calm, 40).slope) < 0.05


@pytest.mark.parametrize("slow", [[300.0], [300.0, 80.0], [300.0, 80.0, 40.0, 20.0]])
def test_first_steps_that_compile_do_not_come_again(slow: list[float]) -> None:
    """Steps of 300 s at the beginning, taken for training, are not spread over what is left."""
    run, elapsed, random = [], 0, Random(4)
    for done in range(1, 51):
        seconds = slow[done - 1] if done <= len(slow) else 10 * (1 + random.gauss(0, 0.02))
        elapsed += round(seconds * NS)
        run.append(Sample(elapsed_ns=elapsed, done=done, activities_ns={"train": elapsed}))
    made = total_of(history_of(run), Plan(total=1000))
    assert made.total_ns.median == pytest.approx(elapsed + 9500 * NS, rel=0.05)


def test_a_trend_is_followed_once_it_shows() -> None:
    """Of a pace that grows by half over the plan, a quarter is enough for 5%; the rule of three is 13% short."""
    run, elapsed, random = [], 0, Random(3)
    for done in range(1, 1001):
        elapsed += round(10 * (1 + 0.5 * done / 1000) * (1 + random.gauss(0, 0.02)) * NS)
        run.append(Sample(elapsed_ns=elapsed, done=done, activities_ns={"train": elapsed}))
    made = total_of(history_of(run[:250]), Plan(total=1000))
    assert made.total_ns.median == pytest.approx(elapsed, rel=0.05)
    assert 4 * run[249].elapsed_ns < 0.87 * elapsed


@pytest.mark.parametrize("arguments", [{"total": 0}, {"total": -1}, {"total": 5, "validations": -1}])
def test_a_plan_that_is_none_is_refused(arguments: dict[str, int]) -> None:
    """Nothing to do, or a count below 0, is a mistake."""
    with pytest.raises(ConfigError, match=r"^Plan\("):
        Plan(**arguments)


@given(
    paces=st.lists(st.floats(0.001, 1000), min_size=1, max_size=60),
    total=st.integers(60, 10_000),
    planned=st.one_of(st.none(), st.integers(0, 50)),
    lost=st.lists(st.integers(1, 59), max_size=3),
)
@examples(60)
def test_a_forecast_is_never_below_what_was_spent(
    paces: list[float], total: int, planned: int | None, lost: list[int]
) -> None:
    """Whatever the paces and losses: spent <= low <= median <= high, all finite."""
    history, elapsed, done, attempt = History(), 0, 0, 1
    for n, pace in enumerate(paces):
        if n in lost:
            done, attempt = done // 2, attempt + 1
            history.see(Sample(elapsed_ns=elapsed, done=done, activities_ns={"train": elapsed}, attempt=attempt))
        elapsed, done = elapsed + round(pace * NS), done + 1
        history.see(Sample(elapsed_ns=elapsed, done=done, activities_ns={"train": elapsed}, attempt=attempt))
    made = forecast_run(history, Plan(total=total, validations=planned, saves=planned), draws=40)
    assert made is not None
    band = made.total_ns
    assert elapsed <= band.low <= band.median <= band.high < float("inf")
    json.dumps(made.to_json(), allow_nan=False)


@given(scenario=st.sampled_from(sorted(SHAPES)), seed=st.integers(0, 10**6), factor=st.sampled_from([2, 10]))
@examples(5)
def test_a_slower_clock_and_smaller_units_change_nothing(scenario: str, seed: int, factor: int) -> None:
    """With all times ten times as long the forecast is; with units ten times as small it stays."""
    samples = replay(scenario, seed).samples[:120]
    plan = Plan(total=1_000_000_000, validations=10, saves=20)

    def scaled(time: int, units: int) -> Forecast:
        changed = [
            Sample(
                elapsed_ns=s.elapsed_ns * time, done=s.done * units, attempt=s.attempt, validations=s.validations,
                saves=s.saves, activities_ns={name: ns * time for name, ns in s.activities_ns.items()},
            )
            for s in samples
        ]  # fmt: skip
        made = forecast_run(history_of(changed), Plan(total=plan.total * units, validations=10, saves=20), draws=40)
        assert made is not None
        return made

    base = scaled(1, 1).total_ns
    assert scaled(factor, 1).total_ns.median == pytest.approx(base.median * factor, rel=1e-6)
    assert scaled(1, factor).total_ns.high == pytest.approx(base.high, rel=1e-6)
