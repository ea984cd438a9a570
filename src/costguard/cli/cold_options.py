"""What the commands that open a cold store have in common: its options, its class, and where their own lists lie."""

from __future__ import annotations

import argparse
import os
from typing import Any

from costguard.errors import config_error


def add_store_options(parser: argparse.ArgumentParser, *, storage_class: bool = False) -> None:
    """Add the options of a store.

    Args:
        parser: The command's.
        storage_class: Whether its class can be chosen here.
    """
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="given to fsspec, such as endpoint_url=https://minio.example; credentials belong into the environment or "
        "fsspec's own configuration, since others can read a command line",
    )
    parser.add_argument(
        "--allow-plain-http", action="store_true", help="speak to a store that is not this machine without TLS"
    )
    if storage_class:
        parser.add_argument("--storage-class", metavar="CLASS", help="a class of the price table: s3:GLACIER_IR")


def store_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options as `Cold` and `open_store` take them.

    Raises:
        ConfigError: If one has no value.
    """
    options: dict[str, Any] = {}
    for each in arguments.storage_option:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise config_error(f"--storage-option {name}: expected NAME=VALUE, such as region_name=eu-central-1.")
        options[name] = value
    return {"storage_options": options or None, "allow_plain_http": arguments.allow_plain_http}


def own_folder(name: str) -> str:
    """A folder of this user's for lists that belong to no run: below `XDG_STATE_HOME`, as a rule `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "costguard", name)
