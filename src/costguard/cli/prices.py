"""`costguard prices storage`: what each class of storage costs, from whom and when, and when a move there pays."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final

from costguard.prices.storage import DAYS_PER_MONTH, STORAGE_CLASSES, StorageClass, storage_class

SCHEMA_VERSION = 1
OK = 0
HOT_CLASSES: Final = ("s3:STANDARD", "ebs:gp3")
"""What break-even lives are shown against: a bucket's own class, and the disk of a cloud machine."""
_HEADS: Final = ("CLASS", "$/GB-month", "min. days", "$/GB read", "$/1000 puts", "readable", *HOT_CLASSES)
_BELOW: Final = """
The last two columns: days that a thing must still live for a move from there to pay, its requests left out; - never.
Prices differ by region and by contract: give CheckpointTiering a StorageClass with your own in place of a name."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("prices", help="the price tables, each price with its source and date")
    tables = parser.add_subparsers(dest="table", metavar="TABLE", required=True)
    storage = tables.add_parser("storage", help="classes of storage: price, minimum, reading, requests, break-even")
    storage.add_argument("classes", metavar="CLASS", nargs="*", help="such as s3:GLACIER_IR; all if none is named")
    storage.add_argument("--json", action="store_true", help="JSON on stdout")
    storage.set_defaults(run=_storage)


def _storage(arguments: argparse.Namespace) -> int:
    classes = [_entry(name, storage_class(name)) for name in arguments.classes or STORAGE_CLASSES]
    if arguments.json:
        data = {"schema_version": SCHEMA_VERSION, "currency": "USD", "month_days": DAYS_PER_MONTH, "classes": classes}
        print(json.dumps(data, indent=2))
    else:
        print(_text(classes))
    return OK


def _entry(name: str, each: StorageClass) -> dict[str, Any]:
    even = {hot: each.break_even_days(storage_class(hot)) for hot in HOT_CLASSES}
    days = {hot: None if days is None else float(days) for hot, days in even.items()}
    return {"class": name, **each.to_json(), "break_even_days": days}


def _text(classes: Sequence[dict[str, Any]]) -> str:
    rows = [_HEADS, *(_row(each) for each in classes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = []
    for name, *figures in rows:
        cells = (text.rjust(width) for text, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *cells]))
    sources = sorted({f"{each['source']} ({each['as_of']})" for each in classes})
    return "\n".join([*lines, _BELOW, *(f"Source: {source}." for source in sources)])


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    hours = each["restore_hours"]
    days = (each["break_even_days"][hot] for hot in HOT_CLASSES)
    return (
        each["class"],
        each["usd_per_gb_month"],
        str(each["minimum_days"]),
        each["retrieval_usd_per_gb"] or "unknown",
        each["put_usd_per_1000"] or "unknown",
        f"in {hours:g} h" if hours else "at once",
        *("-" if even is None else f"{even:.1f}" for even in days),
    )
