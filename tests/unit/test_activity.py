"""The state machine of one rank: whatever happens to it, its buckets sum to elapsed time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import NS, examples
from costguard.ledger.activity import ActivityMeter, Counters, MeterState
from costguard.records import ACTIVITY_LABELS, Activity
from costguard.testing import ManualClock

ACTIVITIES = st.integers(0, len(Activity) - 1)
INSTANTS = st.integers(-(10**12), 10**15)
STEPS = st.lists(
    st.tuples(st.just("enter"), INSTANTS, ACTIVITIES, st.just(0))
    | st.tuples(st.just("settle"), INSTANTS, ACTIVITIES, INSTANTS),
    max_size=30,
)


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.states: list[MeterState] = []

    def write(self, state: MeterState) -> None:
        self.states.append(state)


def assert_true(state: MeterState) -> None:
    assert sum(state.totals) == state.since_ns - state.start_ns
    assert all(ns >= 0 for ns in state.totals)


@given(st.integers(0, 10**12), STEPS)
@examples(300)
def test_buckets_sum_to_elapsed_time_whatever_the_clock_says(start: int, steps: list[Any]) -> None:
    """After any sequence of transitions on any clock, also one that goes back, no nanosecond is missing or double."""
    now = [start]
    sink = Kept()
    meter = ActivityMeter(start, Activity.STARTUP, lambda: now[0], sink)
    for number, (name, instant, activity, ended) in enumerate(steps):
        now[0] = instant
        before = meter.state
        if name == "enter":
            assert meter.enter(activity) == before.activity
        else:
            meter.settle(ended, activity, Counters(step=number))
            assert meter.state.counters.step == number
            assert sink.states[-1] == meter.state
        assert_true(meter.state)
        assert meter.state.activity == activity
        assert meter.state.since_ns >= before.since_ns
        assert all(a >= b for a, b in zip(meter.state.totals, before.totals, strict=True))
    until = now[0]
    assert sum(meter.state.activities_ns(until).values()) == max(until, meter.state.since_ns) - start


def test_settle_charges_its_own_time_to_metering() -> None:
    """The time from the end of the work to now is costguard's own."""
    clock = ManualClock()
    meter = ActivityMeter(0, Activity.TRAIN, clock.now_ns)
    clock.advance(10)
    meter.settle(9 * NS, Activity.DATA_WAIT, Counters(1))
    clock.advance(2)
    assert meter.state.activities_ns(clock.now_ns()) == {"train": 9 * NS, "metering": NS, "data_wait": 2 * NS}


def test_counters_move_only_with_settle() -> None:
    """A transition leaves the counters as they are."""
    clock = ManualClock()
    meter = ActivityMeter(0, Activity.TRAIN, clock.now_ns)
    meter.settle(0, Activity.TRAIN, Counters(3, 4, 5, 6, 7))
    meter.enter(Activity.VALIDATION)
    assert meter.state.counters == Counters(3, 4, 5, 6, 7)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_span_goes_back_to_what_was_before(error: type[BaseException] | None) -> None:
    """A block is charged to its activity and ends with it, also on exceptions and when nested."""
    clock = ManualClock()
    meter = ActivityMeter(0, Activity.TRAIN, clock.now_ns)

    def work() -> None:
        with meter.span(Activity.CHECKPOINT):
            clock.advance(1)
            with meter.span(Activity.LOGGING):
                clock.advance(2)
            clock.advance(4)
            if error:
                raise error

    if error:
        with pytest.raises(error):
            work()
    else:
        work()
    assert meter.state.activity == Activity.TRAIN
    assert meter.state.activities_ns(clock.now_ns()) == {"checkpoint": 5 * NS, "logging": 2 * NS}


@pytest.mark.parametrize("outer", ["enter", "settle"])
@pytest.mark.parametrize("inner", ["enter", "settle"])
def test_a_signal_in_the_middle_of_a_transition_loses_no_time(outer: str, inner: str) -> None:
    """A handler that makes a transition of its own, at the worst instant, leaves a meter that still closes."""
    clock = ManualClock()
    handled = []

    def interrupted() -> int:
        if not handled and clock.now_ns() >= 5 * NS:
            handled.append(True)
            clock.advance(1)
            act(inner, Activity.TEARDOWN)
            clock.advance(1)
        return clock.now_ns()

    meter = ActivityMeter(0, Activity.TRAIN, interrupted)

    def act(name: str, activity: Activity) -> None:
        if name == "enter":
            meter.enter(activity)
        else:
            meter.settle(clock.now_ns() - 1, activity, Counters(1))

    clock.advance(5)
    act(outer, Activity.DATA_WAIT)
    assert handled
    assert_true(meter.state)
    assert meter.state.since_ns == 7 * NS


def test_other_threads_never_see_half_of_a_transition() -> None:
    """A reader beside a meter that is busy sees only states that close."""
    meter = ActivityMeter(0, Activity.TRAIN, iter(range(10**9)).__next__)
    seen: list[MeterState] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.append(meter.state)

    thread = threading.Thread(target=look)
    thread.start()
    for i in range(5000):
        meter.enter(i % len(Activity))
        meter.settle(i, (i + 1) % len(Activity), Counters(i))
    done.set()
    thread.join()
    for state in seen[:: max(1, len(seen) // 5000)]:
        assert_true(state)


def test_tokens_that_were_padding_move_to_padding() -> None:
    """What the device tells later is counted in its place, and nothing is counted twice."""
    assert Counters(1, 1, 10, 0, 1).moved_to_padding(4) == Counters(1, 1, 6, 4, 1)
    assert Counters(1, 1, 10, None, 1).moved_to_padding(4) == Counters(1, 1, 6, 4, 1)
    assert Counters(1, 1, None, None, 1).moved_to_padding(0) == Counters(1, 1, None, None, 1)


def test_activities_are_the_designs_closed_set() -> None:
    """The words and their numbers are written into pages and journals: they never change."""
    words = (
        "provision startup restore compile data_wait train validation checkpoint demotion logging metering idle "
        "hung teardown gap"
    )
    assert words.split() == list(ACTIVITY_LABELS)
    assert [int(a) for a in Activity] == list(range(15))
