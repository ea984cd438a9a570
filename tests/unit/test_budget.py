"""Budgets: exact limits, thresholds that fire once, a stop with the price of stopping counted in."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders import HOUR_NS, examples
from costguard.errors import ConfigError
from costguard.policies.budget import (
    Budget,
    BudgetReason,
    Facts,
    Mark,
    Threshold,
    admit,
    check_distinct,
    check_enforceable,
    evaluate,
    evaluate_all,
)
from costguard.records import Action, Amount

NONE: frozenset[Mark] = frozenset()
HUNDRED = Budget(limit_usd=100)


def usd(amount: str | int) -> Amount:
    return Amount(money=Fraction(amount))


def facts(spent: str | int, reserve: str | int = 0, **more: Any) -> Facts:
    return Facts(spent=usd(spent), reserve=usd(reserve), step=7, **more)


def said(budget: Budget, given: Facts, fired: frozenset[Mark] = NONE) -> list[tuple[str, str]]:
    return [(v.action.value, v.reason) for v in evaluate(budget, given, fired).verdicts]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, r"Budget\(\): no limit; give limit_usd=250, or limit_gpu_hours=100"),
        ({"limit_usd": 0}, r"Budget\(limit_usd=0\): nothing may be spent; expected US dollars"),
        ({"limit_usd": -1}, r"Budget\(limit_usd=-1\): negative"),
        ({"limit_usd": float("nan")}, r"Budget\(limit_usd=nan\): not a finite"),
        ({"limit_usd": "inf"}, r"Budget\(limit_usd='inf'\): not a finite"),
        ({"limit_usd": "abc"}, r"Budget\(limit_usd='abc'\): not a number; expected US dollars such as 250 or '2.49'"),
        ({"limit_usd": True}, r"Budget\(limit_usd=True\): not a number"),
        ({"limit_gpu_hours": 0}, r"Budget\(limit_gpu_hours=0\): nothing may be spent; expected GPU-hours"),
        ({"limit_gpu_hours": "-2"}, r"Budget\(limit_gpu_hours='-2'\): negative"),
        ({"limit_usd": 1, "limit_gpu_hours": 1}, r"two limits in one budget; give one of them"),
        ({"limit_usd": 1, "scope": "week"}, r"Budget\(scope='week'\): unknown; expected run, stage, project, day or"),
        ({"limit_usd": 1, "scope": "tag:"}, r"Budget\(scope='tag:'\)"),
        ({"limit_usd": 1, "scope": None}, r"Budget\(scope=None\)"),
        ({"limit_usd": 1, "basis": "net"}, r"Budget\(basis='net'\): unknown; expected billed or effective"),
        ({"limit_usd": 1, "time_zone": "Tokyo"}, r"Budget\(time_zone='Tokyo'\): no such time zone"),
        ({"limit_usd": 1, "usd_rate": "1.1"}, r"an exchange rate is worth nothing without its date"),
        ({"limit_usd": 1, "usd_rate_date": "2026-11-30"}, r"an exchange rate is worth nothing without its date"),
        ({"limit_usd": 1, "usd_rate": 0, "usd_rate_date": "2026-11-30"}, r"not a rate above 0 with its date"),
        ({"limit_usd": 1, "usd_rate": "1.1", "usd_rate_date": "yesterday"}, r"not a rate above 0 with its date"),
    ],
)
def test_a_budget_that_cannot_be_used_says_why(arguments: dict[str, Any], sentence: str) -> None:
    """Zero, negative, NaN, two limits, none, unknown scopes: one sentence with the remedy."""
    with pytest.raises(ConfigError, match=sentence):
        Budget(**arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"at": 0}, r"Threshold\(at=0\): expected a share of the limit above 0 to 1"),
        ({"at": 1.1}, r"above 0 to 1"),
        ({"at": float("nan")}, r"above 0"),
        ({"at": "0.5"}, r"Threshold\(at='0.5'\)"),
        ({"at": True}, r"Threshold\(at=True\)"),
        ({"at": -1, "on": "forecast"}, r"above 0 upward"),
        ({"at": 0.5, "action": "shout"}, r"Threshold\(action='shout'\): unknown; expected one of log, alert, stop"),
        ({"at": 0.5, "on": "vibes"}, r"Threshold\(on='vibes'\): unknown; expected one of spent, forecast"),
    ],
)
def test_a_threshold_that_cannot_be_used_says_why(arguments: dict[str, Any], sentence: str) -> None:
    """A share outside its range or an unknown word is refused."""
    with pytest.raises(ConfigError, match=sentence):
        Threshold(**arguments)


def test_an_unknown_price_is_refused_with_the_remedy() -> None:
    """A money budget without a price cannot hold, and says what can; GPU-hours need none."""
    with pytest.raises(ConfigError, match="use limit_gpu_hours or give a price"):
        check_enforceable(HUNDRED, priced=False)
    check_enforceable(HUNDRED, priced=True)
    check_enforceable(Budget(limit_gpu_hours=1), priced=False, currency="EUR")


def test_another_currency_needs_a_dated_rate() -> None:
    """Dollars are not compared with euros unless someone says what one is, and since when."""
    with pytest.raises(ConfigError, match="the prices are in EUR; add what one EUR is in US dollars and since when"):
        check_enforceable(HUNDRED, priced=True, currency="EUR")
    rated = Budget(limit_usd=100, usd_rate="1.25", usd_rate_date="2026-11-30")
    check_enforceable(rated, priced=True, currency="EUR")
    with pytest.raises(ConfigError, match="are in US dollars already; remove usd_rate"):
        check_enforceable(rated, priced=True)
    assert said(rated, facts("60")) == [("log", "spent_50")]
    assert said(rated, facts("79.99"))[-1] == ("alert", "spent_95")
    assert said(rated, facts("80"))[-1] == ("stop", "limit")
    assert evaluate(rated, facts("80"), NONE).verdicts[-1].evidence["usd_rate"] == ["1.25", "2026-11-30"]


def test_two_limits_for_one_thing_are_refused() -> None:
    """Two run budgets in dollars are a mistake; in dollars and GPU-hours, or of two scopes, they are not."""
    check_distinct([HUNDRED, Budget(limit_gpu_hours=3), Budget(limit_usd=10, scope="day")])
    with pytest.raises(ConfigError, match=r"two limits in usd for one scope"):
        check_distinct([HUNDRED, Budget(limit_usd=50)])
    with pytest.raises(ConfigError, match=r"scope='tag:a/b'"):
        check_distinct([Budget(limit_gpu_hours=1, scope="tag:a/b"), Budget(limit_gpu_hours=2, scope="tag:a/b")])


@pytest.mark.parametrize(
    ("spent", "reserve", "expected"),
    [
        ("49.99", 0, []),
        ("50", 0, [("log", "spent_50")]),
        ("80", 0, [("log", "spent_50"), ("alert", "spent_80")]),
        ("95", "4.99", [("log", "spent_50"), ("alert", "spent_95")]),
        ("95", "5", [("log", "spent_50"), ("alert", "spent_95"), ("stop", "limit")]),
        ("10", "90", [("stop", "limit")]),
        ("101", 0, [("log", "spent_50"), ("alert", "spent_95"), ("stop", "limit")]),
    ],
)
def test_default_thresholds_speak_in_order(spent: str, reserve: str, expected: list[tuple[str, str]]) -> None:
    """50% is logged, 80% and 95% alert, the limit stops with the reserve counted in; a jump says the highest."""
    assert said(HUNDRED, facts(spent, reserve)) == expected


def test_a_tenth_of_a_dollar_is_exact() -> None:
    """0.1 is a tenth: at 0.095 spent and 0.005 reserved it stops, a nanodollar below it does not."""
    budget = Budget(limit_usd=0.1)
    assert said(budget, facts("0.095", "0.005"))[-1] == ("stop", "limit")
    assert ("stop", "limit") not in said(budget, facts("0.094999999", "0.005"))


def test_gpu_hours_need_no_price() -> None:
    """Device time is limited while nothing is known of money; the verdict's spend is unknown, not 0."""
    budget = Budget(limit_gpu_hours=10)
    under = Facts(spent=Amount(device_ns=9 * HOUR_NS), reserve=Amount(device_ns=HOUR_NS - 1))
    at = Facts(spent=Amount(device_ns=9 * HOUR_NS), reserve=Amount(device_ns=HOUR_NS))
    assert said(budget, under) == [("log", "spent_50"), ("alert", "spent_80")]
    stop = evaluate(budget, at, NONE).verdicts[-1]
    assert (stop.kind, stop.action, stop.reason, stop.spend) == ("budget", Action.STOP, "limit", None)
    assert stop.message.startswith("9.00 GPU-hours is spent and stopping costs up to 1.00 GPU-hours")


