"""Budgets of processes that are killed, and of several at once: all attempts together keep the limit."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from budget_process import SAVE_EVERY

from budgeted import checked
from costguard.pots import Pot
from helpers import Child, receipt_of, start

SCRIPT = Path(__file__).with_name("budget_process.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def _read_steps(child: Child, number: int) -> None:
    """Read its reports until it has done so many steps."""
    seen = [0]

    def enough(line: str) -> bool:
        seen[0] += line.strip().isdigit()
        return seen[0] >= number

    child.read_until(enough)


def test_what_a_killed_attempt_has_spent_counts(tmp_path: Path) -> None:
    """`kill -9`, a restart from the last checkpoint, and a stop at the limit of both together; a third is refused."""
    first = start(SCRIPT, tmp_path, "r", 30)
    _read_steps(first, SAVE_EVERY + 50)
    first.process.kill()
    first.finish()
    second = start(SCRIPT, tmp_path, "r", 30).finish(120)
    assert second.code == 93, second.err[-3000:]
    receipt = checked(receipt_of(tmp_path / "costguard" / "r"), 30)
    dead, stopped = receipt["run"]["attempts"]
    assert (dead["ended"], stopped["ended"]) == ("died", "closed")
    assert stopped["first_step"] == SAVE_EVERY
    assert dead["rework_steps"] >= 50
    third = start(SCRIPT, tmp_path, "r", 30).finish(120)
    assert third.code == 93, third.err[-3000:]
    assert "Not started" in third.out
    assert not any(line.strip().isdigit() for line in third.out.splitlines())
    receipt = receipt_of(tmp_path / "costguard" / "r")
    assert len(receipt["run"]["attempts"]) == 3
    assert [v["action"] for v in receipt["verdicts"]][-1] == "refuse"


def test_two_runs_at_once_share_a_pot_though_one_is_killed(tmp_path: Path) -> None:
    """Receipts of both, of all attempts, stay at or under the pot; nothing is in hand any more at the end."""
    url = str(tmp_path / "pot")
    Pot.create(url, limit_usd=60, voucher="0.5")
    one, other = (start(SCRIPT, tmp_path, name, 1000, url) for name in ("one", "other"))
    _read_steps(one, 50)
    one.process.kill()
    one.finish()
    again = start(SCRIPT, tmp_path, "one", 1000, url).finish(150)
    other.finish(150)
    assert (again.code, other.code) == (93, 93), again.err[-2000:] + other.err[-2000:]
    spent = [Decimal(receipt_of(tmp_path / "costguard" / name)["spend"]["total"]) for name in ("one", "other")]
    assert receipt_of(tmp_path / "costguard" / "one")["time"]["activities_ns"]["gap"] > 0
    assert sum(spent) <= 60, spent
    status = Pot.open(url).status()
    assert status.live == 0
    assert status.spent <= 60
    assert abs(status.spent - sum(spent)) < 6, "exits are estimated by the journal and seen by nobody else"
