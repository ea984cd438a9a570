"""What the actions of `costguard ckpt` share: their options, the list they open, the checkpoint they are told of."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from costguard.checkpoints.cabinet import policy_of, room_above
from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room
from costguard.cli.cold_options import add_store_options, store_options
from costguard.errors import RunNotFoundError
from costguard.policies.retention import Retention, Tiers
from costguard.prices.storage import storage_class
from costguard.units import format_money, plain, round_money

SCHEMA_VERSION = 1
OK, FAILED = 0, 1
_SHORTEST_ID = 4


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add an action with what all of them take.

    Args:
        actions: Those of `costguard ckpt`.
        name: Its name.
        text: Its help.
        run: What does it, returning the exit code.
    """
    parser = actions.add_parser(name, help=text)
    parser.add_argument("dir", metavar="DIR", help="the folder that was trained in, or any below it")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    add_store_options(parser)
    parser.set_defaults(run=run)
    return parser


def add_hot_class(parser: argparse.ArgumentParser) -> None:
    """Add the option for the price of the hot disk."""
    parser.add_argument(
        "--hot-class",
        metavar="CLASS",
        help="the hot disk's class in the price table, such as ebs:gp3; else the one that the training named",
    )


def open_checkpoints(arguments: argparse.Namespace, **cold: Any) -> Room:
    """Open the list that a folder belongs to.

    Args:
        arguments: Of the action.
        cold: Fields of `Cold` beside the options of the store.

    Raises:
        RunNotFoundError: If there is none.
    """
    return room_above(arguments.dir, **store_options(arguments), **cold)


def root_of(room: Room) -> str:
    """The folder that was trained in."""
    return os.path.dirname(os.path.abspath(room.inventory.folder))


def find_record(room: Room, wanted: str) -> Record:
    """A checkpoint by its id, the begin of one, or a path that it is or was at.

    Raises:
        RunNotFoundError: If there is none, or several begin so.
    """
    begun = [r for r in room.inventory.records() if len(wanted) >= _SHORTEST_ID and r.id.startswith(wanted)]
    if begun:
        return _the_one(begun, f"{wanted} is the begin of")
    for path in (wanted, os.path.join(root_of(room), wanted)):
        found = room.inventory.find(path)
        if found is not None:
            return found
    raise RunNotFoundError(f"{wanted}: no such checkpoint in {room.inventory.folder}; `costguard ckpt ls` names them.")


def find_step(room: Room, step: int) -> Record:
    """The checkpoint of an optimizer step.

    Raises:
        RunNotFoundError: If there is none, or several, as where a run was trained again from an earlier one.
    """
    found = [r for r in room.inventory.records() if r.step == step]
    if not found:
        raise RunNotFoundError(
            f"step {step}: no such checkpoint in {room.inventory.folder}; `costguard ckpt ls` names them."
        )
    return _the_one(found, f"step {step} is that of")


def _the_one(found: Sequence[Record], said: str) -> Record:
    if len(found) > 1:
        raise RunNotFoundError(
            f"{said} {len(found)} checkpoints: {', '.join(r.id for r in found)}; name one by its id."
        )
    return found[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """What the training that last used a list wrote down for the commands.

    Args:
        retention: What it wants, `None` if nothing is written down or it cannot be read.
        tiers: The two places and their prices, as far as they are known.
        problem: Why it cannot be read, `None` if it can.
    """

    retention: Retention | None
    tiers: Tiers
    problem: str | None = None


def remembered(room: Room, arguments: argparse.Namespace) -> Remembered:
    """What a training wrote down, with the hot disk's class of the options in place of its own.

    Args:
        room: The checkpoints.
        arguments: Of an action with `--hot-class`.

    Raises:
        ConfigError: If the class of the options is not in the price table.
    """
    problem = found = None
    try:
        found = policy_of(room)
    except CheckpointError as error:
        problem = str(error)
    retention, tiers = found or (None, Tiers(cold=room.storage_class, has_cold=room.store is not None))
    hot = storage_class(arguments.hot_class) if arguments.hot_class else tiers.hot
    known = Tiers(hot=hot, cold=tiers.cold, has_cold=tiers.has_cold, part_bytes=room.part_bytes)
    return Remembered(retention=retention, tiers=known, problem=problem)


def tell(arguments: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    """Print what an action found or did, as JSON where it was asked for."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=2) if arguments.json else text)


def brief(record: Record) -> dict[str, Any]:
    """What every action says of a checkpoint."""
    return {
        "id": record.id,
        "step": record.step,
        "path": record.path,
        "tier": record.tier,
        "bytes": record.size_bytes,
        "pinned": record.pinned,
    }


def usd(amount: Fraction | None) -> str | None:
    """Dollars for JSON: an exact decimal, `None` if unknown."""
    return None if amount is None else plain(round_money(amount))


def show_usd(amount: str | None) -> str:
    """Dollars of JSON for a person."""
    return "an unknown amount" if amount is None else format_money(amount)
