"""Tells what a run's checkpoints will take up and cost, and when the disk will be full, while something can be done."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from fractions import Fraction

from lightning.pytorch import Trainer

from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room
from costguard.errors import warn
from costguard.lightning.budget_stopping import BudgetStopping
from costguard.lightning.checkpoint_size import planned_steps, predict_bytes, save_plans, weights_only
from costguard.lightning.joining import callbacks_of
from costguard.lightning.tiering_settings import Settings
from costguard.policies.disk import DiskFull, SaveSeen, foresee_full
from costguard.policies.retention import Projection, Tiers, project
from costguard.units import NS_PER_S, format_bytes, format_duration_s, format_money

WORTH_A_WARNING = Fraction(5, 100)
"""Share of a budget that the checkpoints' storage may cost a month without a warning."""


class CheckpointOutlook:
    """What is to come of one training's checkpoints; on rank 0.

    Args:
        room: The checkpoints.
        settings: What the user wants.
    """

    def __init__(self, room: Room, settings: Settings) -> None:
        self._room = room
        self._settings = settings
        self._steps: int | None = None
        self._seen: list[SaveSeen] = []
        self._told = False

    def begin(self, trainer: Trainer, run: str) -> None:
        """Say, before the first step, what will be where when the run ends, and warn where that costs much.

        Args:
            trainer: Its batches and optimizers are known.
            run: The run; the size of what it has saved before comes before a prediction.
        """
        self._steps = planned_steps(trainer)
        plans = save_plans(trainer)
        if self._steps is None or not plans:
            return
        earlier = [r for r in self._room.inventory.records() if r.run == run]
        size = earlier[-1].size_bytes if earlier else _predicted(trainer)
        pace = _pace([(r.step, r.saved_ns) for r in earlier])
        wanted, tiers = self._settings.retention, self._settings.tiers
        projection = project(wanted, tiers, plans, self._steps, bytes_per_save=size, seconds_per_step=pace)
        print(f"costguard: checkpoints: {_sentence(projection, size, tiers)}", flush=True)
        self._warn_of_money(trainer, projection)

    def _warn_of_money(self, trainer: Trainer, projection: Projection) -> None:
        limits = [each.limit_usd for each in callbacks_of(trainer) if isinstance(each, BudgetStopping)]
        limit = min((limit for limit in limits if limit is not None), default=None)
        month = projection.usd_per_month
        if limit is not None and month is not None and month > limit * WORTH_A_WARNING:
            warn(
                f"checkpoints: their storage will cost {format_money(month)} a month, {float(month / limit):.0%} of "
                f"the budget of {format_money(limit)}; keep fewer, save less often, or let what no rule keeps expire "
                "(expire_after='30d')."
            )

    def saved(self, record: Record) -> None:
        """Look at the disk after a save, and warn once where it will be full before the run ends."""
        folder = os.path.dirname(record.path)
        free, now_ns = self._room.files.free_bytes(folder), time.monotonic_ns()
        self._seen.append(SaveSeen(step=record.step, at_ns=now_ns, free_bytes=free, bytes=record.size_bytes))
        del self._seen[:-8]
        full = foresee_full(self._seen)
        if full is None or self._told or (self._steps is not None and full.step > self._steps):
            return
        self._told = True
        warn(f"checkpoints: {_full(folder, free, full)}")

    def end(self, deleted: Sequence[int]) -> None:
        """Without rules, say what they would have done with what was deleted.

        Args:
            deleted: Bytes of each checkpoint that was deleted.
        """
        if self._settings.retention.keep is not None or not deleted:
            return
        size, cold, url = sum(deleted), self._settings.tiers.cold, self._room.store.url if self._room.store else ""
        month = "" if cold is None else f" for {format_money(cold.month_usd(size))} a month"
        print(
            f"costguard: checkpoints: no rule was given, so ModelCheckpoint deleted {len(deleted)} "
            f"({format_bytes(size)}) and nothing was moved; keep=by_model_checkpoint() moves them to {url}{month} "
            "instead.",
            flush=True,
        )


def _predicted(trainer: Trainer) -> int | None:
    return predict_bytes(trainer.lightning_module, trainer.optimizers, weights_only=weights_only(trainer))


def _pace(saves: Sequence[tuple[int, int]]) -> float | None:
    """Seconds a step of what was saved before, `None` if it cannot be told."""
    paces = [
        (later_ns - ns) / NS_PER_S / (later - step)
        for (step, ns), (later, later_ns) in zip(saves, saves[1:], strict=False)
        if later > step and later_ns > ns
    ]
    return sorted(paces)[len(paces) // 2] if paces else None


def _sentence(projection: Projection, size: int | None, tiers: Tiers) -> str:
    each = f" of {format_bytes(size)}" if size is not None else ", of a size that the first one will show"
    hot = f"{projection.hot} hot" + ("" if projection.hot_bytes is None else f" ({format_bytes(projection.hot_bytes)})")
    cold = f"{projection.cold} cold"
    cold += "" if projection.cold_bytes is None else f" ({format_bytes(projection.cold_bytes)})"
    return f"{projection.saves} saves{each}; at the end {hot} and {cold}, {_money(projection, tiers)}."


def _money(projection: Projection, tiers: Tiers) -> str:
    if projection.usd_per_month is not None:
        return f"{format_money(projection.usd_per_month)} a month"
    needed = (("hot_class", projection.hot, tiers.hot), ("storage_class", projection.cold, tiers.cold))
    missing = [option for option, count, kind in needed if count and kind is None]
    return "what that costs is unknown" + (f" without {' and '.join(missing)}" if missing else "")


def _full(folder: str, free: int, full: DiskFull) -> str:
    soon = "" if full.in_s is None else f", in about {format_duration_s(full.in_s)}"
    return (
        f"the disk of {folder} has {format_bytes(free)} free and will be full at step {full.step:,}{soon}; keep fewer "
        "hot, or set hot_quota or min_free."
    )
