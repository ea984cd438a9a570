"""Which run a training belongs to, and which of its steps were thrown away by going back to a checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from costguard import CostguardWarning, RunNotFoundError, load_receipt
from helpers import (
    LIGHTNING_WARNINGS,
    TOKENS,
    Saves,
    Tiny,
    fit,
    loader,
    monitor,
    quiet_trainer,
    receipt_of,
    run_folders,
)

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS]


def _attempts(receipt: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(attempt[name] for name in names) for attempt in receipt["run"]["attempts"]]


def test_new_experiment_in_the_same_folder_inherits_nothing(tmp_path: Path) -> None:
    """Two trainings in one folder are two runs, each with its own time and tokens."""
    fit(tmp_path, monitor(), batches=3)
    fit(tmp_path, monitor(), batches=5)
    first, second = (receipt_of(run) for run in run_folders(tmp_path))
    assert first["run"]["id"] != second["run"]["id"]
    assert [r["tokens"]["trained"] for r in (first, second)] == [3 * TOKENS, 5 * TOKENS]
    assert [len(r["run"]["attempts"]) for r in (first, second)] == [1, 1]
    with pytest.raises(RunNotFoundError):
        load_receipt(str(tmp_path))


def test_monitor_used_in_a_second_trainer_is_a_second_run(tmp_path: Path) -> None:
    """The callback object does not tie two Trainers together unless the process's run is still the same."""
    fit(tmp_path / "a", monitor(), batches=3)
    fit(tmp_path / "b", monitor(), batches=5)
    assert receipt_of(tmp_path / "a")["tokens"]["trained"] == 3 * TOKENS
    assert receipt_of(tmp_path / "b")["tokens"]["trained"] == 5 * TOKENS


def test_run_that_is_still_alive_adds_up(tmp_path: Path) -> None:
    """A receipt read while the process lives is exact for the time until then."""
    fit(tmp_path, monitor())
    receipt = receipt_of(tmp_path)
    assert receipt["run"]["state"] == "running"
    assert receipt["run"]["attempts"][0]["ended_at"] is None


def test_run_id_given_twice_joins(tmp_path: Path) -> None:
    """The user's word makes a second training the second attempt, without any checkpoint."""
    fit(tmp_path, monitor(run_id="gpt-a"), batches=3)
    fit(tmp_path, monitor(run_id="gpt-a"), batches=5)
    receipt = receipt_of(tmp_path)
    assert receipt["run"]["id"] == "gpt-a"
    assert _attempts(receipt, "attempt", "batches") == [(1, 3), (2, 5)]


def test_run_id_of_the_environment_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """COSTGUARD_RUN_ID is the user's word too; the argument goes before it."""
    monkeypatch.setenv("COSTGUARD_RUN_ID", "from-env")
    fit(tmp_path / "a", monitor())
    fit(tmp_path / "a", monitor())
    fit(tmp_path / "b", monitor(run_id="from-argument"))
    joined = receipt_of(tmp_path / "a")
    assert (joined["run"]["id"], len(joined["run"]["attempts"])) == ("from-env", 2)
    assert receipt_of(tmp_path / "b")["run"]["id"] == "from-argument"


def test_dir_is_where_runs_lie(tmp_path: Path) -> None:
    """With `dir` the journal lies there and nothing of ours in the default root."""
    cost = monitor(dir=str(tmp_path / "costs"))
    fit(tmp_path / "root", cost)
    receipt = receipt_of(tmp_path / "costs")
    assert cost.run_dir == receipt["run"]["dir"] == str(run_folders(tmp_path / "costs")[0])
    assert not (tmp_path / "root" / "costguard").exists()


def test_resume_from_a_checkpoint_joins_its_run(tmp_path: Path) -> None:
    """The loaded checkpoint says which run this is and at which step it goes on."""
    fit(tmp_path, monitor(), Saves(tmp_path, 4), batches=12, fails_at=8)
    fit(tmp_path, monitor(), batches=12, ckpt_path=tmp_path / "step-4.ckpt")
    receipt = receipt_of(tmp_path)
    assert len(run_folders(tmp_path)) == 1
    assert _attempts(receipt, "first_step", "last_step") == [(0, 8), (4, 12)]
    assert receipt["tokens"]["trained"] == 12 * TOKENS


