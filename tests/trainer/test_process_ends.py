"""How a process may end, seen from outside: its account closes, and the next attempt goes on from the right place."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from fast_steps import SAVE_EVERY

from helpers import NS_PER_S, TOKENS, Child, assert_close, receipt_of, start

ENDLESS = 10_000_000
SCRIPT = Path(__file__).with_name("fast_steps.py")


def _read_steps(child: Child, until: int) -> None:
    """Read the child's reports up to a step."""
    child.read_until(lambda line: line.strip().isdigit() and int(line) >= until)


def _last_step(child: Child) -> int:
    return max(int(line) for line in child.out.splitlines() if line.strip().isdigit())


def _stopped_by(number: signal.Signals, folder: Path) -> Child:
    child = start(SCRIPT, folder, ENDLESS)
    _read_steps(child, 5)
    child.process.send_signal(number)
    return child.finish()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Child, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sigint")
    return _stopped_by(signal.SIGINT, folder), receipt_of(folder)


@pytest.fixture(scope="module")
def terminated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Child, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sigterm")
    return _stopped_by(signal.SIGTERM, folder), receipt_of(folder)


def test_sigint_closes_the_account(interrupted: tuple[Child, dict[str, Any]]) -> None:
    """Ctrl-C in the middle of a step: closed exactly, with every step reported and the time seen from outside."""
    child, receipt = interrupted
    (attempt,) = receipt["run"]["attempts"]
    assert child.code == 1
    assert (attempt["ended"], attempt["reason"]) == ("closed", "KeyboardInterrupt")
    assert attempt["last_step"] - _last_step(child) in (0, 1)
    assert receipt["tokens"]["trained"] == attempt["batches"] * TOKENS
    assert_close(receipt["time"]["elapsed_device_ns"], child.wall_ns)


def test_sigterm_closes_the_account(terminated: tuple[Child, dict[str, Any]]) -> None:
    """SIGTERM, as a scheduler sends it: Lightning stops after the batch and the account is closed."""
    child, receipt = terminated
    (attempt,) = receipt["run"]["attempts"]
    assert attempt["ended"] == "closed"
    assert attempt["reason"].startswith("SIGTERM")
    assert attempt["last_step"] - _last_step(child) in (0, 1)
    assert_close(receipt["time"]["elapsed_device_ns"], child.wall_ns)


def test_uncaught_exception_closes_the_account(tmp_path: Path) -> None:
    """An exception that ends the process: closed exactly, with the time seen from outside."""
    child = start(SCRIPT, tmp_path, ENDLESS, 4).finish()
    receipt = receipt_of(tmp_path)
    (attempt,) = receipt["run"]["attempts"]
    assert child.code == 1
    assert "training_step failed" in child.err
    assert (attempt["ended"], attempt["reason"]) == ("closed", "RuntimeError: training_step failed")
    assert receipt["tokens"]["trained"] == 4 * TOKENS
    assert_close(receipt["time"]["elapsed_device_ns"], child.wall_ns)


def test_kill_after_training_keeps_the_time_until_then(tmp_path: Path) -> None:
    """A process that has trained, does something else and is killed there: idle until its death, to the beat."""
    child = start(SCRIPT, tmp_path, 5, LINGERS="yes")
    child.read_until(lambda line: line.strip() == "lingers")
    time.sleep(1.5)
    child.process.terminate()
    child.finish()
    receipt = receipt_of(tmp_path)
    (attempt,) = receipt["run"]["attempts"]
    assert child.code == -signal.SIGTERM
    assert (attempt["ended"], attempt["last_step"]) == ("died", 5)
    assert receipt["time"]["activities_ns"]["idle"] >= NS_PER_S
    assert_close(receipt["time"]["elapsed_device_ns"], child.wall_ns)


# -- kill -9, 30 fast steps after the last save, then a new process ---------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a killed run said before and after it was resumed, and what was seen from outside."""
    folder = tmp_path_factory.mktemp("killed")
    first = start(SCRIPT, folder, ENDLESS)
    _read_steps(first, SAVE_EVERY + 30)
    first.process.kill()
    first.finish()
    dead = receipt_of(folder)
    second = start(SCRIPT, folder, 2 * SAVE_EVERY).finish()
    return {"first": first, "second": second, "dead": dead, "receipt": receipt_of(folder)}


