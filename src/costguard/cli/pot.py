"""`costguard pot`: one budget for many runs, made, shown, raised and swept."""

from __future__ import annotations

import argparse
import json

from costguard.pots import Pot, PotStatus


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("pot", help="one budget for many runs, with no server")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    creating = actions.add_parser("create", help="make a pot in a folder or bucket that all runs reach")
    creating.add_argument("url", help="folder or URL, such as s3://bucket/pots/thesis")
    limit = creating.add_mutually_exclusive_group(required=True)
    limit.add_argument("--limit-usd", help="US dollars that all runs together may spend")
    limit.add_argument("--limit-gpu-hours", help="GPU-hours instead")
    creating.add_argument("--soft-runs", type=int, help="for stores without exclusive create: how many runs at once")
    creating.set_defaults(run=_create)
    showing = actions.add_parser("show", help="what is spent, in hand and free")
    showing.add_argument("url", help="folder or URL of the pot")
    showing.add_argument("--json", action="store_true", help="JSON on stdout")
    showing.set_defaults(run=_show)
    raising = actions.add_parser("raise", help="raise the limit, with a line that says who and why")
    raising.add_argument("url", help="folder or URL of the pot")
    raising.add_argument("--to", required=True, help="the new limit")
    raising.add_argument("--why", required=True, help="the reason, for whoever asks later")
    raising.set_defaults(run=_raise)
    sweeping = actions.add_parser("sweep", help="give back what crashed runs had in hand")
    sweeping.add_argument("url", help="folder or URL of the pot")
    sweeping.set_defaults(run=_sweep)


def _create(arguments: argparse.Namespace) -> int:
    pot = Pot.create(
        arguments.url,
        limit_usd=arguments.limit_usd,
        limit_gpu_hours=arguments.limit_gpu_hours,
        soft_runs=arguments.soft_runs,
    )
    print(_text(pot.status()))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    status = Pot.open(arguments.url).status()
    print(json.dumps(status.to_json(), indent=2) if arguments.json else _text(status))
    return 0


def _raise(arguments: argparse.Namespace) -> int:
    raised = Pot.open(arguments.url).raise_limit(to=arguments.to, why=arguments.why)
    print(f"{raised.start} to {raised.to} by {raised.who} at {raised.at}: {raised.why}")
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    swept = Pot.open(arguments.url).sweep()
    for each in swept:
        print(each)
    print(f"{len(swept)} holders swept.")
    return 0


def _text(status: PotStatus) -> str:
    unit = "US dollars" if status.unit == "usd" else "GPU-hours"
    lines = [
        f"pot {status.url} ({status.mode}), in {unit}",
        f"limit {status.limit}, spent {status.spent}, in hand {status.live}, free {status.free}",
    ]
    if status.overshoot_bound:
        lines.append(f"the store has no exclusive create: the limit may be passed by up to {status.overshoot_bound}")
    lines += [f"raised from {r.start} to {r.to} by {r.who} at {r.at}: {r.why}" for r in status.raises]
    return "\n".join(lines)