@pytest.mark.parametrize("move", [shutil.copy2, shutil.copy, os.rename])
def test_checkpoint_elsewhere_joins_the_run_it_belongs_to(tmp_path: Path, move: Any) -> None:
    """A checkpoint that was copied or moved is known by what it holds, not by where it lies."""
    fit(tmp_path, monitor(), Saves(tmp_path, 4), batches=12, fails_at=8)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    move(tmp_path / "step-4.ckpt", elsewhere / "renamed.ckpt")
    fit(tmp_path, monitor(), batches=12, ckpt_path=elsewhere / "renamed.ckpt")
    receipt = receipt_of(tmp_path)
    assert len(run_folders(tmp_path)) == 1
    assert _attempts(receipt, "batches", "rework_steps") == [(8, 4), (8, 0)]
    assert receipt["tokens"]["trained"] == 12 * TOKENS


def test_checkpoint_overwritten_by_another_run_is_not_taken_for_the_first_ones(tmp_path: Path) -> None:
    """Two experiments that save to one path: who loads it belongs to the one that wrote it last."""
    fit(tmp_path, monitor(), Saves(tmp_path, 4))
    fit(tmp_path, monitor(), Saves(tmp_path, 4))
    fit(tmp_path, monitor(), batches=12, ckpt_path=tmp_path / "step-4.ckpt")
    first, second = (receipt_of(run) for run in run_folders(tmp_path))
    assert len(first["run"]["attempts"]) == 1
    assert len(second["run"]["attempts"]) == 2


def test_checkpoint_in_a_new_root_says_what_is_unknown(tmp_path: Path) -> None:
    """Where the earlier attempts' journal is not, the run keeps its name and number and warns of what is missing."""
    fit(tmp_path / "old", monitor(), Saves(tmp_path, 4))
    with pytest.warns(CostguardWarning, match="attempt 1 of run .* 0 are known here"):
        fit(tmp_path / "new", monitor(), batches=12, ckpt_path=tmp_path / "step-4.ckpt")
    old, new = receipt_of(tmp_path / "old"), receipt_of(tmp_path / "new")
    assert new["run"]["id"] == old["run"]["id"]
    assert _attempts(new, "attempt", "first_step", "last_step") == [(2, 4, 12)]
    assert new["tokens"]["trained"] == 8 * TOKENS


def test_steps_done_twice_are_rework_in_every_attempt(tmp_path: Path) -> None:
    """Three attempts, two of them thrown away in part: each one's rework is its own steps after the save."""
    fit(tmp_path, monitor(), Saves(tmp_path, 4), batches=12, fails_at=8)
    fit(tmp_path, monitor(), Saves(tmp_path, 6), batches=12, fails_at=10, ckpt_path=tmp_path / "step-4.ckpt")
    fit(tmp_path, monitor(), batches=12, ckpt_path=tmp_path / "step-6.ckpt")
    receipt = receipt_of(tmp_path)
    assert _attempts(receipt, "batches", "rework_batches") == [(8, 4), (6, 4), (6, 0)]
    assert _attempts(receipt, "rework_steps") == [(4,), (4,), (0,)]
    assert receipt["tokens"]["trained"] == 12 * TOKENS
    assert receipt["tokens"]["rework"] == 8 * TOKENS


def test_attempts_say_from_which_step_to_which(tmp_path: Path) -> None:
    """A resumed attempt begins at the checkpoint's step."""
    fit(tmp_path, monitor(), Saves(tmp_path, 4), batches=12, fails_at=8)
    fit(tmp_path, monitor(), Saves(tmp_path, 6), batches=12, fails_at=10, ckpt_path=tmp_path / "step-4.ckpt")
    fit(tmp_path, monitor(), batches=12, ckpt_path=tmp_path / "step-6.ckpt")
    assert _attempts(receipt_of(tmp_path), "first_step", "last_step") == [(0, 8), (4, 10), (6, 12)]


def test_going_back_past_an_attempt_throws_it_away(tmp_path: Path) -> None:
    """A third attempt from the first one's save leaves nothing of the second."""
    fit(tmp_path, monitor(), Saves(tmp_path, 4), batches=12, fails_at=8)
    fit(tmp_path, monitor(), batches=12, fails_at=10, ckpt_path=tmp_path / "step-4.ckpt")
    fit(tmp_path, monitor(), batches=12, ckpt_path=tmp_path / "step-4.ckpt")
    receipt = receipt_of(tmp_path)
    assert _attempts(receipt, "batches", "rework_batches", "rework_steps") == [(8, 4, 4), (6, 6, 6), (8, 0, 0)]
    assert receipt["tokens"]["trained"] == 12 * TOKENS


