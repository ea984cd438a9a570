"""The state machine of one rank: exactly one current activity, so that its buckets sum to elapsed time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from costguard.flops.step import NO_WORK, Work
from costguard.records import ACTIVITY_LABELS, Activity

_METERING = int(Activity.METERING)
_new = tuple.__new__
"""Makes a named tuple without the Python code of its class; the step path pays for each call."""


class Warmup(NamedTuple):
    """What was done outside of `train`, in batches that compiled, were tried out or counted.

    Args:
        batches: How many such batches.
        tokens: Their tokens.
        work: Their FLOPs.
    """

    batches: int = 0
    tokens: int = 0
    work: Work = NO_WORK


NO_WARMUP = Warmup()


class Counters(NamedTuple):
    """What one rank has done so far in this attempt.

    Args:
        step: Optimizer steps of the Trainer, counted from the run's first.
        batches: Micro-batches trained in this attempt.
        tokens: Tokens trained in this attempt without padding, `None` if no batch could be counted.
        padding: Padding tokens beside them, `None` if unknown.
        samples: Samples trained in this attempt, `None` if unknown.
        work: FLOPs of this attempt, `None` if unknown for any of its batches.
        warmup: The part of all this that was done in the activity `compile`.
    """

    step: int = 0
    batches: int = 0
    tokens: int | None = None
    padding: int | None = None
    samples: int | None = None
    work: Work | None = None
    warmup: Warmup = NO_WARMUP

    def to_json(self) -> list[Any]:
        """Plain data for a line of the journal."""
        batches, tokens, work = self.warmup
        return [*self[:5], None if self.work is None else list(self.work), [batches, tokens, list(work)]]

    @staticmethod
    def from_json(done: Sequence[Any]) -> Counters:
        """Read back what `to_json` wrote; what a line does not have is unknown."""
        step, batches, tokens, padding, samples, work, warmup = [*done, None, None][:7]
        known = None if work is None else Work(*work)
        warm = NO_WARMUP if warmup is None else Warmup(warmup[0], warmup[1], Work(*warmup[2]))
        return Counters(step, batches, tokens, padding, samples, known, warm)

    def moved_to_padding(self, tokens: int) -> Counters:
        """Count as padding what was counted as tokens before the device had told which it was."""
        if not tokens:
            return self
        return self._replace(tokens=(self.tokens or 0) - tokens, padding=(self.padding or 0) + tokens)


class MeterState(NamedTuple):
    """One consistent reading; `sum(totals) == since_ns - start_ns` always holds.

    Args:
        start_ns: Where this rank's time begins.
        since_ns: When the current activity began.
        activity: The current activity, a value of `Activity`.
        totals: Nanoseconds of each activity up to `since_ns`, in the order of `Activity`.
        counters: What has been done by then.
    """

    start_ns: int
    since_ns: int
    activity: int
    totals: tuple[int, ...]
    counters: Counters

    def activities_ns(self, until_ns: int) -> dict[str, int]:
        """Nanoseconds by activity, the current one counted on to `until_ns`; activities without time left out."""
        totals = list(self.totals)
        totals[self.activity] += max(0, until_ns - self.since_ns)
        return {ACTIVITY_LABELS[i]: ns for i, ns in enumerate(totals) if ns}


class StateSink(Protocol):
    """Where states are kept for whoever reads them after a crash."""

    def write(self, state: MeterState) -> None:
        """Keep `state`; must not raise."""
        ...


class ActivityMeter:
    """Meters the activity of every nanosecond of one rank.

    A new state is built aside and put in place by one assignment, so that neither a signal nor another thread
    ever sees half of a transition. What has been done is kept in the sink at once; a mere change of activity is
    left to whoever looks at `state` a few times a second, which makes it cheap.

    Args:
        start_ns: Where time begins, usually the creation of the process.
        activity: What was going on from then on.
        now_ns: The clock.
        sink: Where states are kept.
    """

    def __init__(
        self, start_ns: int, activity: Activity, now_ns: Callable[[], int], sink: StateSink | None = None
    ) -> None:
        self._now_ns = now_ns
        self.state = MeterState(start_ns, start_ns, int(activity), (0,) * len(Activity), Counters())
        self._keep: Callable[[MeterState], None] | None = None
        if sink is not None:
            self.keep_in(sink)

    @property
    def now_ns(self) -> Callable[[], int]:
        """The meter's clock."""
        return self._now_ns

    def keep_in(self, sink: StateSink) -> None:
        """From now on keep states in `sink` too."""
        self._keep = sink.write
        self._keep(self.state)

    def enter(self, activity: int) -> int:
        """Make `activity` the current one from this instant on.

        Returns:
            The activity that was left.
        """
        start, since, left, totals, counters = self.state
        now = self._now_ns()
        now = max(now, since)
        sums = list(totals)
        sums[left] += now - since
        self.state = _new(MeterState, (start, now, activity, tuple(sums), counters))
        return left

    def relabel(self, activity: int) -> None:
        """Charge the current activity, as far as it is not settled yet, to another one."""
        self.state = self.state._replace(activity=activity)

    def move(self, activity: int, to: int, ns: int) -> None:
        """Charge time of one activity to another one, at most what it has, once it is known what it really was."""
        start, since, current, totals, counters = self.state
        ns = min(ns, totals[activity])
        if ns > 0:
            sums = list(totals)
            sums[activity] -= ns
            sums[to] += ns
            self.state = _new(MeterState, (start, since, current, tuple(sums), counters))

    def settle(self, ended_ns: int, activity: int, counters: Counters) -> None:
        """Close a piece of work that ended at `ended_ns`, count it, and charge the time since to `metering`.

        Args:
            ended_ns: When the current activity really ended, a little while ago.
            activity: What goes on from now.
            counters: The new counters.
        """
        start, since, left, totals, _ = self.state
        now = self._now_ns()
        ended_ns = max(ended_ns, since)
        now = max(now, ended_ns)
        sums = list(totals)
        sums[left] += ended_ns - since
        sums[_METERING] += now - ended_ns
        self.state = state = _new(MeterState, (start, now, activity, tuple(sums), counters))
        if self._keep is not None:
            self._keep(state)

    @contextmanager
    def span(self, activity: int) -> Iterator[None]:
        """Charge a block to `activity`, and go back to what was before, also on exceptions."""
        before = self.enter(activity)
        try:
            yield
        finally:
            self.enter(before)