def test_a_stop_verdict_has_what_a_receipt_needs() -> None:
    """Kind, action, reason, sentence, step and spend, and the numbers behind it."""
    stop = evaluate(HUNDRED, facts("98.5", "1.5"), NONE).verdicts[-1]
    assert (stop.kind, stop.action.value, stop.reason, stop.step, stop.spend) == ("budget", "stop", "limit", 7, "98.5")
    assert stop.message == (
        "$98.50 is spent and stopping costs up to $1.50, which reaches the limit of $100.00 for the run."
    )
    assert (stop.evidence["limit"], stop.evidence["spent"], stop.evidence["reserve"]) == ("100", "98.5", "1.5")
    assert BudgetReason(stop.reason) is BudgetReason.LIMIT
    json.dumps(dict(stop.evidence))


def test_thresholds_fire_once_over_five_restarts() -> None:
    """Every threshold speaks once over six attempts that hand on what has fired; the stop is said by each."""
    fired: frozenset[Mark] = NONE
    heard: list[str] = []
    for spent in ("45", "55", "82", "83", "96", "97"):
        for _ in range(3):
            done = evaluate(HUNDRED, facts(spent, 1), fired)
            heard += [v.reason for v in done.verdicts]
            fired = done.fired
        fired = frozenset(Mark.from_json(json.loads(json.dumps(mark.to_json()))) for mark in fired)
    assert heard == ["spent_50", "spent_80", "spent_95"]
    assert said(HUNDRED, facts("99", 1), fired) == said(HUNDRED, facts("99", 1), fired) == [("stop", "limit")]


