"""What a forecast is made from: the samples of a run, boiled down to a bounded number of figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from costguard.plan.series import Sample
from costguard.records import Activity

MAX_BLOCKS = 128
"""Blocks kept of a run of any length; where there are more, neighbours are put together."""
MAX_EVENTS = 64
"""Durations kept of each kind of event, the latest."""

ONCE = frozenset({Activity.PROVISION, Activity.STARTUP, Activity.RESTORE, Activity.COMPILE, Activity.GAP})
"""What an attempt pays once, before it trains."""
COUNTED = frozenset({Activity.VALIDATION, Activity.CHECKPOINT, Activity.TEARDOWN})
"""What is not part of the pace, because it is counted in its own events."""
_APART = frozenset(activity.label for activity in ONCE | COUNTED)
_ONCE = frozenset(activity.label for activity in ONCE)


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of training.

    Args:
        middle: Units done at its middle.
        units: Units trained, above 0.
        ns: Wall time that recurs with units: training, waiting for data, logging and the like.
    """

    middle: float
    units: int
    ns: int

    @property
    def pace_ns(self) -> float:
        """Wall time for a unit."""
        return self.ns / self.units


def _add(a: Block, b: Block) -> Block:
    units = a.units + b.units
    return Block((a.middle * a.units + b.middle * b.units) / units, units, a.ns + b.ns)


@dataclass(slots=True)
class _Counter:
    """Durations of events that are counted when they end."""

    ended: int = 0
    pending_ns: int = 0
    durations_ns: list[int] = field(default_factory=list)

    def see(self, ended: int, ns: int) -> None:
        self.pending_ns += ns
        events = ended - self.ended
        if events > 0:
            self.durations_ns += [self.pending_ns // events] * min(events, MAX_EVENTS)
            del self.durations_ns[:-MAX_EVENTS]
            self.pending_ns = 0
        self.ended = max(self.ended, ended)


class History:
    """Boils down samples as they come; what it keeps does not grow with the run."""

    def __init__(self) -> None:
        self.latest: Sample | None = None
        self.blocks: list[Block] = []
        self.validation = _Counter()
        self.save = _Counter()
        self.starts_ns: list[int] = []
        """What the start of each attempt took, the gap before it included."""
        self.lost_units: list[int] = []
        """Units thrown away each time that a run went back."""
        self.trained_units = 0
        """Units trained, those thrown away included."""
        self._span = 0
        self._open: Block | None = None
        self._start_ns = 0

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return max(0, (self.latest.attempt if self.latest else 1) - 1)

    def see(self, sample: Sample) -> None:
        """Take the next sample in the order of time."""
        before = self.latest or Sample(elapsed_ns=0, done=0)
        self.latest = sample
        spent = {name: ns - before.activities_ns.get(name, 0) for name, ns in sample.activities_ns.items()}
        self.validation.see(sample.validations, spent.get(Activity.VALIDATION.label, 0))
        self.save.see(sample.saves, spent.get(Activity.CHECKPOINT.label, 0))
        if sample.done < before.done:
            self.lost_units.append(before.done - sample.done)
            del self.lost_units[:-MAX_EVENTS]
        self._start_ns += sum(ns for name, ns in spent.items() if name in _ONCE)
        if sample.done > before.done:
            self._trained(before, sample, spent)

    def _trained(self, before: Sample, sample: Sample, spent: Mapping[str, int]) -> None:
        if self._start_ns:
            self.starts_ns.append(self._start_ns)
            del self.starts_ns[:-MAX_EVENTS]
            self._start_ns = 0
        units = sample.done - before.done
        self.trained_units += units
        ns = sum(ns for name, ns in spent.items() if name not in _APART)
        block = Block((before.done + sample.done) / 2, units, ns)
        self._open = block if self._open is None else _add(self._open, block)
        if self._open.units >= self._span:
            self.blocks.append(self._open)
            self._open = None
        if len(self.blocks) >= MAX_BLOCKS:
            pairs = zip(self.blocks[::2], self.blocks[1::2], strict=True)
            self.blocks = [_add(a, b) for a, b in pairs]
            self._span = max(self._span, self.blocks[-1].units)