def test_going_back_within_one_process_is_rework(tmp_path: Path) -> None:
    """A second fit from an early checkpoint throws away the first fit's later steps."""
    trainer = fit(tmp_path, monitor(), Saves(tmp_path, 4), batches=6)
    trainer.fit(Tiny(), loader(6), ckpt_path=tmp_path / "step-4.ckpt")
    receipt = receipt_of(tmp_path)
    assert _attempts(receipt, "batches", "rework_batches", "rework_steps") == [(8, 2, 2)]
    assert _attempts(receipt, "first_step", "last_step") == [(0, 6)]
    assert receipt["tokens"]["trained"] == 6 * TOKENS


def test_rework_counts_optimizer_steps_when_gradients_accumulate(tmp_path: Path) -> None:
    """With two micro-batches a step, rework has half as many steps as batches."""
    fit(tmp_path, monitor(), Saves(tmp_path, 2), batches=12, fails_at=10, accumulate_grad_batches=2)
    fit(tmp_path, monitor(), batches=12, accumulate_grad_batches=2, ckpt_path=tmp_path / "step-2.ckpt")
    (first, _) = receipt_of(tmp_path)["run"]["attempts"]
    assert (first["batches"], first["last_step"]) == (10, 5)
    assert (first["rework_batches"], first["rework_steps"]) == (6, 3)


def test_validating_an_early_checkpoint_throws_nothing_away(tmp_path: Path) -> None:
    """A checkpoint that is only looked at belongs to its run, and what came after it stays kept."""
    fit(tmp_path, monitor(), Saves(tmp_path, 2), batches=6)
    quiet_trainer(tmp_path, monitor()).validate(Tiny(), loader(2), ckpt_path=tmp_path / "step-2.ckpt", verbose=False)
    receipt = receipt_of(tmp_path)
    assert _attempts(receipt, "batches", "rework_batches") == [(6, 0), (0, 0)]
    assert receipt["tokens"]["trained"] == 6 * TOKENS


def test_weights_only_checkpoints_are_listed_and_start_nothing(tmp_path: Path) -> None:
    """A checkpoint without callbacks is a checkpoint that was paid for; weights taken from it begin a new run."""
    fit(tmp_path, monitor(), Saves(tmp_path, 2, weights_only=True))
    (saved,) = receipt_of(tmp_path)["checkpoints"]
    assert (saved["path"], saved["step"]) == (str(tmp_path / "step-2.ckpt"), 2)
    assert saved["bytes"] == (tmp_path / "step-2.ckpt").stat().st_size
    assert saved["blocked_s"] > 0
    module = Tiny()
    module.load_state_dict(torch.load(tmp_path / "step-2.ckpt", weights_only=True)["state_dict"])
    fit(tmp_path, monitor(), module=module)
    assert [len(receipt_of(run)["run"]["attempts"]) for run in run_folders(tmp_path)] == [1, 1]


def test_weights_only_save_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    """Only the full checkpoint saves work: what came after it is rework though weights were written later."""
    saves = Saves(tmp_path, 2), Saves(tmp_path, 5, weights_only=True)
    fit(tmp_path, monitor(), *saves, batches=12, fails_at=8)
    fit(tmp_path, monitor(), batches=12, ckpt_path=tmp_path / "step-2.ckpt")
    receipt = receipt_of(tmp_path)
    assert [c["step"] for c in receipt["checkpoints"]] == [2, 5]
    assert _attempts(receipt, "batches", "rework_batches") == [(8, 6), (10, 0)]
    assert receipt["tokens"]["trained"] == 12 * TOKENS


def test_checkpoint_from_before_the_monitor_begins_a_new_run(tmp_path: Path) -> None:
    """A checkpoint without a word of ours is resumed from without harm, as the first attempt of a new run."""
    plain = quiet_trainer(tmp_path, Saves(tmp_path, 4))
    plain.fit(Tiny(), loader(6))
    fit(tmp_path, monitor(), batches=12, ckpt_path=tmp_path / "step-4.ckpt")
    receipt = receipt_of(tmp_path)
    assert _attempts(receipt, "attempt", "batches", "last_step") == [(1, 8, 12)]
    assert receipt["tokens"]["trained"] == 8 * TOKENS


def test_checkpoint_holds_only_where_the_journal_stands(tmp_path: Path) -> None:
    """Version, run, attempt and sequence number: the account itself is not in the checkpoint."""
    fit(tmp_path, monitor(run_id="a"), Saves(tmp_path, 2, 4))
    words = [torch.load(tmp_path / f"step-{n}.ckpt", weights_only=False)["callbacks"]["CostMonitor"] for n in (2, 4)]
    assert [{"run": w["run"], "attempt": w["attempt"]} for w in words] == [{"run": "a", "attempt": 1}] * 2
    assert all(len(word) == 4 for word in words)
    assert words[0] != words[1]
