"""What carrying out a plan means in money and in time, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from costguard.checkpoints.carrying import restart_files, why_it_stays
from costguard.checkpoints.money import requests_of
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room
from costguard.keep import History
from costguard.policies.retention import Decision, Move, Retention, Tiers, plan

_NOTHING = Fraction(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prospect:
    """Exact dollars and hours of one decision; each is `None` where a price it needs is unknown.

    Args:
        usd_saved_per_month: What 30 days cost less from then on; `None` too of what is stripped, as nobody knows how
            small it gets.
        usd_fee: What carrying it out costs once: requests, or the rest of a minimum duration.
        read_usd: What bringing it back once would cost then, egress apart; `None` too where nothing is left.
        restore_hours: Hours until that could begin; `None` too where nothing is left.
    """

    usd_saved_per_month: Fraction | None
    usd_fee: Fraction | None
    read_usd: Fraction | None
    restore_hours: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What is to become of one checkpoint.

    Args:
        record: The checkpoint as it is now.
        decision: What is to be done and why.
        prospect: What that means.
    """

    record: Record
    decision: Decision
    prospect: Prospect


def planned(room: Room, retention: Retention | None, tiers: Tiers) -> list[Planned]:
    """Plan as a training would, where none is there: nothing is changed or noted.

    Args:
        room: The checkpoints.
        retention: What is wanted of them; all is kept if `None`, also what `ModelCheckpoint` has let go.
        tiers: The two places and their prices.

    Returns:
        From the oldest to the newest; what was deleted by hand and has no cold copy is left out.

    Raises:
        CheckpointError: If what happened to the runs cannot be read.
    """
    now_ns, ghosts = room.now_ns(), {ghost.id for ghost in room.inventory.ghosts()}
    records = {r.id: r if r.id not in ghosts else replace(r, state="cold") for r in room.inventory.records()}
    records = {id: r for id, r in records.items() if id not in ghosts or r.cold_since_ns is not None}
    history = _history(room, records, heeds_released=retention is not None)
    pointers = restart_files(room)
    found = []
    wanted = room.on_disk(retention or Retention(), history)
    for decision in plan(history, wanted, now_ns, tiers):
        record = records[decision.id]
        why = why_it_stays(room, record, pointers) if decision.move is not Move.KEEP else None
        held = Decision(id=record.id, move=Move.KEEP, rule="held", reason=why) if why else decision
        found.append(Planned(record=record, decision=held, prospect=prospect(held, record, tiers, now_ns)))
    return found


def _history(room: Room, records: dict[str, Record], *, heeds_released: bool) -> History:
    checkpoints = [record.as_checkpoint() for record in records.values()]
    if not heeds_released:
        checkpoints = [replace(c, released=False) for c in checkpoints]
    return replace(room.inventory.history(), checkpoints=checkpoints)


def prospect(decision: Decision, record: Record, tiers: Tiers, now_ns: int) -> Prospect:
    """Work out what a decision means.

    Args:
        decision: What is to become of a checkpoint.
        record: The checkpoint as it is now.
        tiers: The two places and their prices.
        now_ns: Now, ns since the epoch.
    """
    size, cold = record.size_bytes, tiers.cold
    stays_hot = decision.move is Move.KEEP and record.tier != "cold"
    read, hours = (cold.read_usd(size), cold.restore_hours) if cold else (None, None)
    if stays_hot:
        read, hours = _NOTHING, 0.0
    if decision.move is Move.EXPIRE:
        read, hours = None, None
    if decision.move is Move.STRIP:
        read = None
    return Prospect(
        usd_saved_per_month=_saved(decision.move, record, tiers),
        usd_fee=decision.usd_fee if decision.move is Move.STRIP else _fee(decision.move, record, tiers, now_ns),
        read_usd=read,
        restore_hours=hours,
    )


def _saved(move: Move, record: Record, tiers: Tiers) -> Fraction | None:
    hot = tiers.hot.month_usd(record.size_bytes) if tiers.hot else None
    cold = tiers.cold.month_usd(record.size_bytes) if tiers.cold else None
    if move is Move.KEEP:
        return _NOTHING
    if move is Move.STRIP:
        return None
    if move is Move.DEMOTE:
        return hot if record.tier == "both" or hot is None else None if cold is None else hot - cold
    return total([hot if record.tier != "cold" else _NOTHING, cold if record.tier != "hot" else _NOTHING])


def _fee(move: Move, record: Record, tiers: Tiers, now_ns: int) -> Fraction | None:
    if move is Move.DEMOTE and record.tier == "hot":
        return tiers.cold.put_usd(requests_of(record, tiers.part_bytes)) if tiers.cold else None
    if move is Move.EXPIRE and record.cold_since_ns is not None:
        return tiers.cold.early_usd(record.size_bytes, now_ns - record.cold_since_ns) if tiers.cold else None
    return _NOTHING


def total(amounts: Iterable[Fraction | None]) -> Fraction | None:
    """Their sum, `None` if one of them is unknown."""
    known = list(amounts)
    return None if None in known else sum((a for a in known if a is not None), _NOTHING)
