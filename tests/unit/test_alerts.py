"""Alerts that are still read: three an hour, each kind once an attempt, the rest in a digest, stops always."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import HOUR_NS, NS, T0, examples
from costguard.policies.alerts import MAX_PER_HOUR, Alerts, AlertState, choose_alerts, kind_of
from costguard.records import ENDING_ACTIONS, Action, Verdict

MINUTE = 60 * NS


def verdict(reason: str, action: Action = Action.ALERT) -> Verdict:
    return Verdict(kind="budget", action=action, reason=reason, message=f"It is {reason}.")


def reasons(alerts: Alerts) -> list[str]:
    return [v.reason for v in alerts.send]


def test_a_kind_is_sent_once_in_an_attempt() -> None:
    """The same kind and reason again waits; another reason of that kind is another alert; a new attempt begins anew."""
    first = choose_alerts(AlertState(), [verdict("spent_80")], T0)
    again = choose_alerts(first.state, [verdict("spent_80"), verdict("spent_95")], T0 + 1)
    assert (reasons(first), reasons(again)) == (["spent_80"], ["spent_95"])
    after = choose_alerts(again.state.next_attempt(), [verdict("spent_80")], T0 + 2)
    assert reasons(after) == ["spent_80"]


def test_the_fourth_in_an_hour_waits_for_the_digest() -> None:
    """Three are sent, two wait; after an hour one digest names both, how often, with the latest sentence."""
    five = [verdict(name) for name in "abcde"]
    now = choose_alerts(AlertState(), [*five, verdict("e")], T0)
    assert reasons(now) == ["a", "b", "c"]
    assert reasons(choose_alerts(now.state, [], T0 + HOUR_NS - 1)) == []
    later = choose_alerts(now.state, [], T0 + HOUR_NS)
    assert [(v.kind, v.action) for v in later.send] == [("digest", Action.ALERT)]
    assert later.send[0].message == "Held back, to spare you: It is d. It is e. (2 times)"
    assert later.send[0].evidence["counts"] == {"budget/d": 1, "budget/e": 2}
    assert later.state.held == ()


def test_the_hourly_limit_goes_on_over_restarts() -> None:
    """A run that crashes every minute and alerts each time sends three an hour."""
    state, sent = AlertState(), 0
    for minute in range(60):
        done = choose_alerts(state, [verdict("crash")], T0 + minute * MINUTE, closing=True)
        state = AlertState.from_json(json.loads(json.dumps(done.state.to_json()))).next_attempt()
        sent += len(done.send)
    assert sent == MAX_PER_HOUR
    assert state.held[0].count == 57


@pytest.mark.parametrize("action", sorted(ENDING_ACTIONS))
def test_a_stop_is_always_sent(action: Action) -> None:
    """Stops and refusals pass a full hour, as often as they come, and take no place."""
    full = choose_alerts(AlertState(), [verdict(name) for name in "abc"], T0).state
    done = choose_alerts(full, [verdict("limit", action), verdict("limit", action)], T0 + 1)
    assert reasons(done) == ["limit", "limit"]
    assert done.state == full


def test_a_log_line_is_no_alert() -> None:
    """What is only logged is neither sent nor held."""
    done = choose_alerts(AlertState(), [verdict("spent_50", Action.LOG)], T0)
    assert done == Alerts((), AlertState())


def test_closing_sends_what_waits_if_there_is_a_place() -> None:
    """At the end of an attempt nothing waits for an hour that may not come; but the limit holds."""
    state = choose_alerts(AlertState(), [verdict("a"), verdict("a")], T0).state
    assert reasons(choose_alerts(state, [], T0 + 1, closing=True)) == ["held_back"]
    full = choose_alerts(state, [verdict("b"), verdict("c")], T0 + 1).state
    kept = choose_alerts(full, [], T0 + 2, closing=True)
    assert kept.send == ()
    assert kept.state.held == full.held


def test_a_clock_put_back_silences_nobody_for_longer_than_an_hour() -> None:
    """After a jump of a day into the past, alerts go on within an hour, and what was held is sent."""
    state = choose_alerts(AlertState(), [verdict(name) for name in "abcd"], T0 + 24 * HOUR_NS).state
    jumped = choose_alerts(state, [], T0).state
    done = choose_alerts(jumped, [verdict("e")], T0 + HOUR_NS)
    assert reasons(done) == ["e", "held_back"]


@given(
    events=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from("abcdef"), st.sampled_from(list(Action)), st.booleans()),
        max_size=60,
    )
)
@examples(200)
def test_no_hour_has_more_than_three(events: list[tuple[int, str, Action, bool]]) -> None:
    """In any hour at most three are sent that end nothing; every ending one is sent at once; nothing gets lost."""
    state, now, sent, told, asked = AlertState(), T0, [], 0, 0
    for minutes, reason, action, restart in events:
        now += minutes * MINUTE
        done = choose_alerts(state.next_attempt() if restart else state, [verdict(reason, action)], now)
        state = done.state
        assert (action in ENDING_ACTIONS) == any(v.action in ENDING_ACTIONS for v in done.send)
        others = [v for v in done.send if v.action not in ENDING_ACTIONS]
        sent += [now] * len(others)
        asked += action in (Action.ALERT, Action.WARN)
        told += sum(sum(v.evidence["counts"].values()) if v.kind == "digest" else 1 for v in others)
    assert all(sum(at <= other < at + HOUR_NS for other in sent) <= MAX_PER_HOUR for at in sent)
    assert told + sum(h.count for h in state.held) == asked


def test_what_counts_as_the_same_is_kind_and_reason() -> None:
    """Two policies may have the same reason."""
    assert kind_of(verdict("limit")) == "budget/limit"
