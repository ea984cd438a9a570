"""`costguard budget`: what a run may still spend, and who lets it spend more."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from costguard.errors import config_error
from costguard.ledger.account import RunAccount
from costguard.ledger.control import ControlLog, raised_limit, standing_stop
from costguard.ledger.load import load_run
from costguard.ledger.spending import Spent, spent_by
from costguard.ledger.store_files import files_of
from costguard.units import NS_PER_HOUR, format_money, parse_money, plain, round_money

SCHEMA_VERSION = 1
OK, BREACHED, UNKNOWN = 0, 3, 5
_EVER_NS = 1 << 62


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("budget", help="what a run may still spend, and who lets it spend more")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (
        ("show", "limits, what is spent, and what was decided"),
        ("check", "exit 3 if a limit is reached or the run is stopped for good, 5 if unknown; for CI"),
    ):
        reading = actions.add_parser(name, help=text)
        reading.add_argument("run_dir", help="folder or URL of the run")
        reading.add_argument("--json", action="store_true", help="JSON on stdout")
        reading.set_defaults(run=_show if name == "show" else _check)
    raising = actions.add_parser("raise", help="raise a limit, which also lets a stopped run go on")
    raising.add_argument("run_dir", help="folder or URL of the run")
    raising.add_argument("--to", required=True, help="the new limit, in the budget's unit, such as 300")
    raising.add_argument("--budget", help="which, as `show` names it, such as run/usd/billed; where there are several")
    raising.add_argument("--why", required=True, help="the reason, for whoever asks later")
    raising.set_defaults(run=_raise)
    resuming = actions.add_parser("resume", help="let a stopped run go on with the limits it has")
    resuming.add_argument("run_dir", help="folder or URL of the run")
    resuming.add_argument("--why", required=True, help="the reason, for whoever asks later")
    resuming.set_defaults(run=_resume)


def _show(arguments: argparse.Namespace) -> int:
    data = _read(arguments.run_dir)
    print(json.dumps(data, indent=2) if arguments.json else _text(data))
    return OK


def _check(arguments: argparse.Namespace) -> int:
    data = _read(arguments.run_dir)
    breached = data["stopped"] is not None or any(budget["reached"] for budget in data["budgets"])
    print(json.dumps({**data, "breached": breached}, indent=2) if arguments.json else _text(data))
    unknown = any(budget["reached"] is None for budget in data["budgets"])
    return BREACHED if breached else UNKNOWN if unknown else OK


def _reason(arguments: argparse.Namespace) -> str:
    why: str = arguments.why.strip()
    if not why:
        raise config_error(
            f"costguard budget {arguments.action} --why {arguments.why!r}: expected a reason; it is kept with the run."
        )
    return why


def _raise(arguments: argparse.Namespace) -> int:
    why = _reason(arguments)
    folder, account = load_run(arguments.run_dir)
    control = ControlLog(folder, files_of(folder))
    limits = _limits(account, control)
    key = arguments.budget or (next(iter(limits)) if len(limits) == 1 else None)
    if key not in limits:
        known = ", ".join(limits) or "none"
        raise config_error(f"costguard budget raise --budget {arguments.budget}: expected one of this run's: {known}.")
    try:
        to = Fraction(parse_money(arguments.to))
    except ValueError:
        raise config_error(f"costguard budget raise --to {arguments.to}: expected a number such as 300.") from None
    before = limits[key]
    if to <= before:
        raise config_error(
            f"costguard budget raise --to {arguments.to}: expected more than the limit of {plain(round_money(before))}."
        )
    said = {"budget": key, "from": plain(round_money(before)), "to": plain(round_money(to)), "why": why}
    decision = control.append("raise", **said)
    print(
        f"{key}: {said['from']} to {said['to']} by {decision.fields['who']} at {decision.fields['at']}: {said['why']}"
    )
    return OK


def _resume(arguments: argparse.Namespace) -> int:
    why = _reason(arguments)
    folder, _ = load_run(arguments.run_dir)
    control = ControlLog(folder, files_of(folder))
    if standing_stop(control.decisions()) is None:
        print("Nothing to resume: no stop stands.")
        return OK
    decision = control.append("resume", why=why)
    print(f"May go on, by {decision.fields['who']} at {decision.fields['at']}: {why}")
    return OK


def _limits(account: RunAccount, control: ControlLog) -> dict[str, Fraction]:
    said = (account.fact("budget") or {}).get("limits", {})
    decisions = control.decisions()
    return {key: raised_limit(decisions, key, Fraction(limit)) for key, limit in said.items()}


def _read(place: str) -> dict[str, Any]:
    folder, account = load_run(place)
    control = ControlLog(folder, files_of(folder))
    stop = standing_stop(control.decisions())
    spent = spent_by(account, 0, _EVER_NS)
    rates = (account.fact("budget") or {}).get("rates", {})
    return {
        "schema_version": SCHEMA_VERSION,
        "run": account.run_id,
        "dir": folder,
        "budgets": [_budget(key, limit, spent, rates.get(key)) for key, limit in _limits(account, control).items()],
        "pot": (account.fact("pot") or {}).get("url"),
        "stopped": None if stop is None else {"at": stop.fields["at"], "message": stop.fields.get("message")},
        "decisions": [{"number": d.number, **d.fields} for d in control.decisions()],
    }


def _budget(key: str, limit: Fraction, spent: Spent, rate: str | None) -> dict[str, Any]:
    scope, unit, _ = key.rsplit("/", 2)
    used: Fraction | None = None
    if scope == "run":  # what other runs have spent is known only where they lie
        hours = Fraction(spent.amount.device_ns, NS_PER_HOUR)
        money = None if spent.unpriced_ns or spent.amount.money is None else spent.amount.money * Fraction(rate or 1)
        used = hours if unit == "gpu_hours" else money
    return {
        "budget": key,
        "limit": plain(round_money(limit)),
        "spent": None if used is None else plain(round_money(used)),
        "reached": None if used is None else used >= limit,
    }


def _text(data: Mapping[str, Any]) -> str:
    lines = [f"run {data['run']}   {data['dir']}"]
    for budget in data["budgets"]:
        unit = budget["budget"].rsplit("/", 2)[1]
        limit, spent = (_amount(budget[name], unit) for name in ("limit", "spent"))
        lines.append(f"{budget['budget']}: {spent} of {limit}" + ("   REACHED" if budget["reached"] else ""))
    if data["pot"] is not None:
        lines.append(f"holds credit of the pot {data['pot']}; `costguard pot show` has its figures")
    if not data["budgets"] and data["pot"] is None:
        lines.append("no budget: nothing limits this run; add BudgetStopping(limit_usd=...) to its Trainer")
    if data["stopped"] is not None:
        lines.append(f"STOPPED for good at {data['stopped']['at']}: {data['stopped']['message']}")
    for decision in data["decisions"]:
        lines.append(f"{decision['number']}. {decision['at']} {decision['kind']} by {decision['who']}{_said(decision)}")
    return "\n".join(lines)


def _said(decision: Mapping[str, Any]) -> str:
    what = f", {decision['budget']} from {decision['from']} to {decision['to']}" if decision["kind"] == "raise" else ""
    why = decision.get("why") or decision.get("message")
    return what + (f": {why}" if why else "")


def _amount(amount: str | None, unit: str) -> str:
    if amount is None:
        return "unknown"
    return f"{float(Fraction(amount)):,.4g} GPU-hours" if unit == "gpu_hours" else format_money(amount)
