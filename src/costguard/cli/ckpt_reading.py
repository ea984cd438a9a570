"""`costguard ckpt ls | cost | verify`: what there is, what it costs, and whether the cold copies are whole."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.manifest import Level
from costguard.checkpoints.money import CheckpointCost, cost_of
from costguard.checkpoints.prospect import planned, total
from costguard.checkpoints.record import Record
from costguard.checkpoints.restore import check_copy
from costguard.checkpoints.room import Room
from costguard.cli.ckpt_room import (
    FAILED,
    OK,
    Remembered,
    add_action,
    add_hot_class,
    brief,
    find_record,
    open_checkpoints,
    remembered,
    root_of,
    tell,
    usd,
)
from costguard.cli.progress import progress
from costguard.errors import config_error
from costguard.policies.retention import Tiers
from costguard.units import format_bytes, format_money, parse_money

_AMOUNTS: Final = ("blocked", "requests", "stored_hot", "stored_cold", "per_month", "early", "read")


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add them to `costguard ckpt`."""
    add_hot_class(
        add_action(actions, "ls", "each checkpoint: step, where it is, size, the rule that holds, price", _ls)
    )
    costs = add_action(
        actions, "cost", "what each checkpoint has cost, costs a month, and would cost to go or return", _cost
    )
    add_hot_class(costs)
    costs.add_argument("--usd-per-hour", metavar="X", help="price of the whole machine, for the time that saves took")
    checking = add_action(actions, "verify", "read cold copies back and hash them; nothing is written", _verify)
    checking.add_argument("checkpoint", metavar="ID_OR_PATH", nargs="?", help="only this one")


