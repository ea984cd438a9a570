"""Tells from events in the device's own queue which waits for data were hidden behind work, without ever waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from costguard.errors import config_error

SLOTS = 512
"""Steps that may be in flight or unread: at one look a second, steps of 2 ms and longer are all seen."""
_NS_PER_MS = 1_000_000


class Event(Protocol):
    """As much of `torch.cuda.Event(enable_timing=True)` as is needed."""

    def record(self) -> Any:
        """Put a mark behind the work that is queued on the current stream."""

    def query(self) -> bool:
        """Whether the device has passed the mark; never waits."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds on the device from this mark to another, both passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """What the device has told about some steps.

    A ratio holds for all steps: `hidden_ns / wait_ns` of these is that of the ones that were not looked at.

    Args:
        hidden_ns: Data wait of the host in which the device was still at work, so that nothing was lost.
        wait_ns: Data wait of the host that was judged; what is not hidden of it is waste.
        busy_ns: Device time from the first to the last work of each step, gaps within a step included.
        steps: How many steps `busy_ns` is of.
    """

    hidden_ns: int = 0
    wait_ns: int = 0
    busy_ns: int = 0
    steps: int = 0

    def __add__(self, other: DeviceTimes) -> DeviceTimes:
        """Of both together."""
        return DeviceTimes(
            hidden_ns=self.hidden_ns + other.hidden_ns,
            wait_ns=self.wait_ns + other.wait_ns,
            busy_ns=self.busy_ns + other.busy_ns,
            steps=self.steps + other.steps,
        )


class _Step:
    """One slot of the ring, its two events made once and used again."""

    __slots__ = ("end", "start", "wait_ns")

    def __init__(self, make_event: Callable[[], Event]) -> None:
        self.start = make_event()
        self.end = make_event()
        self.wait_ns: int | None = None


class DeviceClock:
    """Marks where batches start and end in the device's queue, and reads the marks once the device has passed them.

    On a GPU Lightning's hooks run on the host, ahead of the device. While the host waits for a batch, the device may
    still work through its queue; only the time from the end of the previous step's work to the start of this one's is
    lost. It costs two records a step; where no slot is free a step is left out; nothing here waits for the device.

    A copy of the batch to the device that is queued before the start counts as waiting. An event that fails turns the
    clock off: it then says why in `problem`, records nothing more and never raises.

    Args:
        make_event: Makes an event, such as `lambda: torch.cuda.Event(enable_timing=True)`.
        slots: Steps that may be in flight or unread, at least 2.

    Raises:
        ConfigError: If there are fewer than 2 slots.
    """

    def __init__(self, make_event: Callable[[], Event], *, slots: int = SLOTS) -> None:
        if slots < 2:
            raise config_error(f"DeviceClock(slots={slots}): expected at least 2, since a gap lies between two steps.")
        self._make_event = make_event
        self._slots = slots
        self._ring: list[_Step] = []
        self._written = 0
        self._read = 0
        self._open: _Step | None = None
        self._adjoins = False
        self.problem: str | None = None

    @property
    def on(self) -> bool:
        """Whether it still records."""
        return self.problem is None

    def batch_start(self, wait_ns: int) -> None:
        """A batch has come and its work is about to be queued.

        Args:
            wait_ns: How long the host has waited for it since `batch_end`, nanoseconds, at least 0.
        """
        adjoins, self._adjoins, self._open = self._adjoins, False, None
        # The slot before the oldest unread one still has the end that the oldest one's gap begins at.
        if self.problem is not None or self._written - self._read >= self._slots - 1:
            return
        try:
            step = self._slot()
            step.wait_ns = wait_ns if adjoins else None
            step.start.record()
            self._open = step
        except Exception as error:  # a device of any kind may raise anything
            self._turn_off(error)

    def batch_end(self) -> None:
        """All work of the batch is queued, and the host begins to wait for the next one."""
        step, self._open = self._open, None
        if step is None:
            return
        try:
            step.end.record()
        except Exception as error:
            self._turn_off(error)
            return
        self._written += 1
        self._adjoins = True

    def interrupted(self) -> None:
        """Something else than waiting follows the last batch (validation, a checkpoint): its gap is not judged."""
        self._adjoins = False

    def drain(self) -> DeviceTimes:
        """Read what the device has passed since the last call; meant for about once a second."""
        times = DeviceTimes()
        try:
            while self._read < self._written and self._ring[self._read % self._slots].end.query():
                times += self._times(self._read)
                self._read += 1
        except Exception as error:
            self._turn_off(error)
        return times

    def _slot(self) -> _Step:
        at = self._written % self._slots
        if at == len(self._ring):
            self._ring.append(_Step(self._make_event))
        return self._ring[at]

    def _times(self, number: int) -> DeviceTimes:
        step = self._ring[number % self._slots]
        busy_ns, wait_ns = _elapsed_ns(step.start, step.end), step.wait_ns
        if wait_ns is None:
            return DeviceTimes(busy_ns=busy_ns, steps=1)
        gap_ns = _elapsed_ns(self._ring[(number - 1) % self._slots].end, step.start)
        wait_ns = max(0, wait_ns)
        return DeviceTimes(hidden_ns=max(0, wait_ns - gap_ns), wait_ns=wait_ns, busy_ns=busy_ns, steps=1)

    def _turn_off(self, error: Exception) -> None:
        why = (str(error).splitlines() or [""])[0][:200]
        self.problem = (
            f"data wait hidden behind queued work is unknown: an event failed ({type(error).__name__}: {why})."
        )
        self._ring, self._written, self._read, self._open, self._adjoins = [], 0, 0, None, False


def clock_of(device: torch.device) -> DeviceClock | None:
    """Make the clock of the device that this process trains on; `None` unless it has a queue that events can mark."""
    if device.type != "cuda":
        return None
    make_event: Any = torch.cuda.Event
    return DeviceClock(lambda: make_event(enable_timing=True))


def _elapsed_ns(start: Event, end: Event) -> int:
    """Nanoseconds between two marks; events of two streams may be out of order, which is no time at all."""
    return max(0, round(start.elapsed_time(end) * _NS_PER_MS))
