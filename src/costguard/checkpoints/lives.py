"""What of a checkpoint its price depends on: where it was, for how long, and what was done with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

from costguard.checkpoints.digest import part_bytes_for
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.manifest import Level
from costguard.checkpoints.record import Record
from costguard.keep import Tier
from costguard.prices.storage import DAY_NS, DAYS_PER_MONTH, GB


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """One checkpoint; all of it cumulative, so that of two words on one checkpoint the later is enough.

    Args:
        id: Its identity.
        path: Where it is, or was, on the hot disk.
        step: Optimizer step.
        run: The training that it belongs to, restarts included.
        saved_ns: When it was saved, ns since the epoch.
        size_bytes: Its bytes.
        tier: Where it is, or was when it ended.
        blocked_ns: Nanoseconds that its save held up training, `None` if unknown.
        requests: Writing requests of its cold copy, 0 if it has none.
        cold_since_ns: When that was committed.
        restores: How many times it was brought back from there.
        checks: How many times it was read back to verify it, where the store shows no hash of it.
        hot_since_ns: When it was last brought back, `None` if it has been hot since its save.
        hot_before_ns: Nanoseconds on the hot disk that are over, `None` if nobody saw them end.
        due_ns: When it is to be deleted unless a rule keeps it, `None` if never.
        ended_ns: When it was deleted, `None` as long as it is there.
    """

    id: str
    path: str
    step: int
    run: str
    saved_ns: int
    size_bytes: int
    tier: Tier
    blocked_ns: int | None = None
    requests: int = 0
    cold_since_ns: int | None = None
    restores: int = 0
    checks: int = 0
    hot_since_ns: int | None = None
    hot_before_ns: int | None = None
    due_ns: int | None = None
    ended_ns: int | None = None

    def hot_ns(self, until_ns: int) -> int:
        """Nanoseconds on the hot disk until an instant; one that nobody saw go counts until its copy was committed."""
        over = self.hot_before_ns
        if over is None and (self.tier == "cold" or self.hot_since_ns is not None):
            over = max(0, (until_ns if self.cold_since_ns is None else self.cold_since_ns) - self.saved_ns)
        if self.tier == "cold":
            return over or 0
        since_ns = self.saved_ns if self.hot_since_ns is None else self.hot_since_ns
        return (over or 0) + max(0, until_ns - since_ns)

    def cold_ns(self, until_ns: int) -> int:
        """Nanoseconds in the cold store until an instant."""
        return 0 if self.cold_since_ns is None else max(0, until_ns - self.cold_since_ns)

    def gb_months(self, duration_ns: int) -> Fraction:
        """Its size times a duration, in 10^9 bytes times 30 days."""
        return Fraction(self.size_bytes * duration_ns, GB * DAYS_PER_MONTH * DAY_NS)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Life:
        """Read what `to_json` wrote; what a later version has added is left out."""
        known = {field.name for field in fields(Life)}
        return Life(**{name: value for name, value in data.items() if name in known})


def life_of(record: Record, part_bytes: int, due_ns: int | None = None) -> Life:
    """A checkpoint's life by its record.

    Args:
        record: The record.
        part_bytes: Bytes of one writing request.
        due_ns: When it is to be deleted, ns since the epoch.
    """
    cold = record.cold_since_ns is not None
    return Life(
        id=record.id,
        path=record.path,
        step=record.step,
        run=record.run,
        saved_ns=record.saved_ns,
        size_bytes=record.size_bytes,
        tier=record.tier,
        blocked_ns=record.blocked_ns,
        requests=requests_of(record, part_bytes) if cold else 0,
        cold_since_ns=record.cold_since_ns,
        restores=record.reads,
        checks=int(cold and record.level >= Level.CONTENT),
        hot_since_ns=record.hot_since_ns,
        hot_before_ns=record.hot_before_ns,
        due_ns=due_ns,
    )


def requests_of(record: Record, part_bytes: int) -> int:
    """Writing requests of one demotion: a file of several parts takes two more than it has parts; one manifest."""
    requests = 1
    for fact in record.fingerprint:
        if fact.kind == "file":
            parts = max(1, -(-fact.size // part_bytes_for(fact.size, part_bytes)))
            requests += parts if parts == 1 else parts + 2
    return requests


def lives_in(folder: str, part_bytes: int) -> dict[str, Life | None] | None:
    """The lives of all checkpoints of a list, read only.

    Args:
        folder: The list's folder.
        part_bytes: Bytes of one writing request.

    Returns:
        By id, `None` for one whose record cannot be read; `None` instead of all if the list cannot be read here.
    """
    try:
        names = os.listdir(folder)
        records = Inventory(folder, HotFiles()).records()
    except OSError:
        return None
    lives: dict[str, Life | None] = {name.removesuffix(".json"): None for name in names if name.endswith(".json")}
    return lives | {record.id: life_of(record, part_bytes) for record in records}
