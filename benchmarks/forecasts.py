"""How good the forecasts are, on simulated runs, beside the rule of three.

For each kind of run in `tests/replays.py` and each point of progress: the median absolute error of the forecast and of
the rule of three (spent over done), the signed bias, how often the 80% band holds what came, and its mean width.
Nothing was tuned on the seeds that are asked by default. Run `python benchmarks/forecasts.py [--runs 40]`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from costguard.plan.backtest import POINTS, Outcome, Score, backtest, score
from replays import SHAPES, replay

FIRST_SEED = 1000
UNFORESEEABLE = "slow second half"


def outcomes_of(scenario: str, runs: int) -> list[Outcome]:
    """All forecasts of some runs of a kind."""
    return [o for seed in range(FIRST_SEED, FIRST_SEED + runs) for o in backtest(replay(scenario, seed))]


def row(name: str, made: Score | None) -> str:
    """One line of the table."""
    if made is None:
        return name
    figures = (made.error, made.naive_error, made.bias, made.coverage, made.width)
    return f"{name:32}" + "".join(f"{figure:10.1%}" for figure in figures)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="runs of each kind")
    runs = parser.parse_args().runs
    print(f"{'':32}" + "".join(f"{name:>10}" for name in ("error", "naive", "bias", "coverage", "width")))
    foreseeable: list[Outcome] = []
    for scenario in SHAPES:
        outcomes = outcomes_of(scenario, runs)
        for point in POINTS:
            print(row(f"{scenario} at {point:.0%}", score(o for o in outcomes if o.progress == point)))
        print(row(f"{scenario}, all", score(outcomes)))
        foreseeable += outcomes if scenario != UNFORESEEABLE else []
    print(row(f"all but {UNFORESEEABLE}", score(foreseeable)))


if __name__ == "__main__":
    main()