def test_raising_the_limit_re_arms_and_lowering_does_not() -> None:
    """At a limit of 100, 120 and then 90: the second speaks anew, the third stays silent."""
    fired = evaluate(HUNDRED, facts(60), NONE).fired
    raised = evaluate(Budget(limit_usd=120), facts(60), fired)
    assert [v.reason for v in raised.verdicts] == ["spent_50"]
    assert evaluate(Budget(limit_usd=90), facts(60), raised.fired).verdicts == ()
    assert evaluate(Budget(limit_usd=120), facts(61), raised.fired).verdicts == ()


def test_each_day_fires_anew() -> None:
    """The marks of yesterday say nothing of today."""
    day = Budget(limit_usd=100, scope="day", time_zone="Asia/Tokyo")
    fired = evaluate(day, facts(60, window="2026-11-30"), NONE).fired
    assert evaluate(day, facts(60, window="2026-11-30"), fired).verdicts == ()
    fresh = evaluate(day, facts(60, window="2026-12-01"), fired).verdicts
    assert "for 2026-12-01 (Asia/Tokyo)" in fresh[0].message


def test_forecasts_are_muted_at_first() -> None:
    """Below 2% of the plan, 30 steps or without a forecast nothing is said of the end."""
    over = {"forecast": usd(130), "forecast_high": usd(150)}
    assert said(HUNDRED, facts(1, **over, progress=0.019, warm_steps=99)) == []
    assert said(HUNDRED, facts(1, **over, progress=0.5, warm_steps=29)) == []
    assert said(HUNDRED, facts(1, **over, progress=None, warm_steps=99)) == []
    assert said(HUNDRED, facts(1, progress=0.5, warm_steps=99)) == []
    assert said(HUNDRED, facts(1, **over, progress=0.02, warm_steps=30)) == [
        ("log", "forecast_high_100"),
        ("alert", "forecast_100"),
    ]


