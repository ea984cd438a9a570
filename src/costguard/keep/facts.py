"""The facts of checkpoints that rules look at."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Tier = Literal["hot", "cold", "both"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What a rule may know of one checkpoint.

    Args:
        id: Its identity; names and step numbers repeat over attempts.
        step: Optimizer step.
        order: The how manyth checkpoint of the run it is; tells which is newest whatever the clock did.
        saved_ns: When it was saved, ns since the epoch.
        epochs: Epochs done, `None` if unknown.
        tokens: Tokens trained, `None` if unknown.
        metrics: Values at the save, by name.
        size_bytes: Bytes, `None` if unknown.
        tier: Where its copies are.
        cold_since_ns: When its cold copy was written, ns since the epoch, `None` if it has none.
        complete: Whether its save is known to have ended.
        ours: Whether it is in our own inventory.
        pinned: Whether a user pinned it.
        resumed_from: Whether this run was resumed from it.
        released: Whether the user's own `ModelCheckpoint` has let it go.
        stage_end: Name of the stage that it ends, `None` if it ends none.
        stripped: Whether its optimizer state was left away.
        strippable: Whether that may be done; `False` once it was found to have none that could be left away.
        run: The training that it belongs to, restarts included; each run has its newest, its last and its best.
        tags: The run's labels at the save, its stage among them.
    """

    id: str
    step: int
    order: int = 0
    saved_ns: int = 0
    epochs: int | None = None
    tokens: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    size_bytes: int | None = None
    tier: Tier = "hot"
    cold_since_ns: int | None = None
    complete: bool = True
    ours: bool = True
    pinned: bool = False
    resumed_from: bool = False
    released: bool = False
    stage_end: str | None = None
    stripped: bool = False
    strippable: bool = True
    run: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def age_key(self) -> tuple[int, int, int, str]:
        """Sorts from the oldest to the newest."""
        return self.order, self.saved_ns, self.step, self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """All that a rule may know of a run.

    Args:
        checkpoints: Every known checkpoint, in any order.
        anomaly_steps: Steps at which a detector saw the loss or the gradients go wrong, by run.
        failed: The runs that ended in failure.
    """

    checkpoints: Sequence[Checkpoint] = ()
    anomaly_steps: Mapping[str, Sequence[int]] = field(default_factory=dict)
    failed: Collection[str] = ()

    def of_each_run(self) -> dict[str, History]:
        """One history a run: an experiment that shares a folder with another is not measured by it."""
        names = dict.fromkeys(c.run for c in self.checkpoints)
        return {name: replace(self, checkpoints=[c for c in self.checkpoints if c.run == name]) for name in names}

    def candidates(self) -> list[Checkpoint]:
        """The complete ones that are ours, from the oldest to the newest."""
        return sorted((c for c in self.checkpoints if c.complete and c.ours), key=lambda c: c.age_key)
