"""`costguard ckpt plan | apply`: what the rules would do, what that means in money and time, and doing it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from costguard.checkpoints.carrying import carry_out, restart_files
from costguard.checkpoints.faults import CheckpointError, StoreError
from costguard.checkpoints.prospect import Planned, planned, total
from costguard.checkpoints.recovery import recover
from costguard.checkpoints.room import Room
from costguard.checkpoints.weights import WholeError
from costguard.cli.ckpt_room import (
    FAILED,
    OK,
    add_action,
    add_hot_class,
    brief,
    open_checkpoints,
    remembered,
    root_of,
    show_usd,
    tell,
    usd,
)
from costguard.cli.progress import progress
from costguard.errors import config_error
from costguard.keep import parse
from costguard.policies.retention import Move, Retention, Tiers
from costguard.prices.storage import storage_class
from costguard.units import format_bytes, parse_duration_ns

_NO_RULES = (
    "no rules are written down for this folder, so that all is kept; give some, such as "
    "--keep \"last(3) | best('val_loss', n=2)\""
)


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add them to `costguard ckpt`."""
    _rules_of(add_action(actions, "plan", "what the rules would do with each checkpoint, and what that means", _plan))
    doing = add_action(actions, "apply", "do what `plan` says; without --yes it is only said", _apply)
    _rules_of(doing)
    doing.add_argument("--yes", action="store_true", help="do it")


def _rules_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", metavar="RULES", help='what stays hot, such as "last(3) | every(steps=10_000)"; else the training\'s'
    )
    parser.add_argument(
        "--expire-after", metavar="TIME", help="age at which what no rule keeps is deleted: 30d, 12h, 2w"
    )
    parser.add_argument(
        "--strip-optimizer-after", metavar="TIME", help="age at which it is kept without its optimizer state: 14d"
    )
    parser.add_argument("--demote", choices=("rest", "none"), help="whether what no rule keeps moves to the cold store")
    parser.add_argument("--storage-class", metavar="CLASS", help="of what moves, in the price table: s3:GLACIER_IR")
    add_hot_class(parser)


def _wanted(room: Room, arguments: argparse.Namespace) -> tuple[Retention | None, Tiers]:
    """The training's rules, each option in place of the one that it names; `None` if there are none."""
    known = remembered(room, arguments)
    given: dict[str, Any] = {}
    if arguments.keep is not None:  # who types rules means all that is there
        given |= {"keep": parse(arguments.keep), "run": None}
    for option, field in (("expire_after", "expire_after_ns"), ("strip_optimizer_after", "strip_after_ns")):
        if getattr(arguments, option) is not None:
            given[field] = _duration_ns(option, getattr(arguments, option))
    if arguments.demote is not None:
        given["demote"] = arguments.demote
    if known.problem is not None and "keep" not in given:
        raise CheckpointError(known.problem)
    retention = known.retention if known.retention is not None or "keep" not in given else Retention()
    retention = None if retention is None else replace(retention, **given)
    tiers = replace(known.tiers, has_cold=room.store is not None and (retention is None or retention.demote == "rest"))
    return retention, replace(tiers, cold=storage_class(arguments.storage_class)) if arguments.storage_class else tiers


def _duration_ns(option: str, text: str) -> int:
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise config_error(f"--{option.replace('_', '-')} {text}: {error}.") from None


