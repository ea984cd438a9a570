"""What a run's checkpoints will take up and cost when it ends, by playing its saves against the rules beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from costguard.keep import Best, Checkpoint, History
from costguard.policies.retention.decision import Move, Tiers
from costguard.policies.retention.planning import plan
from costguard.policies.retention.wanted import Retention
from costguard.units import NS_PER_S

MOST_SAVES: Final = 20_000
"""Saves that are played one by one; a run of more is cut off there: chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavePlan:
    """How often something saves.

    Args:
        every_steps: Optimizer steps between two saves, >= 1.
        keeps: How many of its own it keeps, all if `None`.
    """

    every_steps: int
    keeps: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """Where a run's checkpoints will be when it ends.

    Args:
        saves: Checkpoints that are saved.
        hot: How many of them are on the hot disk.
        cold: How many are in the cold store.
        hot_bytes: Bytes on the hot disk, `None` if the size of one is unknown.
        cold_bytes: Bytes in the cold store, `None` if the size of one is unknown.
        usd_per_month: US dollars that both cost for 30 days from then on, `None` if a price or the size is unknown.
    """

    saves: int
    hot: int
    cold: int
    hot_bytes: int | None
    cold_bytes: int | None
    usd_per_month: Fraction | None


def project(
    retention: Retention,
    tiers: Tiers,
    plans: Sequence[SavePlan],
    steps: int,
    *,
    bytes_per_save: int | None = None,
    seconds_per_step: float | None = None,
) -> Projection:
    """Play all saves of a run against the rules, and count what is where at its end.

    Where a rule asks for a metric, all saves are taken to have one that gets better, so that it keeps as many as it
    may. Without a pace all saves are taken to be of one hour, for which `thin` and `expire_after` keep the least and
    the most.

    Args:
        retention: What the user wants.
        tiers: The two places and their prices.
        plans: What saves how often, at least one.
        steps: Optimizer steps of the whole run, >= 0.
        bytes_per_save: Bytes of one checkpoint, `None` if unknown.
        seconds_per_step: Pace, `None` if unknown.
    """
    checkpoints = [replace(c, size_bytes=bytes_per_save) for c in _saves(retention, plans, steps, seconds_per_step)]
    now_ns = max((c.saved_ns for c in checkpoints), default=0)
    decided = plan(History(checkpoints=checkpoints), retention, now_ns, tiers)
    hot = sum(d.move is Move.KEEP for d in decided)
    # How small a stripped one gets is not known before it is done: it counts in full.
    cold = sum(d.move in (Move.DEMOTE, Move.STRIP) for d in decided)
    hot_bytes = None if bytes_per_save is None else hot * bytes_per_save
    cold_bytes = None if bytes_per_save is None else cold * bytes_per_save
    return Projection(
        saves=len(checkpoints),
        hot=hot,
        cold=cold,
        hot_bytes=hot_bytes,
        cold_bytes=cold_bytes,
        usd_per_month=None if hot_bytes is None or cold_bytes is None else _month(tiers, hot_bytes, cold_bytes),
    )


def _month(tiers: Tiers, hot_bytes: int, cold_bytes: int) -> Fraction | None:
    total = Fraction(0)
    for kind, size in ((tiers.hot, hot_bytes), (tiers.cold, cold_bytes)):
        if size and kind is None:
            return None
        total += kind.month_usd(size) if kind is not None else 0
    return total


def _saves(
    retention: Retention, plans: Sequence[SavePlan], steps: int, seconds_per_step: float | None
) -> list[Checkpoint]:
    metrics = (
        {part.metric: part.mode for part in retention.keep.parts() if isinstance(part, Best)} if retention.keep else {}
    )
    pace_ns = round((seconds_per_step or 0) * NS_PER_S)
    made: list[tuple[int, bool]] = []
    for each in plans:
        own = range(each.every_steps, steps + 1, each.every_steps)
        kept = len(own) if each.keeps is None else each.keeps
        made += [(step, place < len(own) - kept) for place, step in enumerate(own)]
    return [
        Checkpoint(
            id=str(order),
            step=step,
            order=order,
            saved_ns=step * pace_ns,
            epochs=None,
            metrics={name: float(-order if mode == "min" else order) for name, mode in metrics.items()},
            released=released,
        )
        for order, (step, released) in enumerate(sorted(made)[:MOST_SAVES], 1)
    ]
