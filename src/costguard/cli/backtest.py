"""`costguard backtest`: how good the forecasts of a run were, now that it has ended."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from costguard.errors import RunNotFoundError, config_error
from costguard.ledger.account import RunAccount
from costguard.ledger.load import load_run
from costguard.ledger.samples import samples_of
from costguard.plan.backtest import Outcome, backtest, outcome_of, score
from costguard.plan.forecast import Forecast
from costguard.plan.series import Plan, Replay

SCHEMA_VERSION = 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("backtest", help="score the forecasts of a run that has ended")
    parser.add_argument("run_dir", help="folder or URL of the run")
    parser.add_argument("--steps", type=int, help="optimizer steps of the plan; by default those that were done")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.steps is not None and arguments.steps < 1:
        raise config_error(f"costguard backtest --steps {arguments.steps}: expected optimizer steps of at least 1.")
    folder, account = load_run(arguments.run_dir)
    samples = samples_of(account)
    done = samples[-1].done if samples else 0
    if done < 1:
        raise RunNotFoundError(f"the run in {folder} has trained nothing: there is nothing to score.")
    replay = Replay(plan=Plan(total=arguments.steps or done), samples=samples)
    made_again = backtest(replay)
    written = [outcome_of(made, samples[-1].elapsed_ns) for made in _written(account)]
    data = {
        "schema_version": SCHEMA_VERSION,
        "run": account.run_id,
        "real_s": samples[-1].elapsed_ns / 1e9,
        "made_again": [_row(outcome) for outcome in made_again],
        "written": [_row(outcome) for outcome in written],
    }
    print(json.dumps(data, indent=2) if arguments.json else _text(data, made_again, written))
    return 0


def _written(account: RunAccount) -> list[Forecast]:
    """Forecasts that were made while it ran, as the journal keeps them."""
    return [Forecast.from_json(e["made"]) for rank in account.ranks for e in rank.events if e["k"] == "forecast"]


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "progress": outcome.progress,
        "forecast_s": outcome.forecast / 1e9,
        "low_s": outcome.low / 1e9,
        "high_s": outcome.high / 1e9,
        "error": outcome.error,
        "naive_error": outcome.naive_error,
        "covered": outcome.covered,
    }


def _text(data: dict[str, Any], made_again: Sequence[Outcome], written: Sequence[Outcome]) -> str:
    lines = [f"run {data['run']} took {data['real_s']:,.1f} s of paid time"]
    lines += _table("forecasts made again from its journal", made_again)
    lines += _table("forecasts as written while it ran", written)
    return "\n".join(lines)


def _table(title: str, outcomes: Sequence[Outcome]) -> list[str]:
    total = score(outcomes)
    if total is None:
        return ["", f"{title}: none"]
    rows = [
        f"{o.progress:>10.0%}{o.error:>+10.1%}{o.naive_error:>+14.1%}{'yes' if o.covered else 'no':>10}"
        for o in outcomes
    ]
    heads = f"{'progress':>10}{'error':>10}{'rule of three':>14}{'in band':>10}"
    sums = f"median error {total.error:.1%}, bias {total.bias:+.1%}, in band {total.coverage:.0%}"
    return ["", title, heads, *rows, sums]