def _ls(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    known = remembered(room, arguments)
    rules, problems = _rules(room, known)
    data = {
        "dir": root_of(room),
        "cold": room.store.url if room.store is not None else None,
        "checkpoints": [_entry(room, record, known.tiers, rules) for record in room.inventory.records()],
        "problems": [*room.inventory.problems(), *problems],
    }
    tell(arguments, data, _text(data))
    return OK


def _rules(room: Room, known: Remembered) -> tuple[dict[str, str], list[str]]:
    """By id the rule or guard that says what becomes of it, and why there are none where they cannot be read."""
    try:
        if known.problem is not None:
            raise CheckpointError(known.problem)
        return {p.record.id: p.decision.rule for p in planned(room, known.retention, known.tiers)}, []
    except CheckpointError as error:
        return {}, [str(error)]


def _entry(room: Room, record: Record, tiers: Tiers, rules: dict[str, str]) -> dict[str, Any]:
    gone = record.state in ("hot", "both") and not room.inventory.there(record)
    return {
        **brief(record),
        "rule": rules.get(record.id),
        "state": record.state,
        "level": Level(record.level).name.lower(),
        "resumed_from": record.resumed_from,
        "stripped": record.stripped,
        "usd_per_month": usd(cost_of(record, tiers, room.now_ns()).usd_per_month),
        "problem": record.problem or ("its hot files are not those that were taken up" if gone else None),
    }


def _text(data: dict[str, Any]) -> str:
    lines = [f"{data['dir']}   cold: {data['cold'] or 'none'}"]
    for c in data["checkpoints"]:
        marks = [name for name in ("pinned", "resumed_from", "stripped") if c[name] and name != c["rule"]]
        month = "" if c["usd_per_month"] is None else f", {format_money(c['usd_per_month'])} a month"
        level = "" if c["level"] == "none" else f", verified by {c['level']}"
        rule = "" if c["rule"] is None else f", {c['rule']}"
        lines.append(
            f"{c['id']}  step {c['step']:<8} {c['tier']:<5} {format_bytes(c['bytes']):>9}  {c['path']}"
            f"{level}{month}{rule}{''.join(f', {mark}' for mark in marks)}"
        )
        if c["problem"]:
            lines.append(f"    {c['problem']}")
    if not data["checkpoints"]:
        lines.append("no checkpoints")
    return "\n".join([*lines, *data["problems"]])


# -- cost ------------------------------------------------------------------------------------------------------------


def _cost(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    tiers, rate = remembered(room, arguments).tiers, _rate(arguments.usd_per_hour)
    now_ns = room.now_ns()
    amounts = [(record, _amounts(record, tiers, now_ns, rate)) for record in room.inventory.records()]
    data = {
        "dir": root_of(room),
        "hot_class": tiers.hot.name if tiers.hot else None,
        "cold_class": tiers.cold.name if tiers.cold else None,
        "checkpoints": [{**brief(record), **_shown(one)} for record, one in amounts],
        "totals": _totals([one for _, one in amounts]),
    }
    tell(arguments, data, _cost_text(data))
    return OK


def _rate(text: str | None) -> Fraction | None:
    try:
        return None if text is None else Fraction(parse_money(text))
    except ValueError as error:
        raise config_error(f"--usd-per-hour {text}: {error}; expected dollars an hour, such as 2.49.") from None


def _amounts(record: Record, tiers: Tiers, now_ns: int, rate: Fraction | None) -> dict[str, Any]:
    cost: CheckpointCost = cost_of(record, tiers, now_ns, usd_per_hour=rate)
    return {
        "blocked_s": None if record.blocked_ns is None else record.blocked_ns / 1e9,
        "restore_hours": cost.restore_hours,
        "blocked": cost.blocked_usd,
        "requests": cost.requests_usd,
        "stored_hot": cost.hot_usd,
        "stored_cold": cost.cold_usd,
        "per_month": cost.usd_per_month,
        "early": cost.early_usd,
        "read": cost.read_usd,
    }


def _shown(one: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}_usd" if name in _AMOUNTS else name: usd(v) if name in _AMOUNTS else v for name, v in one.items()}


def _totals(all_of: Sequence[dict[str, Any]]) -> dict[str, Any]:
    blocked = [one["blocked_s"] for one in all_of]
    sums = {f"{name}_usd": usd(total(one[name] for one in all_of)) for name in _AMOUNTS}
    return {"blocked_s": None if None in blocked else sum(blocked), **sums}


def _cost_text(data: dict[str, Any]) -> str:
    classes = f"hot: {data['hot_class'] or 'unknown class'}   cold: {data['cold_class'] or 'unknown class'}"
    lines = [f"{data['dir']}   {classes}"]
    lines += [f"{c['id']}  step {c['step']:<8} {c['tier']:<5} {_costs(c)}" for c in data["checkpoints"]]
    lines.append(f"in all  {_costs(data['totals'])}")
    if data["hot_class"] is None or data["cold_class"] is None:
        lines.append(
            "what is unknown needs a class of the price table: --hot-class here, storage_class of the training"
        )
    return "\n".join(lines)


def _costs(one: dict[str, Any]) -> str:
    blocked = "unknown" if one["blocked_s"] is None else f"{one['blocked_s']:.3g} s"
    parts = [
        f"saving {blocked} ({format_money(one['blocked_usd'])})",
        f"requests {format_money(one['requests_usd'])}",
        f"so far hot {format_money(one['stored_hot_usd'])}, cold {format_money(one['stored_cold_usd'])}",
        f"a month {format_money(one['per_month_usd'])}",
        f"deleted now {format_money(one['early_usd'])}",
        f"read once {format_money(one['read_usd'])}",
    ]
    return "; ".join(parts)


# -- verify ----------------------------------------------------------------------------------------------------------


def _verify(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    records = [find_record(room, arguments.checkpoint)] if arguments.checkpoint else room.inventory.records()
    told = [_verified(room, record) for record in records if record.cold_since_ns is not None or arguments.checkpoint]
    lines = [
        f"{each['id']}  step {each['step']}: "
        + (f"ok, {format_bytes(each['bytes'])} read" if each["ok"] else each["problem"])
        for each in told
    ]
    whole = sum(each["ok"] for each in told)
    tell(arguments, {"checkpoints": told}, "\n".join([*lines, f"{whole} of {len(told)} cold copies are whole."]))
    return OK if whole == len(told) else FAILED


def _verified(room: Room, record: Record) -> dict[str, Any]:
    size, problem = None, None
    try:
        with progress(room, f"verify step {record.step}", record.size_bytes if record.cold_since_ns else 0):
            size = check_copy(room, record.id)
    except CheckpointError as error:
        problem = str(error)
    return {"id": record.id, "step": record.step, "ok": problem is None, "bytes": size, "problem": problem}
