"""Seventeen ways to train, each a run of its own, in one process: every run closes exactly, and so does the process."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from many_runs import BATCHES, CASES

from helpers import TOKENS, Child, assert_adds_up, assert_close, receipt_of, start, total_ns

NAMES = [case.__name__ for case in CASES]
FAILED = {
    "exception_in_training_step": "RuntimeError: training_step failed",
    "exception_in_a_worker": "RuntimeError: worker failed",
    "exception_in_validation": "RuntimeError: validation_step failed",
    "exception_in_the_sanity_check": "RuntimeError: validation_step failed",
    "exception_in_setup": "RuntimeError: setup failed",
    "keyboard_interrupt": "SystemExit: 1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("many")


@pytest.fixture(scope="module")
def process(folder: Path) -> Child:
    """The one process that trains them all; its own tests ask about its receipts."""
    child = start(Path(__file__).with_name("many_runs.py"), folder).finish()
    assert child.code == 0, child.err
    return child


def _receipt(process: Child, folder: Path, name: str) -> dict[str, Any]:
    return receipt_of(folder / name)


@pytest.mark.parametrize("name", NAMES)
def test_run_closes_exactly(process: Child, folder: Path, name: str) -> None:
    """However training ended: activities add up to elapsed, outcomes to train, one closed attempt."""
    receipt = _receipt(process, folder, name)
    (attempt,) = receipt["run"]["attempts"]
    assert attempt["ended"] == "closed"
    assert attempt["ranks"] == 1
    assert attempt["elapsed_device_ns"] == receipt["time"]["elapsed_device_ns"] > 0


def test_runs_of_one_process_share_out_its_whole_time(process: Child, folder: Path) -> None:
    """A run begins where the run before it ended: all together are the process's life as seen from outside."""
    assert_close(total_ns(_receipt(process, folder, name) for name in NAMES), process.wall_ns)


def test_only_the_first_run_pays_for_the_start_of_the_process(process: Child, folder: Path) -> None:
    """The imports at the head of the script are the first run's; only the last one has an estimated exit."""
    first, *others = (_receipt(process, folder, name) for name in NAMES)
    startup = first["time"]["activities_ns"]["startup"]
    # torch takes 5 s to end the worker of the run that failed in one, and the run after it waits for that.
    waited = NAMES[NAMES.index("exception_in_a_worker") + 1]
    begins = zip(NAMES[1:], others, strict=True)
    assert all(startup > r["time"]["activities_ns"]["startup"] for name, r in begins if name != waited)
    assert [bool(r["time"]["estimated_ns"]) for r in (first, *others)] == [False] * len(others) + [True]


@pytest.mark.parametrize("name", NAMES)
def test_training_ends_as_it_would_without_the_monitor(process: Child, name: str) -> None:
    """The monitor swallows no exception and adds none."""
    ended = dict(line.split(" ", 1) for line in process.out.splitlines() if line.split(" ")[0] in NAMES)
    assert ended[name] == FAILED.get(name, "returned")


@pytest.mark.parametrize("name", NAMES)
def test_reason_is_the_exception(process: Child, folder: Path, name: str) -> None:
    """The attempt says which exception ended it, and nothing where none did."""
    reason = _receipt(process, folder, name)["run"]["attempts"][0]["reason"]
    if name not in FAILED:
        assert reason is None
    elif name == "keyboard_interrupt":
        assert reason == "KeyboardInterrupt"
    else:
        assert reason is not None
        assert reason.startswith("RuntimeError")


def test_no_warning_of_ours(process: Child) -> None:
    """None of these trainings makes costguard warn."""
    assert "costguard:" not in process.err


@pytest.mark.parametrize(
    ("name", "batches", "steps"),
    [
        ("exception_in_training_step", 3, 3),
        ("keyboard_interrupt", 3, 3),
        ("exception_in_validation", BATCHES, BATCHES),
        ("exception_in_the_sanity_check", None, 0),
        ("exception_in_setup", None, 0),
        ("two_fits", 2 * BATCHES, 2 * BATCHES),
        ("fit_validate_test_predict", BATCHES, BATCHES),
        ("validate_alone", None, 0),
        ("fast_dev_run", 1, 1),
        ("accumulate_grad_batches", 12, 3),
        ("manual_optimization", BATCHES, 2 * BATCHES),
        ("no_logger", BATCHES, BATCHES),
        ("csv_logger", BATCHES, BATCHES),
        ("tensorboard_logger", BATCHES, BATCHES),
        ("two_loggers", BATCHES, BATCHES),
    ],
)
def test_tokens_and_steps_are_counted(process: Child, folder: Path, name: str, batches: int | None, steps: int) -> None:
    """Tokens are those of the batches that were trained on, steps are the optimizer's; no batch means unknown."""
    receipt = _receipt(process, folder, name)
    (attempt,) = receipt["run"]["attempts"]
    assert receipt["tokens"]["trained"] == (None if batches is None else batches * TOKENS)
    assert receipt["tokens"]["padding"] == (None if batches is None else 0)
    assert (attempt["batches"], attempt["last_step"]) == (batches or 0, steps)
    assert attempt["rework_steps"] == 0


def test_exception_in_a_worker_keeps_what_was_trained(process: Child, folder: Path) -> None:
    """The two batches before the broken one count, and the worker's own exit changes nothing."""
    receipt = _receipt(process, folder, "exception_in_a_worker")
    assert receipt["tokens"]["trained"] == 2 * TOKENS


@pytest.mark.parametrize("name", ["exception_in_validation", "fit_validate_test_predict", "validate_alone"])
def test_validation_is_an_activity_of_its_own(process: Child, folder: Path, name: str) -> None:
    """Validating, testing and predicting are charged as validation, also where no training was."""
    receipt = _receipt(process, folder, name)
    assert receipt["time"]["activities_ns"]["validation"] > 0


def test_max_time_is_an_end_in_order(process: Child, folder: Path) -> None:
    """A run that its Trainer's max_time stops has no reason and is no exception."""
    receipt = _receipt(process, folder, "max_time")
    (attempt,) = receipt["run"]["attempts"]
    assert (attempt["ended"], attempt["reason"]) == ("closed", None)
    assert receipt["tokens"]["trained"] == attempt["batches"] * TOKENS > 0


@pytest.mark.parametrize("name", ["csv_logger", "tensorboard_logger", "two_loggers"])
def test_logging_is_an_activity_of_its_own(process: Child, folder: Path, name: str) -> None:
    """Time spent in loggers is told apart."""
    receipt = _receipt(process, folder, name)
    assert receipt["time"]["activities_ns"]["logging"] > 0


def test_command_gives_the_same_receipt(process: Child, folder: Path) -> None:
    """`costguard report DIR --json` on any folder above the run prints the receipt as JSON alone."""
    import json
    import sys

    for name in ("two_fits", "exception_in_training_step"):
        command = [str(Path(sys.executable).with_name("costguard")), "report", str(folder / name), "--json"]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert_adds_up(told)
        assert told == _receipt(process, folder, name)
