"""The command `costguard`: one subcommand a file, each returning its exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from costguard import __version__
from costguard.cli import archive, backtest, budget, ckpt, doctor, mfu, peak, pot, prices, report, scratch
from costguard.errors import ConfigError, CostguardError, RunNotFoundError

OK, INTERNAL, USAGE, MISSING = 0, 1, 2, 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; those of the process if `None`.

    Returns:
        0 ok, 1 internal error, 2 usage, 5 missing data (3 and 4 are kept for budgets and preflight).
    """
    parser = argparse.ArgumentParser(prog="costguard", description="What a training run costs, and where it went.")
    parser.add_argument("--version", action="version", version=f"costguard {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    report.add_parser(commands)
    budget.add_parser(commands)
    pot.add_parser(commands)
    ckpt.add_parser(commands)
    archive.add_parser(commands)
    scratch.add_parser(commands)
    prices.add_parser(commands)
    backtest.add_parser(commands)
    mfu.add_parser(commands)
    peak.add_parser(commands)
    doctor.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except RunNotFoundError as error:
        return _fail(error, MISSING)
    except ConfigError as error:
        return _fail(error, USAGE)
    except (CostguardError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of a pipe went away; that is its right.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        return _fail(error, INTERNAL)
    return code


def _fail(error: Exception, code: int) -> int:
    print(f"costguard: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
