"""`costguard budget` on real runs, in a folder and on a mirror: what it shows, what it lets go on, and who said so."""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from budgeted import DOLLAR_A_SECOND, Ticking, guard, kept, metered_from_now, moved_by_hand, stop_checkpoint, train
from costguard import Budget
from costguard.cli.main import main
from costguard.errors import StartRefused
from costguard.testing import ManualClock
from helpers import LIGHTNING_WARNINGS, monitor, run_folders

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore::costguard.errors.CostguardWarning"),
]


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    with moved_by_hand() as moved:
        yield moved


def _train(folder: Path, clock: ManualClock, steps: int = -1, dir: str | None = None, **options: Any) -> None:
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r", dir=dir)
    checkpoint = stop_checkpoint(folder) if list(folder.rglob("stopped-*")) else None
    train(folder, Ticking(clock), cost, guard(**options), max_steps=steps, max_epochs=-1, ckpt_path=checkpoint)
    metered_from_now(clock)


def _json(capsys: pytest.CaptureFixture[str], action: str, place: object, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["budget", action, str(place), "--json"]) == code
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_a_run_that_may_go_on(clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is spent of the limit; `check` exits 0."""
    _train(tmp_path, clock, steps=20)
    data = _json(capsys, "show", tmp_path)
    assert data["schema_version"] == 1
    assert data["run"] == "r"
    assert data["budgets"] == [{"budget": "run/usd/billed", "limit": "10", "spent": "2", "reached": False}]
    assert (data["stopped"], data["decisions"]) == (None, [])
    assert _json(capsys, "check", tmp_path)["breached"] is False


def test_check_exits_3_on_a_breach(clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was stopped for good, from above the run's folder and from itself."""
    _train(tmp_path, clock)
    assert _json(capsys, "check", tmp_path, code=3)["breached"] is True
    assert main(["budget", "check", str(run_folders(tmp_path)[0])]) == 3
    text = capsys.readouterr().out
    assert "STOPPED for good at" in text
    assert "$7.70 of $10.00" in text


def test_a_limit_that_is_passed_without_a_stop_is_a_breach(
    clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that did something else for long after training: what is spent counts, not what was decided."""
    _train(tmp_path, clock, steps=20)
    assert _json(capsys, "check", tmp_path)["breached"] is False
    _train(tmp_path / "other", clock, steps=20, usd_per_gpu_hour=DOLLAR_A_SECOND)
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r")
    train(tmp_path, Ticking(clock, step_s=3), cost, max_steps=5)  # without its guard
    metered_from_now(clock)
    data = _json(capsys, "check", run_folders(tmp_path)[0], code=3)
    assert (data["breached"], data["stopped"]) == (True, None)
    assert data["budgets"][0]["reached"] is True


@pytest.mark.parametrize("place", ["folder", "memory", "file"])
def test_raising_lets_it_go_on_and_leaves_a_line(
    clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """Who, when, why, from and to; said at the folder or at the mirror, the next start knows it."""
    mirror = {"folder": None, "memory": f"memory://{uuid.uuid4().hex}", "file": f"file://{tmp_path}/mirror"}[place]
    here = tmp_path / "here"
    _train(here, clock, dir=mirror)
    where = f"{mirror}/r" if mirror else str(here)
    assert main(["budget", "check", where]) == 3
    if mirror:  # the machine is gone; only the checkpoint was taken along
        shutil.rmtree(here / "costguard")
    assert main(["budget", "raise", where, "--to", "15", "--why", "more data"]) == 0
    assert "run/usd/billed: 10 to 15 by " in capsys.readouterr().out
    stop, raised = _json(capsys, "show", where)["decisions"]
    assert stop["kind"] == "stop"
    assert (raised["kind"], raised["from"], raised["to"], raised["why"]) == ("raise", "10", "15", "more data")
    assert raised["who"]
    assert raised["at"].endswith("Z")
    assert main(["budget", "check", where]) == 0
    _train(here, clock, dir=mirror)
    kept(here, 15, clock)
    assert main(["budget", "check", where]) == 3


def test_a_stop_is_at_the_mirror_as_well(clock: ManualClock, tmp_path: Path) -> None:
    """On another machine, with nothing but the mirror, the run is refused."""
    mirror = f"memory://{uuid.uuid4().hex}"
    _train(tmp_path / "a", clock, dir=mirror)
    with pytest.raises(StartRefused):
        _train(tmp_path / "b", clock, dir=mirror)


def test_what_was_decided_at_the_mirror_is_not_overwritten(clock: ManualClock, tmp_path: Path) -> None:
    """A number that is taken there stays as it is."""
    mirror = f"memory://{uuid.uuid4().hex}"
    _train(tmp_path, clock, dir=mirror)
    fs, path = fsspec.core.url_to_fs(f"{mirror}/r/control-0001.json")
    stop = fs.cat_file(path)
    fs.pipe_file(path, stop.replace(b'"stop"', b'"resume"'))
    with contextlib.suppress(StartRefused):
        _train(tmp_path, clock, dir=mirror)
    assert b'"resume"' in fs.cat_file(path)


def test_resuming_lets_it_go_on_with_the_limits_it_has(
    clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It still may not pass its limit: it goes on as far as the money lasts, and is stopped again."""
    _train(tmp_path, clock, budgets=[Budget(limit_usd=30), Budget(limit_usd=8, scope="day")])
    folder = run_folders(tmp_path)[0]
    assert main(["budget", "resume", str(folder), "--why", "a new day"]) == 0
    assert "May go on, by " in capsys.readouterr().out
    assert main(["budget", "resume", str(folder), "--why", "again"]) == 0
    assert "Nothing to resume" in capsys.readouterr().out
    clock.advance(86_400)
    _train(tmp_path, clock, budgets=[Budget(limit_usd=30), Budget(limit_usd=8, scope="day")])
    kinds = [d["kind"] for d in _json(capsys, "show", folder)["decisions"]]
    assert kinds == ["stop", "resume", "stop"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to", "5"], "expected more than the limit of 10"),
        (["--to", "10"], "expected more than the limit of 10"),
        (["--to", "abc"], "--to abc: expected a number such as 300"),
        (["--to", "nan"], "--to nan: expected a number such as 300"),
        (["--to=-3"], "--to -3: expected a number such as 300"),
        (["--to", "20", "--budget", "day/usd/billed"], "expected one of this run's: run/usd/billed"),
        (["--to", "20", "--why", " "], "expected a reason"),
    ],
)
def test_a_bad_raise_is_one_sentence(
    clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """Exit code 2, and nothing is decided."""
    _train(tmp_path, clock, steps=5)
    why = [] if "--why" in arguments else ["--why", "x"]
    assert main(["budget", "raise", str(tmp_path), *arguments, *why]) == 2
    assert sentence in capsys.readouterr().err
    assert _json(capsys, "show", tmp_path)["decisions"] == []


@pytest.mark.parametrize("action", ["show", "check"])
def test_an_unreadable_decision_is_an_error(
    clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    """It does not pass for a run that may go on."""
    _train(tmp_path, clock, steps=5)
    (run_folders(tmp_path)[0] / "control-0001.json").write_text("{")
    assert main(["budget", action, str(tmp_path)]) not in (0, 3)
    assert "control-0001.json cannot be read" in capsys.readouterr().err


def test_no_run_is_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 5, as for all reading commands."""
    assert main(["budget", "check", str(tmp_path)]) == 5
    assert capsys.readouterr().err


def test_a_run_without_a_budget_says_what_to_do(
    clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing limits it, and that is said."""
    train(tmp_path, Ticking(clock), monitor(usd_per_gpu_hour=1), max_steps=3)
    metered_from_now(clock)
    assert main(["budget", "show", str(tmp_path)]) == 0
    assert "no budget" in capsys.readouterr().out
    assert main(["budget", "raise", str(tmp_path), "--to", "5", "--why", "x"]) == 2
    assert "expected one of this run's: none" in capsys.readouterr().err
