"""The device's clock on a simulated device: a queue that works behind the host's back, and events as CUDA has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costguard.errors import ConfigError
from costguard.lightning.device_clock import DeviceClock, DeviceTimes, clock_of

MS = 1_000_000


@dataclass
class Device:
    """One stream: what the host queues is done in order, each piece when the one before is done."""

    now_ns: int = 0
    free_ns: int = 0
    work: list[tuple[int, int]] = field(default_factory=list)
    events: list[SimulatedEvent] = field(default_factory=list)
    records: int = 0

    def host(self, ns: int) -> None:
        """Time passes on the host."""
        self.now_ns += ns

    def queue(self, ns: int) -> None:
        """The host queues work that takes so long."""
        begin = max(self.now_ns, self.free_ns)
        self.free_ns = begin + ns
        self.work.append((begin, self.free_ns))

    def make_event(self) -> SimulatedEvent:
        """Make an event of this device."""
        self.events.append(SimulatedEvent(self))
        return self.events[-1]

    def busy_ns(self, begin: int, end: int) -> int:
        """How long it works between two instants."""
        return sum(max(0, min(end, till) - max(begin, since)) for since, till in self.work)


@dataclass
class SimulatedEvent:
    """An event with `torch.cuda.Event`'s protocol, which refuses what would be an error or a wait there."""

    device: Device
    at_ns: int | None = None
    breaks: str = ""

    def record(self) -> None:
        """Stamped when the queue comes to it."""
        self._may("record")
        self.device.records += 1
        self.at_ns = max(self.device.now_ns, self.device.free_ns)

    def query(self) -> bool:
        """Whether that has been."""
        self._may("query")
        return self.at_ns is not None and self.at_ns <= self.device.now_ns

    def elapsed_time(self, end_event: SimulatedEvent, /) -> float:
        """Both must have been passed."""
        self._may("elapsed_time")
        assert self.query()
        assert end_event.query()
        assert self.at_ns is not None
        assert end_event.at_ns is not None
        return (end_event.at_ns - self.at_ns) / MS

    def synchronize(self) -> None:
        """Never asked for."""
        raise AssertionError("the clock waited for the device")

    def _may(self, verb: str) -> None:
        if verb == self.breaks:
            raise RuntimeError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`")


def step(device: Device, clock: DeviceClock, wait_ns: int, launch_ns: int, work_ns: int) -> None:
    """One batch: the host waits for it, then queues its work."""
    device.host(wait_ns)
    clock.batch_start(wait_ns)
    device.queue(work_ns)
    device.host(launch_ns)
    clock.batch_end()


def train(device: Device, clock: DeviceClock, steps: int, **times: int) -> DeviceTimes:
    """Some steps, then all that they tell."""
    for _ in range(steps):
        step(device, clock, **times)
    device.host(10**12)
    return clock.drain()


def test_a_wait_behind_queued_work_is_hidden() -> None:
    """The host waits 3 ms for each batch, the device works 10 ms on each: after the first batch nothing is lost."""
    device = Device()
    times = train(device, DeviceClock(device.make_event), 5, wait_ns=3 * MS, launch_ns=MS, work_ns=10 * MS)
    assert times == DeviceTimes(hidden_ns=4 * 3 * MS, wait_ns=4 * 3 * MS, busy_ns=50 * MS, steps=5)


def test_a_wait_of_an_idle_device_is_not_hidden() -> None:
    """The device is done before the host begins to wait (a loss was read): each nanosecond is lost."""
    device = Device()
    times = train(device, DeviceClock(device.make_event), 5, wait_ns=30 * MS, launch_ns=10 * MS, work_ns=10 * MS)
    assert times == DeviceTimes(hidden_ns=0, wait_ns=4 * 30 * MS, busy_ns=50 * MS, steps=5)


def test_a_wait_may_be_hidden_in_part() -> None:
    """10 ms of work are queued in 2 ms; of a wait of 30 ms the device works through the first 8."""
    device = Device()
    times = train(device, DeviceClock(device.make_event), 3, wait_ns=30 * MS, launch_ns=2 * MS, work_ns=10 * MS)
    assert times.hidden_ns == 2 * 8 * MS


def test_what_the_device_has_not_passed_is_left_for_later() -> None:
    """Nothing is asked of an unfinished event, and nothing is lost by it."""
    device = Device()
    clock = DeviceClock(device.make_event)
    step(device, clock, 0, MS, 10 * MS)
    step(device, clock, 0, MS, 10 * MS)
    assert clock.drain() == DeviceTimes()
    device.host(9 * MS)
    assert clock.drain().steps == 1
    device.host(10 * MS)
    assert clock.drain() == DeviceTimes(busy_ns=10 * MS, steps=1)
    assert clock.drain() == DeviceTimes()


def test_a_full_ring_leaves_steps_out_and_never_waits() -> None:
    """Of 100 queued steps as many as fit are marked; a gap is judged only between neighbours."""
    device = Device()
    clock = DeviceClock(device.make_event, slots=8)
    times = train(device, clock, 100, wait_ns=MS, launch_ns=MS, work_ns=10 * MS)
    assert times == DeviceTimes(hidden_ns=6 * MS, wait_ns=6 * MS, busy_ns=70 * MS, steps=7)
    again = train(device, clock, 3, wait_ns=MS, launch_ns=MS, work_ns=10 * MS)
    assert (again.steps, again.wait_ns) == (3, 2 * MS)


def test_events_are_made_once_and_used_again() -> None:
    """Two a slot, and none before it is needed; two records a step."""
    device = Device()
    clock = DeviceClock(device.make_event, slots=4)
    assert device.events == []
    for _ in range(50):
        step(device, clock, MS, MS, MS)
        clock.drain()
    assert len(device.events) == 8
    assert device.records == 100


def test_the_gap_over_a_validation_is_not_judged() -> None:
    """What the device did then is no wait, and the step itself still counts."""
    device = Device()
    clock = DeviceClock(device.make_event)
    step(device, clock, MS, MS, MS)
    clock.interrupted()
    device.queue(500 * MS)
    times = train(device, clock, 1, wait_ns=MS, launch_ns=MS, work_ns=MS)
    assert times == DeviceTimes(busy_ns=2 * MS, steps=2)


def test_a_step_that_was_broken_off_is_not_counted() -> None:
    """A start without its end is written over; an end without a start is nothing."""
    device = Device()
    clock = DeviceClock(device.make_event)
    clock.batch_end()
    clock.batch_start(MS)
    assert train(device, clock, 2, wait_ns=MS, launch_ns=MS, work_ns=MS).steps == 2


@pytest.mark.parametrize("verb", ["record", "query", "elapsed_time"])
def test_a_failing_event_turns_the_clock_off_with_one_reason(verb: str) -> None:
    """It says why in a sentence of one line, raises nothing, and touches no event again."""
    device = Device()
    clock = DeviceClock(device.make_event)
    train(device, clock, 2, wait_ns=MS, launch_ns=MS, work_ns=MS)
    for event in device.events:
        event.breaks = verb
    make = device.make_event
    clock._make_event = lambda: _broken(make, verb)
    train(device, clock, 2, wait_ns=MS, launch_ns=MS, work_ns=MS)
    assert not clock.on
    assert clock.problem is not None
    assert "device-side assert" in clock.problem
    assert "\n" not in clock.problem
    records, reason = device.records, clock.problem
    assert train(device, clock, 3, wait_ns=MS, launch_ns=MS, work_ns=MS) == DeviceTimes()
    assert (device.records, clock.problem) == (records, reason)


def _broken(make: Callable[[], SimulatedEvent], verb: str) -> SimulatedEvent:
    event = make()
    event.breaks = verb
    return event


def test_a_device_without_events_turns_the_clock_off() -> None:
    """As a build of torch without CUDA does on the first one."""

    def no_event() -> Any:
        raise RuntimeError("Tried to instantiate dummy base class Event")

    clock = DeviceClock(no_event)
    clock.batch_start(0)
    clock.batch_end()
    assert clock.drain() == DeviceTimes()
    assert "dummy base class" in (clock.problem or "")


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), None, "1"])
def test_a_time_that_is_none_turns_the_clock_off(nonsense: Any) -> None:
    """No figure is made of it."""
    device = Device()
    clock = DeviceClock(device.make_event)
    step(device, clock, MS, MS, MS)
    device.events[0].elapsed_time = lambda *_: nonsense  # type: ignore[method-assign]
    device.host(10 * MS)
    assert clock.drain() == DeviceTimes()
    assert not clock.on


def test_only_a_device_with_a_queue_has_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the host's clock is the device's; on a GPU timed events are made, and none before the first batch."""
    assert clock_of(torch.device("cpu")) is None
    asked: list[dict[str, bool]] = []
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: asked.append(options) or device.make_event())
    clock = clock_of(torch.device("cuda:0"))
    assert clock is not None
    assert asked == []
    step(device, clock, MS, MS, MS)
    assert asked == [{"enable_timing": True}] * 2


def test_a_ring_of_one_slot_is_refused() -> None:
    """A gap lies between two steps."""
    with pytest.raises(ConfigError, match="at least 2"):
        DeviceClock(Device().make_event, slots=1)


NS = st.integers(0, 50 * MS)
STEPS = st.lists(st.tuples(NS, NS, NS, st.booleans()), max_size=40)


@given(STEPS, st.integers(2, 12))
def test_hidden_is_what_the_device_worked_while_the_host_waited(
    steps: list[tuple[int, int, int, bool]], slots: int
) -> None:
    """However host and device race, whenever the ring is read: never more than the wait, and busy time adds up."""
    device = Device()
    clock = DeviceClock(device.make_event, slots=slots)
    times, expected, waits = DeviceTimes(), 0, 0
    for number, (wait_ns, launch_ns, work_ns, read) in enumerate(steps):
        began = device.now_ns
        step(device, clock, wait_ns, launch_ns, work_ns)
        if number and len(steps) < slots:
            expected += device.busy_ns(began, began + wait_ns)
            waits += wait_ns
        if read:
            times += clock.drain()
    device.host(10**12)
    times += clock.drain()
    assert clock.problem is None
    assert 0 <= times.hidden_ns <= times.wait_ns <= sum(wait for wait, *_ in steps)
    assert times.steps <= len(steps)
    if len(steps) < slots:
        # A tolerance since CUDA's milliseconds are floats.
        assert times.hidden_ns == pytest.approx(expected, abs=2 * len(steps))
        assert (times.wait_ns, times.steps) == (waits, len(steps))
        assert times.busy_ns == pytest.approx(sum(_spans(device)), abs=2 * len(steps))


def _spans(device: Device) -> list[int]:
    """From where a step's start comes up in the queue to where its end does."""
    stamps = [event.at_ns for event in device.events]
    assert all(stamp is not None for stamp in stamps)
    return [(end or 0) - (start or 0) for start, end in list(pairwise(stamps))[::2]]


@given(STEPS)
def test_the_order_in_the_ring_is_that_of_the_steps(steps: list[tuple[int, int, int, bool]]) -> None:
    """Steps read one by one add up to those read at once."""
    totals = []
    for often in (False, True):
        device = Device()
        clock = DeviceClock(device.make_event, slots=50)
        times = DeviceTimes()
        for wait_ns, launch_ns, work_ns, _ in steps:
            step(device, clock, wait_ns, launch_ns, work_ns)
            times += clock.drain() if often else DeviceTimes()
        device.host(10**12)
        totals.append(times + clock.drain())
    assert totals[0] == totals[1]
