"""The composite alarm: its truth table, its hysteresis, its silence; and the daily line."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import HOUR_NS, NS, T0, examples
from costguard.days import day_of
from costguard.errors import ConfigError
from costguard.policies.daily import DailyLine, DayMark, even_line, judge_day
from costguard.policies.progress import (
    AlarmState,
    EarnedValue,
    Standing,
    judge_progress,
    planned_share,
    progress_of,
    standing_of,
)
from costguard.records import Action

MINUTE = 60 * NS
AHEAD, BEHIND = ("0.50", "0.50"), ("0.40", "0.50")


def value(done: str = "0.4", planned: str = "0.5", spent: str = "60", **more: Any) -> EarnedValue:
    return EarnedValue(
        progress=Fraction(done), planned_progress=Fraction(planned), spent=Fraction(spent), planned_spend=Fraction(100),
        **more,
    )  # fmt: skip


def run(*values: EarnedValue, every_ns: int = 5 * MINUTE) -> tuple[list[tuple[str, str]], AlarmState]:
    state, said = AlarmState(), []
    for n, each in enumerate(values):
        verdict, state = judge_progress(each, T0 + n * every_ns, state)
        said += [] if verdict is None else [(verdict.action.value, verdict.reason)]
    return said, state


TABLE = [
    # progress, planned, spent of 100: what is said, and whether the alarm is on
    ("0.40", "0.50", "44.01", [("alert", "behind_plan_and_over_cost")], True),
    ("0.40", "0.50", "44.00", [("log", "behind_plan")], False),
    ("0.48", "0.50", "60.00", [("log", "over_cost")], False),
    ("0.60", "0.50", "66.01", [("log", "over_cost")], False),
    ("0.479", "0.50", "60.00", [("alert", "behind_plan_and_over_cost")], True),
    ("0.50", "0.50", "55.00", [], False),
    ("0.60", "0.50", "30.00", [], False),
    ("0.00", "0.50", "0.01", [("alert", "behind_plan_and_over_cost")], True),
    ("0.00", "0.50", "0.00", [("log", "behind_plan")], False),
    ("0.001", "0.0199", "90.00", [], False),
    ("0.00", "0.021", "90.00", [("alert", "behind_plan_and_over_cost")], True),
]


@pytest.mark.parametrize(("done", "planned", "spent", "said", "raised"), TABLE)
@pytest.mark.parametrize("unit", ["usd", "gpu_hours"])
def test_the_truth_table(
    done: str, planned: str, spent: str, said: list[tuple[str, str]], raised: bool, unit: str
) -> None:
    """Behind and over is an alarm; one of the two a note; neither, and before 2% of the plan, silence."""
    heard, state = run(*[value(done, planned, spent, unit=unit)] * 4)
    assert heard == said
    assert state.raised is raised


@pytest.mark.parametrize(
    ("behind", "over", "count", "minutes"),
    list(product([False, True], [False, True], [1, 2, 3, 4], [0, 1, 5, 10])),
)
def test_nothing_is_said_before_it_is_confirmed(behind: bool, over: bool, count: int, minutes: int) -> None:
    """Three evaluations in a row and ten minutes, both, whatever the standing."""
    each = value("0.40" if behind else "0.50", "0.50", "60" if over else "40")
    heard, state = run(*[each] * count, every_ns=minutes * MINUTE)
    confirmed = count >= 3 and minutes * (count - 1) >= 10
    assert bool(heard) is (confirmed and (behind or over))
    assert state.raised is (confirmed and behind and over)


def test_one_good_evaluation_begins_the_count_anew() -> None:
    """Two bad ones, a good one and two bad ones are no alarm."""
    bad, good = value(), value("0.50", "0.50", "50")
    assert run(bad, bad, good, bad, bad)[0] == []


@pytest.mark.parametrize(
    ("done", "planned", "spent", "raised"),
    [
        ("0.40", "0.50", "43", True),  # 1.075: under the alarm's line, above the one that clears it
        ("0.40", "0.50", "42", True),  # 1.05 exactly
        ("0.40", "0.50", "41.99", False),
        ("0.49", "0.50", "60", True),  # no longer behind by 2%, but not caught up
        ("0.50", "0.50", "60", False),
        ("0.40", "0.50", "60", True),
    ],
)
def test_a_raised_alarm_is_cleared_only_by_real_recovery(done: str, planned: str, spent: str, raised: bool) -> None:
    """Spend under 1.05 of its baseline or the plan caught up with; nothing is said while it stays."""
    state = run(*[value()] * 3)[1]
    verdict, after = judge_progress(value(done, planned, spent), T0 + HOUR_NS, state)
    assert after.raised is raised
    assert (verdict is None) is raised
    assert verdict is None or (verdict.action, verdict.reason) == (Action.LOG, "recovered")


def test_an_alarm_is_said_once_and_again_after_recovery() -> None:
    """Ten bad evaluations are one alarm; recovery and three more are a second one."""
    heard, _ = run(*[value()] * 10, value("0.5", "0.5", "50"), *[value()] * 3)
    assert [reason for _, reason in heard] == [
        "behind_plan_and_over_cost",
        "recovered",
        "behind_plan_and_over_cost",
    ]


def test_hovering_at_the_line_does_not_flap() -> None:
    """Spend that swings between 1.08 and 1.12 of what is earned alarms at most once."""
    swings = [value("0.40", "0.50", "43.2"), value("0.40", "0.50", "44.8")] * 10
    heard, _ = run(*[value("0.40", "0.50", "44.8")] * 3, *swings)
    assert [reason for _, reason in heard] == ["behind_plan_and_over_cost"]


@pytest.mark.parametrize("missing", ["progress", "planned_progress", "spent", "planned_spend"])
def test_what_is_unknown_says_nothing(missing: str) -> None:
    """Without progress, schedule, spend or plan there is no standing, and a raised alarm stays."""
    unknown = replace(value(), **{missing: None})
    assert standing_of(unknown) is None
    assert run(*[unknown] * 5)[0] == []
    raised = run(*[value()] * 3)[1]
    verdict, state = judge_progress(unknown, T0 + HOUR_NS, raised)
    assert verdict is None
    assert state.raised


def test_the_planned_baseline_is_the_literal_reading() -> None:
    """Against what was to be spent by now, a run that is behind and has spent 48 of 50 is not over."""
    assert standing_of(value("0.40", "0.50", "48")) is Standing.BEHIND_AND_OVER
    assert standing_of(value("0.40", "0.50", "48", baseline="planned")) is Standing.BEHIND
    assert standing_of(value("0.40", "0.50", "55.01", baseline="planned")) is Standing.BEHIND_AND_OVER


def test_the_alarm_says_both_figures_and_the_outlook() -> None:
    """One sentence: done and planned, spent and earned, and what the plan will cost."""
    verdict = None
    state = AlarmState()
    for n in range(3):
        verdict, state = judge_progress(value(), T0 + n * 5 * MINUTE, state)
    assert verdict is not None
    assert verdict.message == (
        "Behind plan and over cost: 40.0% is done where 50.0% was planned, and $60.00 is spent for what was to cost "
        "$40.00; at this rate the plan will cost $150.00."
    )
    assert (verdict.kind, verdict.spend) == ("progress", "60")
    assert verdict.evidence["cost_index"] == pytest.approx(2 / 3)
    assert verdict.evidence["schedule_index"] == pytest.approx(0.8)


def test_progress_is_tokens_before_steps_and_never_time() -> None:
    """Tokens where they are planned and counted, else steps, else unknown; at most all of it."""
    assert progress_of(tokens=50, planned_tokens=200, steps=9, planned_steps=10) == Fraction(1, 4)
    assert progress_of(tokens=None, planned_tokens=200, steps=9, planned_steps=10) == Fraction(9, 10)
    assert progress_of(tokens=5, steps=9, planned_steps=None) is None
    assert progress_of(steps=11, planned_steps=10) == 1
    assert planned_share(30, 40) == Fraction(3, 4)
    assert planned_share(50, 40) == 1
    assert planned_share(50, None) is None


def test_a_plan_that_costs_nothing_is_refused() -> None:
    """A planned spend of 0 would make everything infinitely over."""
    with pytest.raises(ConfigError, match="planned_spend"):
        EarnedValue(progress=None, planned_progress=None, spent=None, planned_spend=Fraction(0))


SHARES = st.fractions(0, 1, max_denominator=200)


@given(
    values=st.lists(st.tuples(SHARES, SHARES, st.fractions(0, 150, max_denominator=50)), max_size=40),
    minutes=st.integers(1, 20),
)
@examples(200)
def test_alarms_and_recoveries_alternate(values: list[tuple[Fraction, Fraction, Fraction]], minutes: int) -> None:
    """No alarm follows an alarm without a recovery between; each rests on three that were behind and over."""
    each = [value(str(q), str(plan), str(spent)) for q, plan, spent in values]
    state, said = AlarmState(), []
    for n, one in enumerate(each):
        verdict, state = judge_progress(one, T0 + n * minutes * MINUTE, state)
        if verdict is not None and verdict.reason in ("behind_plan_and_over_cost", "recovered"):
            said.append(verdict.reason)
            if verdict.action is Action.ALERT:
                assert all(standing_of(x) is Standing.BEHIND_AND_OVER for x in each[n - 2 : n + 1])
    assert all(a != b for a, b in pairwise(said))
    assert not said or said[0] == "behind_plan_and_over_cost"


# --- the daily line

LINE = DailyLine(meter="money", per_day=100)
AMSTERDAM = ZoneInfo("Europe/Amsterdam")
PLAIN_DAY = day_of(T0, ZoneInfo("Asia/Tokyo"))


@pytest.mark.parametrize(
    ("share", "used", "said"),
    [
        ("0.5", "100.01", "over_daily_line_money"),
        ("0.01", "100.01", "over_daily_line_money"),
        ("1", "100", None),
        ("0.5", "50", None),
        ("0.5", "50.01", "pace_over_daily_line_money"),
        ("0.25", "26", "pace_over_daily_line_money"),
        ("0.24", "99", None),
        ("0", "0", None),
    ],
)
def test_a_day_is_judged_by_its_line_and_its_pace(share: str, used: str, said: str | None) -> None:
    """Over the line is an alert at any hour; a pace that leads over it is logged from the first quarter on."""
    at = PLAIN_DAY.start_ns + int(Fraction(share) * (PLAIN_DAY.end_ns - PLAIN_DAY.start_ns))
    verdict, marks = judge_day(LINE, PLAIN_DAY, Fraction(used), at, frozenset())
    assert (verdict.reason if verdict else None) == said
    assert bool(marks) is (said is not None)


def test_a_day_is_said_once_also_over_restarts() -> None:
    """Pace, then line, then nothing more that day, and tomorrow anew."""
    noon = (PLAIN_DAY.start_ns + PLAIN_DAY.end_ns) // 2
    heard, marks = [], frozenset[DayMark]()
    for used in (60, 70, 101, 110, 130):
        verdict, marks = judge_day(LINE, PLAIN_DAY, Fraction(used), noon, marks)
        heard += [verdict.reason] if verdict else []
        marks = frozenset(DayMark.from_json(mark.to_json()) for mark in marks)
    assert heard == ["pace_over_daily_line_money", "over_daily_line_money"]
    tomorrow = day_of(PLAIN_DAY.end_ns, ZoneInfo("Asia/Tokyo"))
    assert judge_day(LINE, tomorrow, Fraction(101), tomorrow.start_ns, marks)[0] is not None


@pytest.mark.parametrize(("noon", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_the_pace_knows_days_of_23_and_25_hours(noon: str, hours: int) -> None:
    """On a day of 25 hours the pace at the 12th hour is 12/25."""
    from datetime import datetime

    at = int(datetime.fromisoformat(f"{noon}T12:00:00+00:00").timestamp()) * NS
    day = day_of(at, AMSTERDAM)
    twelve = day.start_ns + 12 * HOUR_NS
    even = Fraction(1200, hours)
    assert judge_day(LINE, day, even, twelve, frozenset())[0] is None
    verdict, _ = judge_day(LINE, day, even + 1, twelve, frozenset())
    assert verdict is not None


def test_unknown_use_says_nothing_of_the_day() -> None:
    """Unknown is not 0, and no reason for anything."""
    assert judge_day(LINE, PLAIN_DAY, None, PLAIN_DAY.end_ns - 1, frozenset()) == (None, frozenset())


def test_other_meters_have_their_own_words() -> None:
    """Bytes are said in bytes."""
    line = DailyLine(meter="checkpoint_bytes", per_day=10**12, unit="bytes")
    verdict, _ = judge_day(line, PLAIN_DAY, Fraction(2 * 10**12), PLAIN_DAY.start_ns, frozenset())
    assert verdict is not None
    assert verdict.message == "2 T bytes of checkpoint bytes today is over the daily line of 1 T bytes."


@pytest.mark.parametrize("per_day", [0, -1, float("nan"), "much"])
def test_a_line_that_is_no_amount_is_refused(per_day: Any) -> None:
    """A line of 0 or of nonsense is a mistake."""
    with pytest.raises(ConfigError, match=r"DailyLine\(per_day="):
        DailyLine(meter="money", per_day=per_day)


def test_what_is_left_lasts_evenly() -> None:
    """$30 for three days is $10 a day; nothing left is nothing."""
    assert even_line(Fraction(30), 3) == 10
    assert even_line(Fraction(-5), 3) == 0
    assert even_line(Fraction(30), 0) == 30
