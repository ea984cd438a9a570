"""`costguard ckpt`: the checkpoints of a run in both tiers; listed, pinned, restored, verified, recovered, removed."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.inventory import Record
from costguard.checkpoints.manifest import Level
from costguard.checkpoints.money import cost_of
from costguard.checkpoints.recovery import recover
from costguard.checkpoints.restore import check_copy, restore
from costguard.checkpoints.room import Room, unprotected
from costguard.cli.cold_options import add_store_options, store_options
from costguard.errors import RunNotFoundError
from costguard.policies.retention import Tiers
from costguard.prices.storage import storage_class
from costguard.units import format_bytes, format_money, plain, round_money

SCHEMA_VERSION = 1
OK, FAILED = 0, 1
_SHORTEST_ID = 4


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("ckpt", help="the checkpoints of a run, hot and cold")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = _action(actions, "ls", "each checkpoint: step, where it is, size, how far verified, price", _ls)
    listing.add_argument("--hot-class", metavar="CLASS", help="the hot disk's class in the price table, for its price")
    for name, text, run in (
        ("pin", "keep a checkpoint whatever the rules say; hot or cold, also after the fact", _pin),
        ("unpin", "leave it to the rules again", _unpin),
        ("restore", "bring a checkpoint back, verified; it goes on where it was interrupted", _restore),
        ("rm", "delete a checkpoint in both tiers; only says what it would do without --yes", _rm),
    ):
        one = _action(actions, name, text, run, reads=False)
        one.add_argument("checkpoint", metavar="ID_OR_PATH", help="as `ls` shows them; the begin of an id is enough")
        if name == "restore":
            one.add_argument("--to", metavar="PATH", help="make a copy there instead of at its old path")
        if name == "rm":
            one.add_argument("--yes", action="store_true", help="do it")
    checking = _action(actions, "verify", "read cold copies back and hash them; nothing is written", _verify)
    checking.add_argument("checkpoint", metavar="ID_OR_PATH", nargs="?", help="only this one")
    _action(actions, "recover", "bring to an end what was interrupted", _recover)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
    *,
    reads: bool = True,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text)
    parser.add_argument("dir", metavar="DIR", help="the folder that was trained in, or any below it")
    if reads:
        parser.add_argument("--json", action="store_true", help="JSON on stdout")
    add_store_options(parser)
    parser.set_defaults(run=run)
    return parser


def _room(arguments: argparse.Namespace) -> Room:
    return room_above(arguments.dir, **store_options(arguments))


def _record(room: Room, wanted: str) -> Record:
    """By id, the begin of one, or a path that it is or was at."""
    records = room.inventory.records()
    begun = [r for r in records if len(wanted) >= _SHORTEST_ID and r.id.startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    base = os.path.dirname(os.path.abspath(room.inventory.folder))
    for path in (wanted, os.path.join(base, wanted)):
        found = room.inventory.find(path)
        if found is not None:
            return found
    raise RunNotFoundError(f"{wanted}: no such checkpoint in {room.inventory.folder}; `costguard ckpt ls` names them.")


# -- reading ---------------------------------------------------------------------------------------------------------


def _ls(arguments: argparse.Namespace) -> int:
    room = _room(arguments)
    tiers = Tiers(hot=storage_class(arguments.hot_class) if arguments.hot_class else None, cold=room.storage_class)
    data = {
        "schema_version": SCHEMA_VERSION,
        "dir": os.path.dirname(os.path.abspath(room.inventory.folder)),
        "cold": room.store.url if room.store is not None else None,
        "checkpoints": [_entry(record, tiers) for record in room.inventory.records()],
        "problems": room.inventory.problems(),
    }
    print(json.dumps(data, indent=2) if arguments.json else _text(data))
    return OK


def _entry(record: Record, tiers: Tiers) -> dict[str, Any]:
    month = cost_of(record, tiers, time.time_ns()).usd_per_month
    return {
        "id": record.id,
        "step": record.step,
        "path": record.path,
        "tier": record.tier,
        "state": record.state,
        "bytes": record.size_bytes,
        "level": Level(record.level).name.lower(),
        "pinned": record.pinned,
        "resumed_from": record.resumed_from,
        "usd_per_month": None if month is None else plain(round_money(month)),
        "problem": record.problem or None,
    }


def _text(data: dict[str, Any]) -> str:
    lines = [f"{data['dir']}   cold: {data['cold'] or 'none'}"]
    for c in data["checkpoints"]:
        marks = [name for name in ("pinned", "resumed_from") if c[name]]
        month = "" if c["usd_per_month"] is None else f", {format_money(c['usd_per_month'])} a month"
        level = "" if c["level"] == "none" else f", verified by {c['level']}"
        lines.append(
            f"{c['id']}  step {c['step']:<8} {c['tier']:<5} {format_bytes(c['bytes']):>9}  {c['path']}"
            f"{level}{month}{''.join(f', {mark}' for mark in marks)}"
        )
        if c["problem"]:
            lines.append(f"    {c['problem']}")
    if not data["checkpoints"]:
        lines.append("no checkpoints")
    return "\n".join([*lines, *data["problems"]])


def _verify(arguments: argparse.Namespace) -> int:
    room = _room(arguments)
    records = [_record(room, arguments.checkpoint)] if arguments.checkpoint else room.inventory.records()
    told = [_verified(room, record) for record in records if record.cold_since_ns is not None or arguments.checkpoint]
    if arguments.json:
        print(json.dumps({"schema_version": SCHEMA_VERSION, "checkpoints": told}, indent=2))
    else:
        for each in told:
            state = f"ok, {format_bytes(each['bytes'])} read" if each["ok"] else each["problem"]
            print(f"{each['id']}  step {each['step']}: {state}")
        print(f"{sum(each['ok'] for each in told)} of {len(told)} cold copies are whole.")
    return OK if all(each["ok"] for each in told) else FAILED


def _verified(room: Room, record: Record) -> dict[str, Any]:
    try:
        size, problem = check_copy(room, record.id), None
    except CheckpointError as error:
        size, problem = None, str(error)
    return {"id": record.id, "step": record.step, "ok": problem is None, "bytes": size, "problem": problem}


def _recover(arguments: argparse.Namespace) -> int:
    told = recover(_room(arguments))
    if arguments.json:
        said = {"done": told.done, "problems": told.problems, "interrupted": told.interrupted}
        print(json.dumps({"schema_version": SCHEMA_VERSION, **said}, indent=2))
    else:
        for line in [*told.done, *told.problems]:
            print(line)
        for id in told.interrupted:
            print(f"{id}: its restore was interrupted; `costguard ckpt restore` goes on with it")
        print(f"{len(told.done)} brought to an end, {len(told.problems)} problems.")
    return FAILED if told.problems else OK


# -- acting ----------------------------------------------------------------------------------------------------------


def _pin(arguments: argparse.Namespace) -> int:
    room = _room(arguments)
    record = room.inventory.pin(_record(room, arguments.checkpoint).id)
    print(f"{record.id} (step {record.step}, {record.tier}) is pinned.")
    return OK


def _unpin(arguments: argparse.Namespace) -> int:
    room = _room(arguments)
    record = room.inventory.pin(_record(room, arguments.checkpoint).id, pinned=False)
    print(f"{record.id} (step {record.step}, {record.tier}) is not pinned any more.")
    return OK


def _restore(arguments: argparse.Namespace) -> int:
    room = _room(arguments)
    record = _record(room, arguments.checkpoint)
    path = restore(room, record.id, to=arguments.to and os.path.abspath(arguments.to))
    print(f"step {record.step}, {format_bytes(record.size_bytes)}, verified: {path}")
    return OK


def _rm(arguments: argparse.Namespace) -> int:
    room = _room(arguments)
    record = _record(room, arguments.checkpoint)
    what = f"{record.id} (step {record.step}, {record.tier}, {format_bytes(record.size_bytes)}, {record.path})"
    if not arguments.yes:
        unprotected(room, record)
        print(f"would delete {what} in both tiers, for good; --yes does it")
        return OK
    expire(room, record.id)
    print(f"deleted {what}")
    return OK