def test_a_threshold_may_stop_early() -> None:
    """A stop at 90%, or on a forecast of twice the limit, stops there, and says which."""
    early = Budget(limit_usd=100, thresholds=(Threshold(at=0.9, action="stop"),))
    assert said(early, facts("85", "4.99")) == []
    assert said(early, facts("85", "5")) == [("stop", "limit")]
    assert "$90.00 is where it stops" in evaluate(early, facts("85", "5"), NONE).verdicts[0].message
    hopeless = Budget(limit_usd=100, thresholds=(Threshold(at=2, action="stop", on="forecast"),))
    assert said(hopeless, facts(5, forecast=usd(199), progress=0.5, warm_steps=99)) == []
    assert said(hopeless, facts(5, forecast=usd(200), progress=0.5, warm_steps=99)) == [("stop", "forecast_over_limit")]


def test_the_limit_stops_whatever_the_thresholds() -> None:
    """A budget without thresholds is silent until it stops."""
    silent = Budget(limit_usd=100, thresholds=())
    assert said(silent, facts("99.99")) == []
    assert said(silent, facts("100")) == [("stop", "limit")]


def test_time_without_a_price_is_said_once() -> None:
    """Where prices run out in the middle, the budget says once that it does not hold, and keeps what it can."""
    unknown = Facts(spent=Amount(device_ns=5), reserve=usd(1))
    done = evaluate(HUNDRED, unknown, NONE)
    assert [(v.action.value, v.reason) for v in done.verdicts] == [("alert", "price_unknown")]
    assert evaluate(HUNDRED, unknown, done.fired).verdicts == ()
    partly = facts("99", 1, unpriced_device_ns=3)
    alerts = [("alert", "price_unknown"), ("alert", "spent_95")]
    assert said(HUNDRED, partly) == [("log", "spent_50"), *alerts, ("stop", "limit")]
    assert said(Budget(limit_gpu_hours=9), Facts(spent=Amount(device_ns=1), unpriced_device_ns=1)) == []


def test_prepaid_capacity_says_that_stopping_saves_no_cash() -> None:
    """Who has paid already is told so in the alarm."""
    stop = evaluate(HUNDRED, facts(100, prepaid=True), NONE).verdicts[-1]
    assert stop.message.endswith("The capacity is prepaid: stopping saves no cash.")


@pytest.mark.parametrize(
    ("limit", "spent", "reserve", "reason", "least"),
    [
        ("1", 0, "1.2", "limit_below_reserve", "1.21"),
        ("1", 0, "1", "limit_below_reserve", "1.01"),
        ("10", "9.5", "0.505", "limit_below_reserve", "10.01"),
        ("10", "10", "0.5", "limit_already_spent", "10.51"),
        ("10", "12", "0.5", "limit_already_spent", "12.51"),
    ],
)
def test_a_start_that_would_stop_at_once_is_refused(
    limit: str, spent: int, reserve: str, reason: str, least: str
) -> None:
    """The refusal names the least budget that works, and that one does work."""
    refusal = admit(Budget(limit_usd=limit), facts(spent, reserve))
    assert refusal is not None
    assert (refusal.kind, refusal.action, refusal.reason) == ("budget", Action.REFUSE, reason)
    assert refusal.evidence["least_limit"] == least
    assert "the least budget that works is $" in refusal.message
    assert admit(Budget(limit_usd=least), facts(spent, reserve)) is None


def test_a_start_has_its_own_price() -> None:
    """A budget that would be used up by starting and stopping is refused, and the sentence says both."""
    small, start = Budget(limit_usd=3), usd("1.25")
    assert admit(small, facts(1, "0.5")) is None
    assert admit(small, facts(1, "0.5"), start) is None
    refusal = admit(small, facts(1, "0.75"), start)
    assert refusal is not None
    assert refusal.message == (
        "Not started: $1.00 is spent, starting costs $1.25 and stopping costs up to $0.7500, which leaves nothing of "
        "$3.00 for the run; the least budget that works is $3.01."
    )
    assert admit(small, facts(1, "0.75"), Amount(device_ns=5)) is None  # unpriced: unknown is no reason