def _plan(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    retention, tiers = _wanted(room, arguments)
    data = _data(room, retention, planned(room, retention, tiers))
    tell(arguments, data, _text(data))
    return OK


def _data(room: Room, retention: Retention | None, plans: Sequence[Planned]) -> dict[str, Any]:
    life_ns = None if retention is None else retention.expire_after_ns
    strip_ns = None if retention is None else retention.strip_after_ns
    return {
        "dir": root_of(room),
        "cold": room.store.url if room.store is not None else None,
        "keep": retention.keep.label if retention is not None and retention.keep is not None else None,
        "rules": retention is not None,
        "demote": None if retention is None else retention.demote,
        "expire_after_s": None if life_ns is None else life_ns / 1e9,
        "strip_optimizer_after_s": None if strip_ns is None else strip_ns / 1e9,
        "retention": None if retention is None else retention.to_json(),
        "checkpoints": [_entry(each) for each in plans],
        "totals": _totals(plans),
        "problems": room.inventory.problems(),
    }


def _entry(each: Planned) -> dict[str, Any]:
    free_at = each.decision.free_at_ns
    return {
        **brief(each.record),
        "action": each.decision.move.value,
        "rule": each.decision.rule,
        "reason": each.decision.reason,
        "usd_saved_per_month": usd(each.prospect.usd_saved_per_month),
        "usd_fee": usd(each.prospect.usd_fee),
        "read_usd": usd(each.prospect.read_usd),
        "restore_hours": each.prospect.restore_hours,
        "free_at": None if free_at is None else datetime.fromtimestamp(free_at // 10**9, timezone.utc).isoformat(),
    }


def _totals(plans: Sequence[Planned]) -> dict[str, Any]:
    by_move = {move: [p for p in plans if p.decision.move is move] for move in Move}
    left = [p.prospect for p in plans if p.decision.move is not Move.EXPIRE]
    hours = [each.restore_hours for each in left]
    return {
        **{move.value: len(those) for move, those in by_move.items()},
        **{f"{move.value}_bytes": sum(p.record.size_bytes for p in those) for move, those in by_move.items()},
        "usd_saved_per_month": usd(total(p.prospect.usd_saved_per_month for p in plans)),
        "usd_fee": usd(total(p.prospect.usd_fee for p in plans)),
        "read_usd": usd(total(each.read_usd for each in left)),
        "restore_hours": None if None in hours else max((h for h in hours if h is not None), default=0.0),
    }


def _text(data: dict[str, Any]) -> str:
    rules = f"keep: {data['keep'] or 'all that ModelCheckpoint keeps'}, demote: {data['demote']}, expire: "
    rules += "never" if data["expire_after_s"] is None else f"after {data['expire_after_s'] / 86_400:g} days"
    if data["strip_optimizer_after_s"] is not None:
        rules += f", optimizer state: until {data['strip_optimizer_after_s'] / 86_400:g} days"
    lines = [f"{data['dir']}   cold: {data['cold'] or 'none'}", rules if data["rules"] else _NO_RULES]
    for c in data["checkpoints"]:
        what = f"step {c['step']:<8} {c['tier']:<5} {format_bytes(c['bytes']):>9}  {c['path']}"
        lines.append(f"{c['action']:<6}  {c['id']}  {what}")
        lines.append(f"        {c['rule']}: {c['reason']}{'' if c['action'] == 'keep' else _means(c)}{_back(c)}")
    sums = data["totals"]
    counts = ", ".join(f"{sums[m.value]} to {m.value} ({format_bytes(sums[f'{m.value}_bytes'])})" for m in Move)
    lines.append(f"{counts}{_means(sums)}; to read all back{_costs_and_hours(sums)}")
    return "\n".join([*lines, *data["problems"]])


def _means(one: dict[str, Any]) -> str:
    return f"; saves {show_usd(one['usd_saved_per_month'])} a month for {show_usd(one['usd_fee'])} once"


def _back(c: dict[str, Any]) -> str:
    """What one read costs, of what is or will be cold."""
    hot = c["action"] == "keep" and c["tier"] != "cold"
    return "" if hot or c["action"] == "expire" else f"; to read it back{_costs_and_hours(c)}"


def _costs_and_hours(one: dict[str, Any]) -> str:
    hours = one["restore_hours"]
    begins = "after an unknown time" if hours is None else f"after {hours:g} h" if hours else "at once"
    return f" costs {show_usd(one['read_usd'])} and begins {begins}"


# -- apply -----------------------------------------------------------------------------------------------------------


def _apply(arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        room = open_checkpoints(arguments)
        retention, tiers = _wanted(room, arguments)
        data = {**_data(room, retention, planned(room, retention, tiers)), "done": False}
        work = sum(data["totals"][move.value] for move in Move if move is not Move.KEEP)
        tell(arguments, data, _text(data) + ("\n--yes does it" if work else "\nthere is nothing to do"))
        return OK
    return _act(arguments)


def _act(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    retention, tiers = _wanted(room, arguments)
    if arguments.storage_class:
        room = open_checkpoints(arguments, storage_class=arguments.storage_class)
    told = recover(room)
    plans = planned(room, retention, tiers)
    data = {**_data(room, retention, plans), "done": True, "recovered": told.done}
    if not arguments.json:
        print("\n".join([*told.done, _text(data)]))
        sys.stdout.flush()
    stays = _carry_out(room, plans)
    for entry in data["checkpoints"]:
        if entry["action"] != Move.KEEP.value:
            entry["stays"] = stays.get(entry["id"])
    new = [problem for problem in told.problems if problem not in data["problems"]]
    tell(arguments, {**data, "problems": [*data["problems"], *new]}, _outcome(data["checkpoints"], new))
    return FAILED if stays or told.problems else OK


def _carry_out(room: Room, plans: Sequence[Planned]) -> dict[str, str]:
    """Do it; by id why one stays as it is. What a store or torch refuses once is not asked of it again."""
    stays: dict[str, str] = {}
    failed = refused = ""
    pointers = restart_files(room)
    for each in (p for p in plans if p.decision.move is not Move.KEEP):
        moves = each.decision.move is Move.DEMOTE and each.record.tier == "hot"
        size = each.record.size_bytes if moves and not failed else 0
        try:
            if failed:
                raise CheckpointError(f"not tried after: {failed}")
            if refused and each.decision.move is Move.STRIP:
                raise CheckpointError(f"not tried after: {refused}")
            with progress(room, f"{each.decision.move.value} step {each.record.step}", size):
                why = carry_out(room, each.decision, pointers)
        except CheckpointError as error:
            why = str(error)
            failed = failed or (why if isinstance(error, StoreError) else "")
            refused = refused or (why if isinstance(error, WholeError) and not error.lasting else "")
        if why is not None:
            stays[each.record.id] = why
    return stays


def _outcome(checkpoints: Sequence[dict[str, Any]], problems: Sequence[str]) -> str:
    work = [c for c in checkpoints if c["action"] != Move.KEEP.value]
    lines = [f"{c['id']}  step {c['step']} stays: {c['stays']}" for c in work if c["stays"] is not None]
    done = sum(c["stays"] is None for c in work)
    return "\n".join([*lines, *problems, f"{done} of {len(work)} moves are done."])
