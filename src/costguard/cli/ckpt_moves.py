"""`costguard ckpt pin | unpin | restore | rm`: one checkpoint that is named."""

from __future__ import annotations

import argparse
import os
from typing import Any

from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import ArchivedError
from costguard.checkpoints.record import Record
from costguard.checkpoints.restore import restore, thaw
from costguard.checkpoints.room import Room, unprotected
from costguard.cli.ckpt_room import (
    FAILED,
    OK,
    add_action,
    brief,
    find_record,
    find_step,
    open_checkpoints,
    show_usd,
    tell,
    usd,
)
from costguard.cli.progress import progress
from costguard.errors import config_error
from costguard.units import format_bytes

_SPEEDS = ("Bulk", "Standard", "Expedited")
_TIMED = "Standard"
"""The speed that hours and prices of the table are for."""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add them to `costguard ckpt`."""
    one = "as `ls` shows them; the begin of an id is enough"
    pinning = add_action(actions, "pin", "keep one whatever the rules say; hot or cold, also after the fact", _pin)
    pinning.add_argument("checkpoint", metavar="ID_OR_PATH", help=one)
    unpinning = add_action(actions, "unpin", "leave it to the rules again", _unpin)
    unpinning.add_argument("checkpoint", metavar="ID_OR_PATH", help=one)
    back = add_action(actions, "restore", "bring one back, verified; it goes on where it was interrupted", _restore)
    back.add_argument("checkpoint", metavar="ID_OR_PATH", nargs="?", help=one)
    back.add_argument("--step", type=int, metavar="N", help="the one of this optimizer step")
    back.add_argument("--id", metavar="ID", help="the one with this id")
    back.add_argument("--to", metavar="PATH", help="make a copy there instead of at its old path")
    back.add_argument(
        "--thaw", nargs="?", const=_TIMED, choices=_SPEEDS, help="ask the store for an archived one, at this speed"
    )
    going = add_action(actions, "rm", "delete one in both tiers; without --yes it is only said", _rm)
    going.add_argument("checkpoint", metavar="ID_OR_PATH", help=one)
    going.add_argument("--yes", action="store_true", help="do it")


def _pin(arguments: argparse.Namespace) -> int:
    return _pinned(arguments, pinned=True)


def _unpin(arguments: argparse.Namespace) -> int:
    return _pinned(arguments, pinned=False)


def _pinned(arguments: argparse.Namespace, *, pinned: bool) -> int:
    room = open_checkpoints(arguments)
    record = room.inventory.pin(find_record(room, arguments.checkpoint).id, pinned=pinned)
    said = "is pinned" if pinned else "is not pinned any more"
    tell(arguments, brief(record), f"{record.id} (step {record.step}, {record.tier}) {said}.")
    return OK


def _restore(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    record = _named(room, arguments)
    to = arguments.to and os.path.abspath(arguments.to)
    size = record.size_bytes if to or not room.inventory.there(record) else 0
    try:
        with progress(room, f"restore step {record.step}", size):
            path = restore(room, record.id, to=to)
    except ArchivedError as error:
        return _archived(room, record, arguments, error)
    data = {**brief(room.inventory.get(record.id)), "restored": True, "restored_to": path, "archived": False}
    tell(arguments, data, f"step {record.step}, {format_bytes(record.size_bytes)}, verified: {path}")
    return OK


def _named(room: Room, arguments: argparse.Namespace) -> Record:
    given = [each for each in (arguments.checkpoint, arguments.step, arguments.id) if each is not None]
    if len(given) != 1:
        raise config_error(
            f"costguard ckpt restore: {len(given)} checkpoints named; expected one of ID_OR_PATH, --step N, --id ID."
        )
    return find_step(room, arguments.step) if arguments.step is not None else find_record(room, given[0])


def _archived(room: Room, record: Record, arguments: argparse.Namespace, error: ArchivedError) -> int:
    """Say what it takes, and begin it where it is asked for; it is not there before the store has done its part."""
    if not arguments.thaw and not arguments.json:
        raise error
    asked = thaw(room, record.id, speed=arguments.thaw) if arguments.thaw else 0
    price = room.storage_class if arguments.thaw in (None, _TIMED) else None
    data: dict[str, Any] = {
        **brief(record),
        "restored": False,
        "archived": True,
        "objects_asked_for": asked,
        "restore_hours": price.restore_hours if price else None,
        "read_usd": usd(price.read_usd(record.size_bytes)) if price else None,
        "problem": str(error),
    }
    tell(arguments, data, _thawing(data))
    return FAILED


def _thawing(data: dict[str, Any]) -> str:
    hours = "an unknown time" if data["restore_hours"] is None else f"about {data['restore_hours']:g} h"
    begun = f"{data['objects_asked_for']} objects are asked for" if data["objects_asked_for"] else "it is on its way"
    return (
        f"step {data['step']} is archived: {begun}; it takes {hours} and {show_usd(data['read_usd'])}, and can be "
        "restored by the same command then."
    )


def _rm(arguments: argparse.Namespace) -> int:
    room = open_checkpoints(arguments)
    record = find_record(room, arguments.checkpoint)
    what = f"{record.id} (step {record.step}, {record.tier}, {format_bytes(record.size_bytes)}, {record.path})"
    if arguments.yes:
        expire(room, record.id)
        said = f"deleted {what}"
    else:
        unprotected(room, record)
        said = f"would delete {what} in both tiers, for good; --yes does it"
    tell(arguments, {**brief(record), "done": arguments.yes}, said)
    return OK
