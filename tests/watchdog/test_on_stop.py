"""`BudgetStopping(on_stop=...)` around real trainings."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from watching import Place

from costguard import BudgetStopping, ConfigError, StartRefused
from costguard.clock import is_alive
from costguard.lightning.releasing import _main_process
from helpers import LIGHTNING_WARNINGS, Child, Tiny, fit, loader, monitor, quiet_trainer, receipt_of, start

SCRIPT = Path(__file__).with_name("stopping_training.py")


def _started(place: Place, when: str, survives: str) -> Child:
    return start(SCRIPT, place.root, f"touch {place.done}", when, survives)


def _run_id(place: Place) -> str:
    (run,) = (place.root / "costguard").iterdir()
    return run.name


def _watch(place: Place) -> int:
    """The watch of the only run, which is to be ended with the test."""
    fact = place.account(_run_id(place)).fact("release")
    assert fact is not None
    return place.note(fact["pid"])


def test_a_breach_gives_the_machine_back(place: Place) -> None:
    """The budget stops the training, the process ends with 93, and then the command runs; the receipt adds up."""
    child = _started(place, "breach", "yes")
    child.read_until(lambda line: line.strip() == "5")
    pid = _watch(place)
    child.finish()
    assert child.code == 93, child.err
    assert "on_stop" not in child.err
    place.gone(pid)
    assert place.done.exists()
    receipt = receipt_of(place.root)
    assert [a["ended"] for a in receipt["run"]["attempts"]] == ["closed", "closed"]
    assert receipt["time"]["activities_ns"]["idle"] >= 0.5e9


def test_a_kill_gives_the_machine_back(place: Place) -> None:
    """SIGKILL in the middle, no checkpoint yet, so none to lose; what later would be refused was said at the start."""
    child = _started(place, "crash,end", "no")
    child.read_until(lambda line: line.strip() == "5")
    pid = _watch(place)
    child.process.kill()
    child.finish()
    place.gone(pid)
    assert place.done.exists()
    assert "on_stop will be refused while the newest checkpoint is in" in child.err
    receipt = receipt_of(place.root)
    assert [a["ended"] for a in receipt["run"]["attempts"]] == ["died", "closed"]


@pytest.mark.slow
def test_a_refused_start_under_a_launcher_gives_the_machine_back(place: Place) -> None:
    """A machine that was got for a run which must not start is of no use either."""
    # The launcher is the parent here, this process, as an agent of torchrun is.
    child = start(
        SCRIPT, place.root, f"touch {place.done}", "breach", "yes", LIMIT_USD="0.01", TORCHELASTIC_RUN_ID="none"
    ).finish()
    assert child.code == 93, child.err
    place.gone(_watch(place))
    assert place.done.exists()


@pytest.mark.slow
def test_a_launcher_that_restarts_a_stopped_run_gets_one_release(place: Place) -> None:
    """A launcher starts it again, it is refused, and only the last attempt's watch runs the command, once."""
    arguments = ["--nproc-per-node", "1", "--max-restarts", "1", str(SCRIPT), str(place.root)]
    command = f"echo released >> {place.done}"
    env = {"PYTHONPATH": str(SCRIPT.parents[1]), "LIMIT_USD": "60", "GRACE_S": "15"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments, command, "breach", "yes"],
        env={**os.environ, **env},
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1
    place.gone(_watch(place))
    run_id = _run_id(place)
    assert place.done.read_text() == "released\n"
    assert place.account(run_id).trainings == [1, 2]
    assert place.account(run_id).attempts == [1, 2, 3]
    assert "attempt 2 was begun: the machine is left to that one" in place.log(run_id)
    receipt_of(place.root)


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_a_start_refused_to_a_person_leaves_the_machine(tmp_path: Path) -> None:
    """Somebody is there, and may want to raise the limit."""
    guard = BudgetStopping(limit_usd="0.0001", on_stop="true")
    with pytest.raises(StartRefused):
        quiet_trainer(tmp_path, monitor(), guard).fit(Tiny(), loader(3))
    assert not list(tmp_path.rglob("release.log"))


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_a_process_has_one_watch(place: Place) -> None:
    """A second training in one process ends the watch of the first: the machine is given back when the last is over."""
    pids = []
    for name in ("a", "b"):
        guard = BudgetStopping(limit_usd=1000, on_stop="true", disk_survives=True)
        fit(place.root, monitor(run_id=name), guard)
        fact = place.account(name).fact("release")
        assert fact is not None
        pids.append(place.note(fact["pid"]))
    place.gone(pids[0])
    assert is_alive(pids[1])


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_without_on_stop_there_is_no_watch(tmp_path: Path) -> None:
    """Nothing is started that was not asked for."""
    quiet_trainer(tmp_path, monitor(), BudgetStopping(limit_usd=1000)).fit(Tiny(), loader(3))
    assert not list(tmp_path.rglob("release.log"))


@pytest.mark.parametrize("command", ["", "  ", 7])
def test_a_command_that_is_none_is_refused(command: Any) -> None:
    """An empty one would look as if the machine had been given back."""
    with pytest.raises(ConfigError, match=r"BudgetStopping\(on_stop=.*such as 'sudo poweroff'"):
        BudgetStopping(limit_usd=1, on_stop=command)


@pytest.mark.parametrize("when", [["breech"], [], "breach", ["breach", None]])
def test_endings_that_are_none_are_refused(when: Any) -> None:
    """The known ones are named."""
    with pytest.raises(ConfigError, match=r"on_stop_when=.*expected some of breach, crash, end, stall"):
        BudgetStopping(limit_usd=1, on_stop="sudo poweroff", on_stop_when=when)


def test_the_process_that_spawned_the_training_is_waited_for() -> None:
    """A strategy may spawn the training and go on after it, with work of its own on the machine."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_main_process).result() == os.getpid()
    assert _main_process() == os.getpid()
