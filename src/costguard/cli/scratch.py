"""`costguard scratch`: temporary folders and prefixes with a time to live, registered, listed and swept."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from costguard.checkpoints.faults import scrub_url
from costguard.checkpoints.remote import open_store
from costguard.checkpoints.scratch import Due, Scratch, ScratchRegistry
from costguard.cli.cold_options import add_store_options, own_folder, store_options
from costguard.errors import config_error
from costguard.units import NS_PER_S, format_bytes, format_duration_s, parse_duration_ns

SCHEMA_VERSION = 1
OK, FAILED = 0, 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("scratch", help="temporary places with a time to live")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    adding = _action(actions, "add", "register an empty folder or prefix, or give one more time", _add)
    adding.add_argument("place", metavar="PLACE", help="a folder, or the URL of a prefix")
    adding.add_argument("--ttl", required=True, help="how long it lives after it was last written to: 90m, 12h, 7d, 2w")
    adding.add_argument("--note", default="", help="what it is for")
    listing = _action(actions, "ls", "all registered places", _ls)
    checked = _action(actions, "verified", "what was made from a place is checked, so it goes at the next sweep", _free)
    checked.add_argument("place", metavar="PLACE", help="as it was registered")
    sweeping = _action(actions, "sweep", "delete the places whose time is over; without --yes only says which", _sweep)
    sweeping.add_argument("--yes", action="store_true", help="do it")
    for reading in (listing, sweeping):
        reading.add_argument("--json", action="store_true", help="JSON on stdout")


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text)
    parser.add_argument("--registry", metavar="FOLDER", help="folder of the list; as a rule this user's own")
    add_store_options(parser)
    parser.set_defaults(run=run)
    return parser


def _registry(arguments: argparse.Namespace) -> ScratchRegistry:
    options = store_options(arguments)
    folder = arguments.registry or own_folder("scratch")
    return ScratchRegistry(folder, open_store=lambda url: open_store(url, **options))


def _ttl_s(text: str) -> float:
    try:
        return parse_duration_ns(text) / NS_PER_S
    except ValueError as error:
        raise config_error(f"--ttl {text}: {error}.") from None


def _add(arguments: argparse.Namespace) -> int:
    made = _registry(arguments).register(arguments.place, _ttl_s(arguments.ttl), arguments.note)
    print(f"{scrub_url(made.place)} lives {format_duration_s(made.ttl_ns / 1e9)} after it was last written to.")
    return OK


def _ls(arguments: argparse.Namespace) -> int:
    entries = [_entry(each) for each in _registry(arguments).entries()]
    if arguments.json:
        print(json.dumps({"schema_version": SCHEMA_VERSION, "scratch": entries}, indent=2))
        return OK
    for each in entries:
        marks = ", verified" if each["verified"] else ""
        note = f", {each['note']}" if each["note"] else ""
        print(f"{each['place']}: {format_duration_s(each['ttl_s'])}, since {each['made_at']}{marks}{note}")
    print(f"{len(entries)} places")
    return OK


def _entry(scratch: Scratch) -> dict[str, Any]:
    data = asdict(scratch)
    ttl_ns, made_ns = data.pop("ttl_ns"), data.pop("made_ns")
    made_at = datetime.fromtimestamp(made_ns // 10**9, timezone.utc).isoformat()
    return {**data, "place": scrub_url(scratch.place), "ttl_s": ttl_ns / 1e9, "made_at": made_at}


def _free(arguments: argparse.Namespace) -> int:
    entry = _registry(arguments).verified(arguments.place)
    print(f"{scrub_url(entry.place)} goes at the next sweep.")
    return OK


def _sweep(arguments: argparse.Namespace) -> int:
    registry = _registry(arguments)
    told = registry.sweep() if arguments.yes else registry.due()
    if arguments.json:
        places = [_due(each) for each in told]
        print(json.dumps({"schema_version": SCHEMA_VERSION, "done": arguments.yes, "places": places}, indent=2))
    else:
        for each in told:
            does = ("deleted" if arguments.yes else "would delete") if each.sweepable else "stays:"
            print(f"{does} {scrub_url(each.scratch.place)} ({format_bytes(each.size_bytes)}): {each.reason}")
        going = sum(each.sweepable for each in told)
        print(f"{going} places" + ("" if arguments.yes or not going else "; --yes does it"))
    return OK if all(each.sweepable for each in told) else FAILED


def _due(each: Due) -> dict[str, Any]:
    place = scrub_url(each.scratch.place)
    return {"place": place, "bytes": each.size_bytes, "reason": each.reason, "sweepable": each.sweepable}
