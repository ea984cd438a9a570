"""`costguard ckpt`: the checkpoints of a run in both tiers; each action is in one of the modules beside this one."""

from __future__ import annotations

import argparse

from costguard.cli import ckpt_moves, ckpt_plan, ckpt_reading, ckpt_store


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("ckpt", help="the checkpoints of a run, hot and cold")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for module in (ckpt_reading, ckpt_plan, ckpt_moves, ckpt_store):
        module.add_actions(actions)
