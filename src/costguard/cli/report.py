"""`costguard report`: the receipt of a run as text, JSON or page."""

from __future__ import annotations

import argparse
import sys

from costguard.errors import ConfigError
from costguard.reports.receipt import load_receipt


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line."""
    parser = commands.add_parser(
        "report", help="show what a run cost and where it went", description="Show what a run cost and where it went."
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", help="the run's folder, any folder above it that holds exactly one run, or a URL"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (with a schema_version) and nothing else")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page to FILE")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    receipt = load_receipt(arguments.run_dir)
    if arguments.html:
        try:
            receipt.write_html(arguments.html)
        except OSError as error:
            raise ConfigError(f"--html {arguments.html}: {error.strerror or error}; give a file to write.") from error
        print(f"costguard: wrote {arguments.html}", file=sys.stderr)
    if arguments.json:
        print(receipt.json())
    elif not arguments.html:
        print(receipt.text())
    return 0
