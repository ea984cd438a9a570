"""What a run did, folded from all its segments and pages: time by activity and outcome, counters, gaps, events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from costguard.ledger.activity import Counters
from costguard.ledger.layout import Seat
from costguard.policies.gap import Tenure
from costguard.prices import PriceBook

Status = Literal["closed", "died", "running"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Cumulative figures of one rank at one instant of its attempt."""

    at_ns: int
    activities_ns: Mapping[str, int]
    counters: Counters

    @property
    def train_ns(self) -> int:
        """Train time so far."""
        return self.activities_ns.get("train", 0)


@dataclass(frozen=True, slots=True)
class Resume:
    """A checkpoint that was loaded to train on.

    Args:
        at: Where this rank stood then.
        attempt: Attempt that wrote the checkpoint, `None` if it carries no word of costguard's.
        save: Which save of that attempt.
        step: Optimizer step at which training goes on.
    """

    at: Snapshot
    attempt: int | None
    save: int | None
    step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAccount:
    """One rank of one attempt.

    Args:
        seat: Attempt and rank.
        start_ns: Begin of its time, on the clock of its host's boot.
        wall_ns: Wall clock at `start_ns`, nanoseconds since the epoch.
        final: Where it ended, the estimated exit of the interpreter included.
        estimated_ns: That estimated part.
        status: How it ended.
        reason: Why it ended, in the words of the exception, `None` if in order or unknown.
        tenure: The machine it held.
        idle_devices: Paid devices of its node that no rank uses, carried by the node's first rank.
        paid_devices: Paid devices of the whole run in this attempt.
        snapshots: Ascending, `final` last.
        marks: Where it stood at each save, by the save's number.
        resumes: Checkpoints loaded, ascending.
        header: Further facts of the first line.
        facts: Latest value of each named fact (parameters, peak).
        events: Lines that carry something for the receipt (saved, checkpoint, verdict, forecast), in order.
    """

    seat: Seat
    start_ns: int
    wall_ns: int
    final: Snapshot
    estimated_ns: int
    status: Status
    reason: str | None
    tenure: Tenure
    idle_devices: int
    paid_devices: int
    snapshots: Sequence[Snapshot]
    marks: Mapping[int, Snapshot]
    resumes: Sequence[Resume]
    header: Mapping[str, Any]
    facts: Mapping[str, Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds from begin to end."""
        return self.final.at_ns - self.start_ns

    @property
    def device_ns(self) -> int:
        """Device time: its own and that of the unused devices it carries."""
        return self.elapsed_ns * (1 + self.idle_devices)

    @property
    def end_wall_ns(self) -> int:
        """Wall clock at the end."""
        return self.wall_ns + self.elapsed_ns


@dataclass(frozen=True, slots=True)
class Gap:
    """The time between the end of one rank's attempt and the begin of the next attempt."""

    earlier: Seat
    ns: int
    devices: int
    billed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What of one rank's training is part of the run's present state; `flops` are model FLOPs, `None` if unknown."""

    train_ns: int = 0
    batches: int = 0
    tokens: int = 0
    padding: int = 0
    samples: int = 0
    steps: int = 0
    flops: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAccount:
    """A whole run.

    Args:
        run_id: The run's name.
        ranks: Every rank of every attempt, ascending by seat.
        gaps: Time between attempts, billed or not.
        kept: For each seat the part of its training that was not thrown away.
        books: Prices by attempt.
        problems: What could not be read, one sentence each.
    """

    run_id: str
    ranks: Sequence[RankAccount]
    gaps: Sequence[Gap] = ()
    kept: Mapping[Seat, Kept] = field(default_factory=dict)
    books: Mapping[int, PriceBook] = field(default_factory=dict)
    problems: Sequence[str] = ()

    @property
    def attempts(self) -> list[int]:
        """Numbers of the attempts, ascending."""
        return sorted({r.seat.attempt for r in self.ranks})

    @property
    def trainings(self) -> list[int]:
        """Numbers of the attempts to train, ascending: without those that waited for a machine to be given back."""
        return sorted({r.seat.attempt for r in self.ranks if "releases" not in r.header})

    def of_attempt(self, attempt: int) -> list[RankAccount]:
        """All ranks of one attempt."""
        return [r for r in self.ranks if r.seat.attempt == attempt]

    @property
    def elapsed_device_ns(self) -> int:
        """All device time that is billed: ranks, unused devices and held gaps."""
        return sum(r.device_ns for r in self.ranks) + sum(g.ns * g.devices for g in self.gaps if g.billed)

    def activities_ns(self) -> dict[str, int]:
        """Device time by activity; adds up to `elapsed_device_ns`."""
        sums: dict[str, int] = {}
        for rank in self.ranks:
            for activity, ns in rank.final.activities_ns.items():
                sums[activity] = sums.get(activity, 0) + ns
            if rank.idle_devices:
                sums["idle"] = sums.get("idle", 0) + rank.idle_devices * rank.elapsed_ns
        held = sum(g.ns * g.devices for g in self.gaps if g.billed)
        if held:
            sums["gap"] = sums.get("gap", 0) + held
        return sums

    def outcomes_ns(self) -> dict[str, int]:
        """Train time by outcome; adds up to `activities_ns()["train"]`.

        An outcome that nothing has looked for (skipped, stalled) is left out: unknown is not zero.
        """
        train = sum(r.final.train_ns for r in self.ranks)
        kept = sum(k.train_ns for k in self.kept.values())
        return {"kept": kept, "rework": train - kept}

    def best_peak(self) -> Mapping[str, Any] | None:
        """The highest peak that was found; of measured ones the quickest, since other work only ever lowers one."""
        peaks = [r.facts["peak"] for r in self.ranks if r.facts.get("peak", {}).get("flops_per_s")]
        return max(peaks, key=lambda p: float(p["flops_per_s"])) if peaks else None

    def fact(self, name: str) -> Mapping[str, Any] | None:
        """The latest value of a fact that some rank recorded."""
        found = [r.facts[name] for r in self.ranks if name in r.facts]
        return found[-1] if found else None
