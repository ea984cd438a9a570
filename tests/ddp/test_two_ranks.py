"""Two gloo processes: each rank meters itself, and the run's account is that of both."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from two_ranks import STEPS, WIDTHS

from helpers import Child, assert_close, receipt_of, run_folders, start, total_ns

SCRIPT = Path(__file__).with_name("two_ranks.py")
NAMES = ["unequal", "idle", "resumed", "fails"]
HOUR_NS = 3600 * 10**9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ddp")


@pytest.fixture(scope="module")
def process(folder: Path) -> Child:
    """The process of rank 0, which starts that of rank 1."""
    child = start(SCRIPT, folder).finish()
    assert child.code == 0, child.err
    return child


@pytest.fixture(scope="module")
def receipts(process: Child, folder: Path) -> dict[str, dict[str, Any]]:
    return {name: receipt_of(folder / name) for name in NAMES}


def _lifetime(folder: Path, rank: int) -> int:
    """How long a rank's process lived, up to its last exit handler."""
    times = json.loads((folder / f"rank-{rank}.json").read_text())
    return int(times["end_ns"] - times["begin_ns"])


def _estimated(receipt: dict[str, Any]) -> int:
    """What comes after the last exit handler."""
    return int(receipt["time"]["estimated_ns"].get("teardown", 0))


@pytest.mark.parametrize("name", NAMES)
def test_both_ranks_close(receipts: dict[str, dict[str, Any]], name: str) -> None:
    """Each attempt has two ranks that ended in order, also after an exception on both."""
    *earlier, attempt = receipts[name]["run"]["attempts"]
    assert len(earlier) == (name == "resumed")
    assert all((a["ranks"], a["ended"], a["device"]) == (2, "closed", "CPU") for a in (*earlier, attempt))
    assert (attempt["reason"] is not None) == (name == "fails")


@pytest.mark.parametrize("name", NAMES)
def test_segments_of_both_ranks_lie_in_one_folder(receipts: dict[str, dict[str, Any]], folder: Path, name: str) -> None:
    """One run, one folder, a segment for each rank of each attempt."""
    (run,) = run_folders(folder / name)
    assert len(list(run.glob("*.jsonl"))) == 2 * len(receipts[name]["run"]["attempts"])


@pytest.mark.parametrize(("name", "steps"), [("unequal", STEPS), ("idle", STEPS), ("fails", 2)])
def test_tokens_are_summed_over_ranks(receipts: dict[str, dict[str, Any]], name: str, steps: int) -> None:
    """Batches of unequal size: each rank's own tokens, never rank 0's twice."""
    assert receipts[name]["tokens"]["trained"] == steps * sum(WIDTHS)
    assert receipts[name]["tokens"]["samples"] == 2 * steps
    assert receipts[name]["run"]["attempts"][0]["last_step"] == steps
    assert receipts[name]["flops"]["estimate_6nd"] == 6 * 1 * steps * sum(WIDTHS)


def test_device_time_is_that_of_both_processes(receipts: dict[str, dict[str, Any]], folder: Path) -> None:
    """All runs of both processes are both processes' lives: each second counts once a rank."""
    unused = receipts["idle"]["time"]["activities_ns"]["idle"]
    assert _estimated(receipts["fails"]) > 0
    metered = total_ns(receipts.values()) - unused - _estimated(receipts["fails"])
    assert_close(metered, _lifetime(folder, 0) + _lifetime(folder, 1))


def test_unused_devices_are_idle(receipts: dict[str, dict[str, Any]]) -> None:
    """Four devices paid for and two used: half of the device time is idle."""
    when = receipts["idle"]["time"]
    (attempt,) = receipts["idle"]["run"]["attempts"]
    assert (attempt["paid_devices"], attempt["idle_devices"]) == (4, 2)
    assert_close(2 * when["activities_ns"]["idle"], when["elapsed_device_ns"])


@pytest.mark.parametrize(("name", "devices"), [("unequal", 2), ("idle", 4)])
def test_price_of_the_allocation_is_shared_by_its_devices(
    receipts: dict[str, dict[str, Any]], name: str, devices: int
) -> None:
    """`usd_per_hour` is the whole allocation's: device time costs it once, not once a rank."""
    exact = Fraction("7.2") * receipts[name]["time"]["elapsed_device_ns"] / (devices * HOUR_NS)
    assert abs(Fraction(Decimal(receipts[name]["spend"]["total"])) - exact) <= Fraction(1, 10**12)


def test_ranks_resume_together(receipts: dict[str, dict[str, Any]]) -> None:
    """A checkpoint that rank 0 wrote says for both ranks where they go on, and what each of them does twice."""
    first, second = receipts["resumed"]["run"]["attempts"]
    assert (first["rework_batches"], first["rework_steps"]) == (2 * 2, 2)
    assert (second["first_step"], second["last_step"]) == (2, STEPS)
    assert receipts["resumed"]["tokens"]["trained"] == STEPS * sum(WIDTHS)
    assert receipts["resumed"]["tokens"]["rework"] == 2 * sum(WIDTHS)


def test_one_rank_fails_alone(tmp_path: Path) -> None:
    """Nothing in the exception's path waits for the other rank: both processes end and the account adds up."""
    child = start(SCRIPT, tmp_path, "one").finish()
    assert child.code != 0
    receipt = receipt_of(tmp_path)
    (attempt,) = receipt["run"]["attempts"]
    assert attempt["ranks"] == 2
    assert attempt["reason"] is not None
    assert attempt["batches"] - 2 * 2 in (0, 1)
    lives = _lifetime(tmp_path, 0) + _lifetime(tmp_path, 1)
    assert_close(receipt["time"]["elapsed_device_ns"] - _estimated(receipt), lives)
