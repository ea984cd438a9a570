"""`costguard ckpt adopt | recover | gc | doctor`: the list and the store themselves, rather than one checkpoint."""

from __future__ import annotations

import argparse
import os
from typing import Any

from costguard.checkpoints.adoption import take_up
from costguard.checkpoints.cabinet import Cold, leave_word, reopen_room
from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.preflight import probe
from costguard.checkpoints.recovery import Orphans, Recovery, collect, find_orphans, rebuild, recover
from costguard.checkpoints.room import Room
from costguard.cli.ckpt_room import FAILED, OK, add_action, brief, open_checkpoints, root_of, show_usd, tell, usd
from costguard.cli.cold_options import store_options
from costguard.errors import config_error
from costguard.units import format_bytes

_RESTING = ("hot", "both", "cold")


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add them to `costguard ckpt`."""
    taking = add_action(actions, "adopt", "take up checkpoints that are in no list: these, or all cold copies", _adopt)
    taking.add_argument("paths", metavar="PATH", nargs="*", help="a file, or the folder of a sharded one")
    taking.add_argument("--step", type=int, metavar="N", help="its optimizer step, where the name has no step=N")
    taking.add_argument("--cold", metavar="URL", help="cold store of a DIR that has no list yet, or has lost it")
    taking.add_argument("--run", dest="name", metavar="NAME", help="which run of that store, if it holds several")
    add_action(actions, "recover", "bring to an end what was interrupted", _recover)
    clearing = add_action(actions, "gc", "delete what belongs to no checkpoint; without --yes it is only said", _gc)
    clearing.add_argument("--yes", action="store_true", help="do it")
    add_action(actions, "doctor", "try out what the cold store allows, and look at the disks", _doctor)


def _adopt(arguments: argparse.Namespace) -> int:
    if arguments.step is not None and len(arguments.paths) != 1:
        raise config_error(f"--step {arguments.step}: expected one PATH with it, got {len(arguments.paths)}.")
    room = _list_of(arguments)
    taken = (
        [_taken_up(room, path, arguments.step) for path in arguments.paths] if arguments.paths else _found_cold(room)
    )
    lines = [f"{each['id']}  step {each['step']:<8} {each['path']}: {each['said']}" for each in taken if each["id"]]
    lines += [each["said"] for each in taken if not each["id"]]
    new = sum(each["taken_up"] for each in taken)
    tell(arguments, {"checkpoints": taken}, "\n".join([*lines, f"{new} checkpoints are taken up."]))
    return OK if all(each["id"] for each in taken) else FAILED


def _list_of(arguments: argparse.Namespace) -> Room:
    if arguments.cold is None:
        return open_checkpoints(arguments)
    if not os.path.isdir(arguments.dir):
        raise config_error(f"{arguments.dir}: there is no such folder to make a list in; make it first.")
    cold = Cold(url=arguments.cold, **store_options(arguments))
    return reopen_room(arguments.dir, cold, arguments.name, holds_any=not arguments.paths)


def _taken_up(room: Room, path: str, step: int | None) -> dict[str, Any]:
    try:
        found = take_up(room, path, step)
    except CheckpointError as error:
        return {"id": None, "step": None, "path": path, "taken_up": False, "said": str(error)}
    leave_word(found.record.path, room)
    said = {
        "list": "in the list already",
        "option": "taken up",
        "name": "taken up, its step is from its name",
        "nothing": "taken up as step 0, since its name has no step=N; --step N says it",
    }[found.step_from]
    return {**brief(found.record), "taken_up": not found.known, "said": said}


def _found_cold(room: Room) -> list[dict[str, Any]]:
    said = "taken up from its cold copy"
    return [{**brief(record), "taken_up": True, "said": said} for record in rebuild(room)]


def _recover(arguments: argparse.Namespace) -> int:
    told = recover(open_checkpoints(arguments))
    lines = [*told.done, *told.problems]
    lines += [f"{id}: its restore was interrupted; `costguard ckpt restore` goes on with it" for id in told.interrupted]
    counts = f"{len(told.done)} brought to an end, {len(told.problems)} problems."
    tell(arguments, _told(told), "\n".join([*lines, counts]))
    return FAILED if told.problems else OK


def _told(told: Recovery) -> dict[str, Any]:
    return {"done": told.done, "problems": told.problems, "interrupted": told.interrupted}


# -- leftovers -------------------------------------------------------------------------------------------------------


def _gc(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    orphans = find_orphans(room) if room.store is not None else Orphans()
    under_way = [r.id for r in room.inventory.records() if r.state not in _RESTING]
    told = collect(room) if arguments.yes else Recovery()
    price = room.storage_class
    data = {
        "dir": root_of(room),
        "cold": room.store.url if room.store is not None else None,
        "objects": len(orphans.keys),
        "bytes": orphans.bytes,
        "usd_per_month": usd(price.month_usd(orphans.bytes)) if price else None,
        "unfinished_uploads": orphans.uploads,
        "unfinished_deletions": list(orphans.tombstones),
        "unlisted_copies": list(orphans.foreign),
        "not_ours": list(orphans.unknown),
        "under_way": under_way,
        "collected": arguments.yes,
        **_told(told),
    }
    tell(arguments, data, _leftovers(data))
    return FAILED if told.problems else OK


def _leftovers(data: dict[str, Any]) -> str:
    month = f", {show_usd(data['usd_per_month'])} a month" if data["objects"] else ""
    lines = [
        f"{data['cold'] or 'no cold store'}: {data['objects']} objects that belong to no copy "
        f"({format_bytes(data['bytes'])}{month}), {data['unfinished_uploads']} unfinished uploads of unknown size, "
        f"{len(data['unfinished_deletions'])} deletions and {len(data['under_way'])} moves that were interrupted"
    ]
    if data["unlisted_copies"]:
        copies = f"{len(data['unlisted_copies'])} complete copies are in no list and stay"
        lines.append(f"{copies}; `costguard ckpt adopt` takes them up")
    if data["collected"]:
        return "\n".join([*lines, *data["done"], *data["problems"]])
    if data["not_ours"]:
        lines.append(f"{len(data['not_ours'])} objects are not of our making, such as {data['not_ours'][0]}; they stay")
    return "\n".join([*lines, "--yes brings moves to an end and deletes the rest"])


# -- probes ----------------------------------------------------------------------------------------------------------


def _doctor(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    findings = [{"probe": f.probe, "ok": f.ok, "sentence": f.sentence} for f in probe(room)]
    if room.store is None:
        findings.append({"probe": "cold", "ok": None, "sentence": "there is no cold store."})
    wrong = [f for f in findings if f["ok"] is False]
    marks = {True: "ok", False: "NOT OK", None: "unknown"}
    lines = [f"{f['probe']:<10} {marks[f['ok']]:<8} {f['sentence']}" for f in findings]  # type: ignore[index]
    problems = room.inventory.problems()
    tell(arguments, {"dir": root_of(room), "findings": findings, "problems": problems}, "\n".join([*lines, *problems]))
    return FAILED if wrong or problems else OK
