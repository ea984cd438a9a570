"""`costguard archive`: any folder into cold storage by the protocol of checkpoints, and back."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from datetime import datetime, timezone
from typing import Any

from costguard.checkpoints.archive import ArchivePlan, archive, archived, plan_archive
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.record import Record
from costguard.checkpoints.remote import open_store
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room
from costguard.cli.cold_options import add_store_options, own_folder, store_options
from costguard.cli.progress import progress
from costguard.errors import RunNotFoundError, config_error
from costguard.prices.storage import storage_class
from costguard.units import format_bytes, format_money, plain, round_money

SCHEMA_VERSION = 1
OK = 0
_NAME = "archive"
_USAGE = (
    "expected `archive PATH COLD_URL`, `archive ls COLD_URL` or `archive restore COLD_URL ID --to PATH` "
    "(a folder called ls is ./ls)."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "archive",
        help="move any folder to cold storage, verified, and back",
        usage="costguard archive [options] (PATH COLD_URL | ls COLD_URL | restore COLD_URL ID --to PATH)",
    )
    parser.add_argument("words", nargs="+", metavar="PATH COLD_URL", help="or: ls COLD_URL; restore COLD_URL ID")
    parser.add_argument("--yes", action="store_true", help="do it; without it only what it would do is said")
    parser.add_argument("--delete", action="store_true", help="delete PATH here once its copy is complete and verified")
    parser.add_argument("--to", metavar="PATH", help="where a restored copy goes")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    add_store_options(parser, storage_class=True)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    words = arguments.words
    if words[0] == "ls" and len(words) == 2:
        return _ls(arguments, words[1])
    if words[0] == "restore" and len(words) == 3:
        return _restore(arguments, words[1], words[2])
    if words[0] in ("ls", "restore") or len(words) != 2:
        raise config_error(f"costguard archive {' '.join(words)}: {_USAGE}")
    return _archive(arguments, *words)


def _room(arguments: argparse.Namespace, url: str) -> Room:
    """The archive at a URL; its list on this machine can be made again from the store."""
    place = url if "://" in url else os.path.abspath(url)
    prices = storage_class(arguments.storage_class) if arguments.storage_class else None
    kind = prices.name if prices is not None and url.startswith("s3") else None
    store = open_store(place, storage_class=kind and kind.split(":", 1)[-1], **store_options(arguments))
    folder = own_folder(os.path.join("archives", hashlib.sha256(store.url.encode()).hexdigest()[:16]))
    files = HotFiles()
    return Room(
        inventory=Inventory(folder, files),
        files=files,
        store=store,
        run=_NAME,
        storage_class=prices,
        keep_newest=False,
    )


def _archive(arguments: argparse.Namespace, path: str, url: str) -> int:
    room = _room(arguments, url)
    planned = plan_archive(room, path)
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "path": planned.path,
        "cold": room.cold.url,
        "files": planned.files,
        "bytes": planned.size_bytes,
        "requests": planned.requests,
        "usd_per_month": None if planned.usd_per_month is None else plain(round_money(planned.usd_per_month)),
        "usd_fee": None if planned.usd_fee is None else plain(round_money(planned.usd_fee)),
        "done": arguments.yes,
        "deleted": arguments.yes and arguments.delete,
        "id": _archived(room, planned, delete=arguments.delete) if arguments.yes else None,
    }
    print(json.dumps(data, indent=2) if arguments.json else _text(data, delete=arguments.delete))
    return OK


def _archived(room: Room, planned: ArchivePlan, *, delete: bool) -> str:
    with progress(room, f"archive {planned.path}", planned.size_bytes):
        return archive(room, planned.path, delete=delete).id


def _text(data: dict[str, Any], *, delete: bool) -> str:
    what = f"{data['files']} files, {format_bytes(data['bytes'])}, of {data['path']} to {data['cold']}"
    if data["usd_per_month"] is not None:
        fee = "an unknown price" if data["usd_fee"] is None else format_money(data["usd_fee"])
        what += f"; {format_money(data['usd_per_month'])} a month, {fee} once for its requests"
    if not data["done"]:
        return f"would copy {what}{' and delete them here' if delete else ''}; --yes does it"
    return f"copied and verified {what}{'; deleted here' if data['deleted'] else ''}. id {data['id']}"


def _ls(arguments: argparse.Namespace, url: str) -> int:
    room = _room(arguments, url)
    found = [_entry(record) for record in archived(room)]
    if arguments.json:
        print(json.dumps({"schema_version": SCHEMA_VERSION, "cold": room.cold.url, "archived": found}, indent=2))
    else:
        for each in found:
            print(f"{each['id']}  {each['archived_at']}  {format_bytes(each['bytes']):>9}  {each['path']}")
        print(f"{len(found)} in {room.cold.url}")
    return OK


def _entry(record: Record) -> dict[str, Any]:
    at = datetime.fromtimestamp((record.cold_since_ns or 0) // 10**9, timezone.utc).isoformat()
    return {"id": record.id, "path": record.origin or record.path, "bytes": record.size_bytes, "archived_at": at}


def _restore(arguments: argparse.Namespace, url: str, id: str) -> int:
    if not arguments.to:
        raise config_error("costguard archive restore: --to PATH is missing; say where the copy goes.")
    room = _room(arguments, url)
    known = [record for record in archived(room) if record.id == id]
    if not known:
        raise RunNotFoundError(f"{id}: not in {room.cold.url}; `costguard archive ls` names what is.")
    with progress(room, f"restore {id}", known[0].size_bytes):
        path = restore(room, id, to=os.path.abspath(arguments.to))
    data = {"schema_version": SCHEMA_VERSION, **_entry(known[0]), "restored_to": path}
    print(json.dumps(data, indent=2) if arguments.json else f"verified: {path}")
    return OK