def test_the_tightest_of_several_budgets_decides() -> None:
    """All speak, in the order of actions, and one stop is enough."""
    budgets = [HUNDRED, Budget(limit_gpu_hours=10), Budget(limit_usd=20, scope="day")]
    given = {
        HUNDRED.key: facts(19),
        budgets[1].key: Facts(spent=Amount(device_ns=HOUR_NS)),
        budgets[2].key: facts(19, 1, window="2026-11-30"),
    }
    done = evaluate_all(budgets, given, NONE)
    assert [v.action.value for v in done.verdicts] == ["log", "alert", "stop"]
    assert done.verdicts[-1].evidence["budget"] == "day/usd/billed"
    assert evaluate_all(budgets, given, done.fired).verdicts == done.verdicts[-1:]


MONEY = st.fractions(0, 200, max_denominator=1000)
LIMIT = st.decimals("0.01", "150", places=2)


@given(limit=LIMIT, spent=MONEY, reserve=MONEY)
@examples(300)
def test_it_stops_exactly_when_spent_and_reserve_reach_the_limit(
    limit: Any, spent: Fraction, reserve: Fraction
) -> None:
    """Never a stop below the limit, always one at it; and a start is refused exactly then."""
    given_ = Facts(spent=Amount(money=spent), reserve=Amount(money=reserve))
    stops = any(v.action is Action.STOP for v in evaluate(Budget(limit_usd=limit), given_, NONE).verdicts)
    assert stops is (spent + reserve >= Fraction(limit))
    assert (admit(Budget(limit_usd=limit), given_) is not None) is stops


@given(limit=LIMIT, low=MONEY, more=MONEY, reserve=MONEY)
@examples(200)
def test_more_spend_never_says_less(limit: Any, low: Fraction, more: Fraction, reserve: Fraction) -> None:
    """What has fired grows with spend, and a stop stays one."""
    budget = Budget(limit_usd=limit)
    first = evaluate(budget, Facts(spent=Amount(money=low), reserve=Amount(money=reserve)), NONE)
    second = evaluate(budget, Facts(spent=Amount(money=low + more), reserve=Amount(money=reserve)), NONE)
    assert first.fired <= second.fired
    if first.verdicts and first.verdicts[-1].action is Action.STOP:
        assert second.verdicts[-1].action is Action.STOP


@given(spends=st.lists(MONEY, min_size=1, max_size=20), limit=LIMIT)
@examples(200)
def test_nothing_but_a_stop_is_said_twice(spends: list[Fraction], limit: Any) -> None:
    """Over any order of spends, each reason that does not stop is heard at most once."""
    fired: frozenset[Mark] = NONE
    heard: list[str] = []
    for spent in spends:
        done = evaluate(Budget(limit_usd=limit), Facts(spent=Amount(money=spent)), fired)
        heard += [v.reason for v in done.verdicts if v.action is not Action.STOP]
        assert fired <= done.fired
        fired = done.fired
    assert len(heard) == len(set(heard))


@given(limit=LIMIT, raise_by=st.decimals("0.01", "50", places=2), spent=MONEY)
@examples(200)
def test_a_raise_speaks_again_of_what_is_still_passed(limit: Any, raise_by: Any, spent: Fraction) -> None:
    """After a raise, the thresholds speak as if for the first time."""
    assume(spent > 0)
    before = evaluate(Budget(limit_usd=limit), Facts(spent=Amount(money=spent)), NONE).fired
    raised = Budget(limit_usd=limit + raise_by)
    given_ = Facts(spent=Amount(money=spent))
    assert evaluate(raised, given_, before).verdicts == evaluate(raised, given_, NONE).verdicts


def test_thresholds_are_what_they_are_written_as() -> None:
    """A list, as YAML gives, makes the same budget as a tuple; anything else is an error."""
    assert Budget(limit_usd=1, thresholds=[Threshold(at=0.5)]) == Budget(limit_usd=1, thresholds=(Threshold(at=0.5),))
    with pytest.raises(ConfigError, match=r"Budget\(thresholds=\[0\.5\]\): expected Threshold objects"):
        Budget(limit_usd=1, thresholds=[0.5])  # type: ignore[list-item]