def test_killed_run_reads_back_to_its_last_step(killed: dict[str, Any]) -> None:
    """Between lines of the journal the page holds each step: `kill -9` loses none."""
    (attempt,) = killed["dead"]["run"]["attempts"]
    assert killed["first"].code == -signal.SIGKILL
    assert attempt["ended"] == "died"
    assert attempt["last_step"] - _last_step(killed["first"]) in (0, 1)
    assert killed["dead"]["tokens"]["trained"] == attempt["batches"] * TOKENS
    assert_close(killed["dead"]["time"]["elapsed_device_ns"], killed["first"].wall_ns)


def test_killed_run_goes_on_as_its_second_attempt(killed: dict[str, Any]) -> None:
    """The checkpoint tells which run the new process belongs to and where it goes on."""
    assert killed["second"].code == 0, killed["second"].err
    first, second = killed["receipt"]["run"]["attempts"]
    assert (first["ended"], second["ended"]) == ("died", "closed")
    assert (second["first_step"], second["last_step"]) == (SAVE_EVERY, 2 * SAVE_EVERY)


def test_gap_after_a_kill_is_billed(killed: dict[str, Any]) -> None:
    """On the same host and boot the time until the next attempt is a gap: all of it adds up to the time outside."""
    receipt = killed["receipt"]
    first, second = receipt["run"]["attempts"]
    assert receipt["time"]["activities_ns"]["gap"] == first["gap_after_ns"] > 0
    assert second["gap_after_ns"] is None
    assert receipt["time"]["released_s"] == 0
    whole = killed["second"].end_ns - killed["first"].begin_ns
    assert_close(receipt["time"]["elapsed_device_ns"], whole)


def test_steps_after_the_last_save_are_rework(killed: dict[str, Any]) -> None:
    """What was trained after the last save and then trained again is rework, step by step."""
    receipt = killed["receipt"]
    first, second = receipt["run"]["attempts"]
    done_twice = _last_step(killed["first"]) - SAVE_EVERY
    assert done_twice >= 30
    assert first["rework_steps"] - done_twice in (0, 1)
    assert second["rework_steps"] == 0
    assert receipt["time"]["outcomes_ns"]["rework"] > 0
    assert receipt["tokens"]["rework"] == first["rework_steps"] * TOKENS


def test_tokens_of_a_killed_run_are_those_of_an_uninterrupted_one(killed: dict[str, Any]) -> None:
    """Trained tokens count the kept steps only, and each of them."""
    assert killed["receipt"]["tokens"]["trained"] == 2 * SAVE_EVERY * TOKENS


# -- a clean stop, then a resume later --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stopped")
    first = start(SCRIPT, folder, 10).finish()
    time.sleep(3)
    second = start(SCRIPT, folder, 20).finish()
    return {"first": first, "second": second, "receipt": receipt_of(folder)}


def test_clean_stop_and_resume_are_two_attempts_of_one_run(stopped: dict[str, Any]) -> None:
    """Both ended in order and nothing was done twice."""
    assert stopped["second"].code == 0, stopped["second"].err
    receipt = stopped["receipt"]
    assert [a["ended"] for a in receipt["run"]["attempts"]] == ["closed", "closed"]
    assert [a["rework_steps"] for a in receipt["run"]["attempts"]] == [0, 0]
    assert receipt["tokens"]["trained"] == 20 * TOKENS


def test_time_after_a_clean_stop_is_released(stopped: dict[str, Any]) -> None:
    """Who stopped in order gave the machine back: nothing is billed between, and the time is shown."""
    receipt, first, second = stopped["receipt"], stopped["first"], stopped["second"]
    assert "gap" not in receipt["time"]["activities_ns"]
    assert receipt["run"]["attempts"][0]["gap_after_ns"] is None
    assert receipt["time"]["released_s"] >= 2
    assert_close(round(receipt["time"]["released_s"] * NS_PER_S), second.begin_ns - first.end_ns)


def test_only_the_attempts_are_elapsed(stopped: dict[str, Any]) -> None:
    """Elapsed time is that of the two processes as seen from outside."""
    first, second = stopped["receipt"]["run"]["attempts"]
    assert_close(first["elapsed_device_ns"], stopped["first"].wall_ns)
    assert_close(second["elapsed_device_ns"], stopped["second"].wall_ns)
    whole = stopped["first"].wall_ns + stopped["second"].wall_ns
    assert_close(stopped["receipt"]["time"]["elapsed_device_ns"], whole, processes=2)
