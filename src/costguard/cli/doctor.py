"""`costguard doctor`: what is recognised of this machine, and why what is unknown is unknown."""

from __future__ import annotations

import argparse
import json
import os

from costguard.reports.machine import describe_machine
from costguard.reports.machine_text import render_machine


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="show what is recognised of this machine: GPUs and their peaks, the job, the disk",
        description="Show what is recognised of this machine and why: versions, GPUs and their peaks, the job that "
        "pays, and whether the current folder's disk dies with the machine. It needs neither torch nor a GPU.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (with a schema_version) and nothing else")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from costguard.hardware.inventory import read_inventory

    machine = describe_machine(read_inventory(), os.environ, os.getcwd())
    print(json.dumps(machine, indent=2) if arguments.json else render_machine(machine))
    return 0
