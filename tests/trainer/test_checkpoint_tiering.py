"""`CheckpointTiering` in real trainings: what stays, what moves, what comes back, and what it must not disturb."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from tiering import Remembering, names, records, saves, state_of, tiering, tiers, train, weight_in

from costguard import BudgetStopping, CheckpointTiering, ConfigError, CostguardWarning, fetch
from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.hot import FileFact, HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.keep import Rule, before_anomaly, best, by_model_checkpoint, every, last, pinned, stage_end
from costguard.lightning import tiering_moves
from costguard.policies.reserve import StopPriors
from helpers import LIGHTNING_WARNINGS, Saves, Tiny, loader, monitor, quiet_trainer, receipt_of, start
from servers import KEY

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed from"),
]

# -- without rules: ModelCheckpoint's own deletions pass -------------------------------------------------------------


@pytest.mark.parametrize("plugins", [[], ["async"]])
def test_without_rules_nothing_moves_and_the_end_says_what_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plugins: list[str]
) -> None:
    """What is on the disk is what would be there without us, and one line says what a rule would have done."""
    io = {"plugins": [AsyncCheckpointIO() for _ in plugins]}
    train(tmp_path, saves(tmp_path), tiering(tmp_path, keep=None, storage_class="s3:GLACIER_IR"), **io)
    assert names(tmp_path) == {"step=5.ckpt"}
    assert tiers(tmp_path) == {5: "hot"}
    assert not list(tmp_path.glob("cold/**/*.ckpt"))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "no rule was given" in line)
    assert "deleted 4 (" in line
    assert f"keep=by_model_checkpoint() moves them to file://{tmp_path}/cold for $" in line


# -- what ModelCheckpoint deletes is moved ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top_k", "hot"),
    [(0, set()), (1, {"step=5.ckpt"}), (3, {f"step={n}.ckpt" for n in (3, 4, 5)}), (-1, None)],
)
def test_what_model_checkpoint_would_delete_is_moved(tmp_path: Path, top_k: int, hot: set[str] | None) -> None:
    """On the hot disk is what would be there without us; the others are cold and none is lost."""
    train(tmp_path, saves(tmp_path, save_top_k=top_k, save_last=False), tiering(tmp_path))
    every_step = {f"step={n}.ckpt" for n in range(1, 6)}
    if top_k == 0:
        assert not (tmp_path / "saves").exists()
        assert records(tmp_path) == []
        return
    assert names(tmp_path) == (every_step if hot is None else hot)
    cold = {os.path.basename(r.path) for r in records(tmp_path) if r.tier == "cold"}
    assert cold == every_step - names(tmp_path)


@pytest.mark.parametrize("callbacks_first", [True, False])
def test_resumes_by_the_path_of_a_cold_checkpoint(tmp_path: Path, callbacks_first: bool) -> None:
    """The old path is given as if nothing had happened: the weights are those that were saved, and training goes on."""
    _, first = train(tmp_path, saves(tmp_path), tiering(tmp_path))
    gone = tmp_path / "saves" / "step=2.ckpt"
    assert not gone.exists()

    class Looks(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            assert trainer.global_step == 2
            assert torch.equal(pl_module.weight, first.weights[2])

    callbacks = [saves(tmp_path), tiering(tmp_path), Looks()]
    trainer, again = train(tmp_path, *callbacks[:: 1 if callbacks_first else -1], ckpt_path=gone)
    assert trainer.global_step == 5
    assert torch.equal(again.weights[5], first.weights[5])
    assert torch.equal(weight_in(gone), first.weights[2])
    assert [r.step for r in records(tmp_path) if r.resumed_from] == [2]


def test_names_and_steps_that_repeat_are_other_checkpoints(tmp_path: Path) -> None:
    """A resumed run writes the same names with other bytes: both lives of a step are kept apart, and none is lost."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path))
    train(tmp_path, saves(tmp_path), tiering(tmp_path), ckpt_path=tmp_path / "saves" / "step=2.ckpt")
    of_step = [r for r in records(tmp_path) if r.step == 4]
    assert len(of_step) == 2
    assert {os.path.basename(r.path) for r in of_step} == {"step=4.ckpt"}
    assert len({r.id for r in records(tmp_path)}) == len(records(tmp_path)) == 8


def test_two_fits_of_one_trainer_and_one_callback(tmp_path: Path) -> None:
    """The second fit goes on with the same list."""
    ours = tiering(tmp_path)
    trainer, _ = train(tmp_path, saves(tmp_path), ours)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(Remembering(), loader(5))
    assert sorted(tiers(tmp_path)) == list(range(1, 11))
    assert [step for step, tier in tiers(tmp_path).items() if tier == "hot"] == [10]


def test_a_second_fit_takes_over_what_the_first_left(tmp_path: Path) -> None:
    """Moves that the end of a fit does not wait for go on, also while another fit of this process begins."""
    with pytest.warns(CostguardWarning, match="moves are not done"):
        train(tmp_path, saves(tmp_path), tiering(tmp_path, bandwidth=4000, finish_timeout=0))
    left = records(tmp_path)
    assert len(left) == 5
    gone_or_not = tmp_path / "saves" / "step=2.ckpt"
    trainer, _ = train(tmp_path, saves(tmp_path), tiering(tmp_path), ckpt_path=gone_or_not, max_epochs=2)
    assert trainer.global_step == 10
    assert {r.id for r in left} <= {r.id for r in records(tmp_path)}
    # The second never knew of the first's newest, so that its ModelCheckpoint does not delete it either.
    assert names(tmp_path) == {"step=2.ckpt", "step=5.ckpt", "step=10.ckpt"}
    assert {r.state for r in records(tmp_path)} <= {"hot", "both", "cold"}


def test_last_and_best_are_found(tmp_path: Path) -> None:
    """`ckpt_path="last"` and `"best"` mean what they meant, also where the best is cold by a rule."""
    keeps = {"monitor": "loss", "mode": "max", "save_top_k": 1, "save_last": True}
    trainer, module = train(tmp_path, saves(tmp_path, **keeps), tiering(tmp_path, keep=last(1)))
    assert trainer.checkpoint_callback is not None
    best_path = Path(trainer.checkpoint_callback.best_model_path)  # type: ignore[attr-defined]
    assert not best_path.exists()
    trainer.test(Remembering(), loader(1), ckpt_path="best", verbose=False)
    assert torch.equal(weight_in(best_path), module.weights[1])
    resumed, _ = train(tmp_path, saves(tmp_path, **keeps), tiering(tmp_path, keep=last(1)), ckpt_path="last", steps=7)
    assert resumed.ckpt_path == str(tmp_path / "saves" / "last.ckpt")
    assert resumed.global_step == 5  # the epoch that it goes on with had 5 batches


def test_a_test_reads_a_cold_checkpoint(tmp_path: Path) -> None:
    """`trainer.test(ckpt_path=...)` brings it back, and it is not taken for the one that is resumed from."""
    trainer, module = train(tmp_path, saves(tmp_path), tiering(tmp_path))
    gone = tmp_path / "saves" / "step=3.ckpt"
    tested = Remembering()
    trainer.test(tested, loader(1), ckpt_path=str(gone), verbose=False)
    assert torch.equal(tested.weight, module.weights[3])
    assert not any(r.resumed_from for r in records(tmp_path))


def test_fetch_for_what_passes_by_the_trainer(tmp_path: Path) -> None:
    """`load_from_checkpoint(costguard.fetch(path))` works where the saves lie outside of the run's folder too."""
    _, module = train(tmp_path, saves(tmp_path), tiering(tmp_path))
    gone = str(tmp_path / "saves" / "step=1.ckpt")
    assert not os.path.exists(gone)
    assert fetch(gone) == gone
    loaded = Remembering.load_from_checkpoint(gone)
    assert torch.equal(loaded.weight, module.weights[1].to(loaded.device))
    with pytest.raises(Exception, match="no such checkpoint"):
        fetch(str(tmp_path / "saves" / "step=99.ckpt"))


@pytest.mark.parametrize("save_last", [True, "link"])
def test_last_is_never_led_astray(tmp_path: Path, save_last: Any) -> None:
    """`last.ckpt`, a file or a link, can be read after each run, is listed once, and the rest is cold."""
    for ckpt_path, epochs in ((None, 1), ("last", 2)):
        train(
            tmp_path,
            saves(tmp_path, save_last=save_last),
            tiering(tmp_path),
            ckpt_path=ckpt_path,
            max_epochs=epochs,
        )
        assert {f"step={5 * epochs}.ckpt", "last.ckpt"} <= names(tmp_path)
        assert torch.load(tmp_path / "saves" / "last.ckpt", weights_only=False)["global_step"] == 5 * epochs
    hot = {os.path.basename(r.path) for r in records(tmp_path) if r.tier != "cold"}
    # A link is no checkpoint of its own; what it pointed to is the one that was resumed from.
    assert hot == {"step=10.ckpt", "last.ckpt" if save_last is True else "step=5.ckpt"}


@pytest.mark.parametrize("save_last", [True, "link"])
def test_the_last_of_one_of_two_stays(tmp_path: Path, save_last: Any) -> None:
    """What `ckpt_path="last"` finds stays hot, also where another ModelCheckpoint's is newer and rules keep one."""
    one = ModelCheckpoint(tmp_path / "a", "{step}", every_n_train_steps=2, save_last=save_last, save_top_k=-1)
    other = saves(tmp_path)
    train(tmp_path, one, other, tiering(tmp_path, keep=last(1)))
    assert torch.load(tmp_path / "a" / "last.ckpt", weights_only=False)["global_step"] == 4
    assert names(tmp_path) == {"step=5.ckpt"}
    again, _ = train(tmp_path, one, tiering(tmp_path, keep=last(1)), ckpt_path="last", max_epochs=2)
    assert again.ckpt_path == str(tmp_path / "a" / "last.ckpt")


def test_background_saves_are_taken_up_when_they_are_written(tmp_path: Path) -> None:
    """With `AsyncCheckpointIO` nothing is deleted before its successor is there, and none is lost."""
    options = {"plugins": [AsyncCheckpointIO()]}
    _, module = train(tmp_path, saves(tmp_path), tiering(tmp_path), steps=8, **options)
    assert names(tmp_path) == {"step=8.ckpt"}
    assert [r.step for r in records(tmp_path)] == list(range(1, 9))
    assert {r.tier for r in records(tmp_path)[:-1]} == {"cold"}
    for record in records(tmp_path)[:-1]:
        assert torch.equal(weight_in(fetch(record.path)), module.weights[record.step])


def test_a_changed_dirpath_leaves_the_old_ones_alone(tmp_path: Path) -> None:
    """Resumed with another `dirpath`: what the first wrote stays listed and is not deleted by the second."""
    train(tmp_path, saves(tmp_path, save_top_k=2), tiering(tmp_path))
    other = ModelCheckpoint(tmp_path / "other", "{step}", every_n_train_steps=1)
    train(tmp_path, other, tiering(tmp_path), ckpt_path=tmp_path / "saves" / "step=1.ckpt")
    assert {"step=1.ckpt", "step=4.ckpt", "step=5.ckpt"} == names(tmp_path)
    assert len(records(tmp_path)) == 9


def test_a_remote_dirpath_is_left_alone(tmp_path: Path) -> None:
    """What is saved elsewhere than on this disk stays ModelCheckpoint's own; that is said once."""
    place = f"memory://{tmp_path.name}/saves"
    keeps = ModelCheckpoint(place, "{step}", every_n_train_steps=1, save_top_k=2, monitor="step", mode="max")
    with pytest.warns(CostguardWarning, match="is not on this machine's disk") as told:
        train(tmp_path, keeps, tiering(tmp_path, keep=last(1)))
    assert len([w for w in told if w.category is CostguardWarning]) == 1
    assert records(tmp_path) == []
    fs, path = fsspec.core.url_to_fs(place)
    assert sorted(os.path.basename(p) for p in fs.ls(path, detail=False)) == ["step=4.ckpt", "step=5.ckpt"]


def test_a_file_url_is_a_folder_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning makes a folder of a `file://` dirpath, and so it is in two tiers."""
    monkeypatch.chdir(tmp_path)
    keeps = ModelCheckpoint(f"file://{tmp_path}/saves", "{step}", every_n_train_steps=1)
    train(tmp_path, keeps, tiering(tmp_path))
    assert [tier for _, tier in sorted(tiers(tmp_path).items())] == ["cold"] * 4 + ["hot"]
    assert fetch(str(keeps.best_model_path).replace("step=5", "step=1"))


@pytest.mark.parametrize("url", ["", "memory://tiering-root"])
def test_a_root_that_cannot_be_written_to(tmp_path: Path, url: str) -> None:
    """Refused before training, in one sentence; what only tests a model runs all the same."""
    (tmp_path / "file").write_text("in the way")
    trainer = quiet_trainer(url or tmp_path / "file", tiering(tmp_path))
    with pytest.raises(ConfigError, match="default_root_dir"):
        trainer.fit(Tiny(), loader(1))
    if not url:
        trainer.test(Tiny(), loader(1), verbose=False)


@pytest.mark.filterwarnings("ignore:The `LearningRateFinder`")
@pytest.mark.filterwarnings("ignore:Failed to compute suggestion")
def test_what_a_tuner_saves_is_its_own(tmp_path: Path) -> None:
    """The scratch checkpoint of the learning rate finder is neither listed, nor moved, nor left behind."""

    class Tuned(Remembering):
        lr = 1e-3

    finder = LearningRateFinder(num_training_steps=5, update_attr=False)
    train(tmp_path, finder, saves(tmp_path), tiering(tmp_path), module=Tuned(), logger=CSVLogger(tmp_path))
    assert sorted(r.step for r in records(tmp_path)) == [1, 2, 3, 4, 5]
    assert not list((tmp_path / "run").glob(".lr_find*"))


# -- with rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "hot"),
    [
        (last(2), {5, 6}),
        (best("loss", n=1, mode="max"), {1, 6}),
        (every(steps=3), {3, 6}),
        (last(1) | best("loss", n=1) | every(steps=4), {4, 6}),
        (pinned(), {6}),
    ],
    ids=lambda value: value.label if isinstance(value, Rule) else "",
)
@pytest.mark.parametrize("top_k", [1, -1])
def test_rules_decide_over_all_checkpoints(tmp_path: Path, keep: Rule, hot: set[int], top_k: int) -> None:
    """Whatever ModelCheckpoint keeps, what the rules keep stays hot and the rest is cold; the newest stays always."""
    train(tmp_path, saves(tmp_path, save_top_k=top_k), tiering(tmp_path, keep=keep), steps=6)
    assert {step for step, tier in tiers(tmp_path).items() if tier == "hot"} == hot
    assert {step for step, tier in tiers(tmp_path).items() if tier == "cold"} == set(range(1, 7)) - hot


def test_milestones_in_tokens(tmp_path: Path) -> None:
    """Beside a CostMonitor a rule may count in tokens."""
    train(tmp_path, monitor(), saves(tmp_path, save_top_k=-1), tiering(tmp_path, keep=every(tokens=48)), steps=6)
    assert {step for step, tier in tiers(tmp_path).items() if tier == "hot"} == {3, 6}


@pytest.mark.parametrize("demote", ["rest", "none"])
def test_without_a_cold_store_rules_only_keep(tmp_path: Path, demote: Any) -> None:
    """`cold=None`: what a rule keeps outlives ModelCheckpoint's deletion, and goes when the rule lets it go."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path, cold=None, keep=last(2), demote=demote))
    assert names(tmp_path) == {"step=4.ckpt", "step=5.ckpt"}
    assert sorted(tiers(tmp_path)) == [4, 5]


@pytest.mark.parametrize("plugins", [[], ["async"]])
def test_demote_none_deletes_what_model_checkpoint_deletes(tmp_path: Path, plugins: list[str]) -> None:
    """`demote="none"`: nothing moves, and the list has only what is there."""
    io = {"plugins": [AsyncCheckpointIO() for _ in plugins]}
    train(tmp_path, saves(tmp_path), tiering(tmp_path, demote="none"), **io)
    assert names(tmp_path) == {"step=5.ckpt"}
    assert tiers(tmp_path) == {5: "hot"}
    assert not (tmp_path / "cold").exists() or not list((tmp_path / "cold").rglob("*.ckpt"))


def test_a_pin_holds_against_rules_and_deletion(tmp_path: Path) -> None:
    """What is pinned while training runs stays hot."""

    class Pins(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step == 2:
                inventory = room_above(str(tmp_path / "run")).inventory
                inventory.pin(inventory.records()[0].id)

    train(tmp_path, Pins(), saves(tmp_path), tiering(tmp_path, keep=last(1), cold=None))
    assert "step=1.ckpt" in names(tmp_path)


def test_a_hot_quota_moves_the_oldest(tmp_path: Path) -> None:
    """What a rule keeps is moved too when the hot disk has no room for it."""
    probe, _ = train(tmp_path / "probe", saves(tmp_path / "probe"), tiering(tmp_path / "probe"))
    assert probe.checkpoint_callback is not None
    size = os.path.getsize(probe.checkpoint_callback.best_model_path)  # type: ignore[attr-defined]
    quota = 2.5 * size
    train(tmp_path, saves(tmp_path, save_top_k=-1), tiering(tmp_path, keep=last(5), hot_quota=quota))
    assert [step for step, tier in tiers(tmp_path).items() if tier == "hot"] == [4, 5]


@pytest.mark.parametrize("keep", [by_model_checkpoint(), last(2)])
def test_what_no_rule_keeps_expires(tmp_path: Path, keep: Rule) -> None:
    """`expire_after="0.001s"`: what goes is deleted everywhere, what stays does not."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path, keep=keep, expire_after="0.001s"))
    assert sorted(tiers(tmp_path)) == ([5] if keep == by_model_checkpoint() else [4, 5])
    assert not list((tmp_path / "cold").rglob("*.ckpt"))


def test_a_failed_run_may_keep_less(tmp_path: Path) -> None:
    """`on_failed_run` holds for a run that an exception ended, and only for that."""
    ours = tiering(tmp_path, keep=last(1), on_failed_run="expire 0.001s")
    train(tmp_path, saves(tmp_path, save_top_k=-1), ours, steps=3)
    assert sorted(tiers(tmp_path)) == [1, 2, 3]
    with pytest.raises(RuntimeError):
        train(tmp_path, saves(tmp_path, save_top_k=-1), ours, module=Remembering(fails_at=2), steps=3)
    (of_failed,) = (r for r in records(tmp_path) if r.order > 3)
    assert (of_failed.step, of_failed.tier) == (2, "hot")
    assert len(records(tmp_path)) == 4


def test_a_test_that_fails_is_no_failed_run(tmp_path: Path) -> None:
    """Only a training that an exception ended is; its good checkpoints do not expire for it."""
    ours = tiering(tmp_path, keep=last(1), on_failed_run="expire 0.001s")
    trainer, _ = train(tmp_path, saves(tmp_path, save_top_k=-1), ours)

    class Broken(Tiny):
        def test_step(self, *_: Any) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        trainer.test(Broken(), loader(1), verbose=False)
    assert not room_above(str(tmp_path / "run")).inventory.history().failed
    train(tmp_path, saves(tmp_path), tiering(tmp_path, keep=last(1), on_failed_run="expire 0.001s"))
    assert {1, 2, 3, 4, 5} <= set(tiers(tmp_path))


def test_a_training_without_rules_deletes_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    """What the first run's rules keep is not the second's to let go."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path, keep=last(3)))
    first = {r.id for r in records(tmp_path)}
    other = ModelCheckpoint(tmp_path / "other", "{step}", every_n_train_steps=1)
    train(tmp_path, other, tiering(tmp_path, keep=None))
    assert first <= {r.id for r in records(tmp_path)}
    assert {"step=3.ckpt", "step=4.ckpt", "step=5.ckpt"} <= names(tmp_path)


@pytest.mark.filterwarnings("ignore::costguard.CostguardWarning")
def test_what_a_rule_keeps_stays_where_it_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: what ModelCheckpoint lets go cannot be noted, and is not deleted for it."""
    update = Inventory.update

    def full(self: Inventory, record: Any, **changes: Any) -> Any:
        if "released" in changes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return update(self, record, **changes)

    monkeypatch.setattr(Inventory, "update", full)
    train(tmp_path, saves(tmp_path), tiering(tmp_path, cold=None, keep=last(3)))
    assert {"step=3.ckpt", "step=4.ckpt", "step=5.ckpt"} <= names(tmp_path)


@pytest.mark.filterwarnings("ignore::costguard.CostguardWarning")  # that a recovery has to wait too
def test_a_restore_waits_for_the_move_of_another(tmp_path: Path) -> None:
    """A list that is busy is asked again, and the training goes on; the bandwidth of demotions holds up no restore."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path))
    room, free = room_above(str(tmp_path / "run")), threading.Event()

    def holds() -> None:
        with room.hold():
            busy.set()
            free.wait(20)

    busy = threading.Event()
    thread = threading.Thread(target=holds)
    thread.start()
    busy.wait(20)
    threading.Timer(3, free.set).start()
    gone = tmp_path / "saves" / "step=1.ckpt"
    slow = tiering(tmp_path, bandwidth=100, finish_timeout=0)
    with pytest.warns(CostguardWarning, match="is brought back when that is done"):
        trainer, _ = train(tmp_path, saves(tmp_path, every_n_train_steps=99), slow, ckpt_path=gone)
    thread.join()
    assert trainer.global_step == 5


def test_a_name_that_does_not_come_back_is_lightnings_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that leaves nothing under the name that was asked for is not repeated for ever."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path))
    monkeypatch.setattr(tiering_moves, "restore", lambda room, id: None)
    with pytest.raises(FileNotFoundError):
        train(tmp_path, saves(tmp_path), tiering(tmp_path), ckpt_path=tmp_path / "saves" / "step=1.ckpt")


def test_experiments_that_share_a_folder_are_measured_apart(tmp_path: Path) -> None:
    """Each run has its own newest and its own last ones; a restart belongs to the run that it goes on with."""
    other = ModelCheckpoint(tmp_path / "other", "{step}", every_n_train_steps=1, save_top_k=-1)
    train(tmp_path, saves(tmp_path, save_top_k=-1), tiering(tmp_path, keep=last(2)))
    train(tmp_path, other, tiering(tmp_path, keep=last(2)))
    hot = {(Path(r.path).parent.name, r.step) for r in records(tmp_path) if r.tier == "hot"}
    assert hot == {("saves", 4), ("saves", 5), ("other", 4), ("other", 5)}
    here = saves(tmp_path, save_top_k=-1)
    train(tmp_path, here, tiering(tmp_path, keep=last(1)), ckpt_path=tmp_path / "saves" / "step=5.ckpt", max_epochs=2)
    hot = {(Path(r.path).parent.name, r.step) for r in records(tmp_path) if r.tier == "hot"}
    assert hot == {("saves", 5), ("saves", 10), ("other", 5)}


def test_a_rescue_checkpoint_is_taken_up(tmp_path: Path) -> None:
    """What ModelCheckpoint saves because of an exception is listed, and is the newest for the rules."""
    keeps = saves(tmp_path, every_n_train_steps=2, save_on_exception=True)
    with pytest.raises(RuntimeError):
        train(tmp_path, keeps, tiering(tmp_path, keep=last(1)), module=Remembering(fails_at=3))
    assert tiers(tmp_path) == {2: "cold", 3: "hot"}


def test_stages_and_tags_have_rules_of_their_own(tmp_path: Path) -> None:
    """A stage's end is kept; what was saved in a stage, or by a run with a tag, expires by what was said of it."""

    class Stages(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step == 0:
                ours.begin_stage("warmup")
            if trainer.global_step == 2:
                ours.end_stage("warmup")
                ours.begin_stage("main")

    ours = tiering(tmp_path, keep=stage_end(), expire_tagged={"stage=warmup": "0.001s", "other": "0.001s"})
    train(tmp_path, Stages(), saves(tmp_path, save_top_k=-1), ours, steps=6)
    # The stage's end is called after the second save, so that one ends it.
    assert {r.step: r.stage_end for r in records(tmp_path) if r.stage_end} == {2: "warmup"}
    assert tiers(tmp_path) == {2: "hot", 3: "cold", 4: "cold", 5: "cold", 6: "hot"}
    run = tmp_path / "debugging"
    tagged = tiering(run, keep=last(1), expire_tagged={"debug": "0.001s"})
    train(run, monitor(tags={"debug": "yes"}), saves(run, save_top_k=-1), tagged)
    assert tiers(run) == {5: "hot"}


def test_a_detector_may_tell_of_an_anomaly(tmp_path: Path) -> None:
    """The newest checkpoint before it stays, in this training and in the next."""

    class Detects(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step == 4:
                ours.note_anomaly(step=3)

    ours = tiering(tmp_path, keep=before_anomaly(1))
    train(tmp_path, Detects(), saves(tmp_path, save_top_k=-1), ours)
    assert tiers(tmp_path) == {1: "cold", 2: "hot", 3: "cold", 4: "cold", 5: "hot"}
    resumed = [saves(tmp_path, save_top_k=-1), tiering(tmp_path, keep=before_anomaly(1))]
    train(tmp_path, *resumed, ckpt_path=tmp_path / "saves" / "step=5.ckpt", max_epochs=2)
    assert {step for step, tier in tiers(tmp_path).items() if tier == "hot"} == {2, 5, 10}


def test_a_floor_of_free_space_moves_the_oldest(tmp_path: Path) -> None:
    """Where less is free than should be, all goes but the newest; where enough is, nothing."""
    total = shutil.disk_usage(tmp_path).total
    for name, floor, hot in (("full", total, [5]), ("roomy", "1B", [1, 2, 3, 4, 5])):
        folder = tmp_path / name
        train(folder, saves(folder, save_top_k=-1), tiering(folder, keep=last(5), min_free=floor))
        assert [step for step, tier in tiers(folder).items() if tier == "hot"] == hot


def _as_if_large(scan: Any) -> Any:
    """Files of checkpoints look as if they had 100 kB."""

    def larger(self: HotFiles, path: str) -> tuple[FileFact, ...]:
        return tuple(replace(fact, size=100_000) if path.endswith(".ckpt") else fact for fact in scan(self, path))

    return larger


# -- what is to come -------------------------------------------------------------------------------------------------


def test_the_start_shows_what_will_be_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Number, bytes and money of the end; a tenth of the budget a month is worth a warning."""
    classes = {"storage_class": "s3:GLACIER_IR", "hot_class": "ebs:gp3"}
    ours = tiering(tmp_path, keep=last(2), **classes)
    wide = Remembering()
    wide.register_buffer("large", torch.zeros(250_000))
    with pytest.warns(CostguardWarning, match=r"storage will cost \$0\.000\d+ a month, \d+% of the budget of \$0.001"):
        train(
            tmp_path,
            BudgetStopping(limit_usd=0.001, usd_per_hour=1e-9, on_breach="return"),
            *(saves(tmp_path, every_n_train_steps=2, save_top_k=-1), ours),
            steps=10,
            module=wide,
        )
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "costguard: checkpoints:" in line)
    assert line.startswith(
        "costguard: checkpoints: 5 saves of 1.0 MB; at the end 2 hot (2.0 MB) and 3 cold (3.0 MB), $"
    )
    hot = [r for r in records(tmp_path) if r.tier == "hot" and not os.path.basename(r.path).startswith("stopped")]
    assert [r.step for r in hot] == [8, 10]
    assert all(abs(r.size_bytes - 1e6) < 2e4 for r in hot)


def test_a_disk_that_will_be_full_is_told_while_something_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each save takes a tenth of what is free: after three of them the step is named that will not fit."""
    free = iter((*range(1_000_000, 0, -100_000), *[0] * 20))
    monkeypatch.setattr(HotFiles, "free_bytes", lambda self, path: next(free))
    monkeypatch.setattr(HotFiles, "scan", _as_if_large(HotFiles.scan))
    with pytest.warns(CostguardWarning, match=r"will be full at step 12, in about .*hot_quota") as told:
        train(tmp_path, saves(tmp_path, save_top_k=-1), tiering(tmp_path, keep=last(50)), steps=15)
    assert len([w for w in told if "will be full" in str(w.message)]) == 1


# -- stores that fail ------------------------------------------------------------------------------------------------


def test_a_store_that_is_away_is_told_once_and_made_up_for(tmp_path: Path) -> None:
    """Training goes on, nothing is lost, one warning; what could not be moved is moved at the next start."""
    (tmp_path / "cold").write_text("a file where the store should be")
    with pytest.warns(CostguardWarning, match="stay on the hot disk") as told:
        trainer, _ = train(tmp_path, saves(tmp_path), tiering(tmp_path))
    assert trainer.global_step == 5
    assert len([w for w in told if w.category is CostguardWarning]) == 1
    assert names(tmp_path) == {f"step={n}.ckpt" for n in range(1, 6)}
    (tmp_path / "cold").unlink()
    train(tmp_path, saves(tmp_path), tiering(tmp_path), ckpt_path=tmp_path / "saves" / "step=5.ckpt", max_epochs=2)
    assert {step for step, tier in tiers(tmp_path).items() if tier == "cold"} == {1, 2, 3, 4, 6, 7, 8, 9}
    assert names(tmp_path) == {"step=5.ckpt", "step=10.ckpt"}


@pytest.mark.parametrize(("number", "why"), [(errno.ENOSPC, "no space left"), (errno.EROFS, "denies it")])
def test_a_cold_folder_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    """A full or read-only cold disk: training goes on, a warning says why, all stays hot."""
    replace = os.replace

    def refuse(source: Any, target: Any) -> None:
        if os.fspath(target).startswith(f"{tmp_path}/cold/"):
            raise OSError(number, os.strerror(number))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(CostguardWarning, match=why):
        train(tmp_path, saves(tmp_path), tiering(tmp_path))
    assert names(tmp_path) == {f"step={n}.ckpt" for n in range(1, 6)}
    assert {r.state for r in records(tmp_path)} <= {"hot", "demoting"}


def test_a_cold_copy_that_is_gone_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    """Resuming from a checkpoint whose cold copy was deleted by others does not begin from scratch."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path))
    shutil.rmtree(tmp_path / "cold")
    with pytest.raises(Exception, match="manifest of its cold copy is gone"):
        train(tmp_path, saves(tmp_path), tiering(tmp_path), ckpt_path=tmp_path / "saves" / "step=1.ckpt")


def test_a_damaged_cold_copy_is_never_loaded(tmp_path: Path) -> None:
    """One flipped byte in the store: an error before anything is unpickled, and nothing under the old name."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path))
    (copy,) = (tmp_path / "cold").rglob("step=1.ckpt")
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    os.chmod(copy, 0o644)
    copy.write_bytes(data)
    gone = tmp_path / "saves" / "step=1.ckpt"
    with pytest.raises(Exception, match="damaged"):
        train(tmp_path, saves(tmp_path), tiering(tmp_path), ckpt_path=gone)
    assert not gone.exists()


def test_another_cold_store_is_refused_while_the_first_holds_something(tmp_path: Path) -> None:
    """A changed `cold` would leave checkpoints that no path leads to."""
    train(tmp_path, saves(tmp_path), tiering(tmp_path))
    with pytest.raises(ConfigError, match="go on with that"):
        train(tmp_path, saves(tmp_path), tiering(tmp_path, cold="elsewhere"))


# -- company -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
def test_beside_the_monitor_time_is_charged_and_adds_up(tmp_path: Path, order: tuple[int, ...]) -> None:
    """In any order: moves at the end are `demotion`, bringing back is `restore`, and the receipt adds up."""
    for ckpt_path, epochs in ((None, 1), (tmp_path / "saves" / "step=1.ckpt", 2)):
        callbacks = [monitor(run_id="r"), tiering(tmp_path), saves(tmp_path)]
        trainer, _ = train(tmp_path, *(callbacks[i] for i in order), ckpt_path=ckpt_path, max_epochs=epochs)
        assert state_of(trainer) == [{}, {}, {}]
    activities = receipt_of(tmp_path / "run")["time"]["activities_ns"]
    assert activities["demotion"] > 0
    assert activities["restore"] > 0


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_pytorch_lightning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same library under its other name: checkpoints move, and its own old path resumes."""
    import pytorch_lightning

    class Other(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return (batch * self.weight).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    keeps = {"every_n_train_steps": 1, "save_top_k": -1}
    for ckpt_path, epochs in ((None, 1), (tmp_path / "saves" / "step=1.ckpt", 2)):
        callbacks = [
            pytorch_lightning.callbacks.ModelCheckpoint(tmp_path / "saves", "{step}", **keeps),
            CheckpointTiering(str(tmp_path / "cold"), keep=last(1)),
        ]
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        trainer = pytorch_lightning.Trainer(
            max_epochs=epochs, default_root_dir=tmp_path / "run", callbacks=callbacks, **quiet
        )
        trainer.fit(Other(), torch.utils.data.DataLoader(torch.ones(3, 8)), ckpt_path=ckpt_path)
        assert trainer.global_step == 3 * epochs
    assert tiers(tmp_path)[6] == "hot"
    assert {tiers(tmp_path)[step] for step in (2, 3, 4, 5)} == {"cold"}
    assert "3 saves of" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::costguard.CostguardWarning")  # that the budget is being spent
@pytest.mark.parametrize("first", [True, False])
def test_the_checkpoint_of_a_stop_stays_hot(tmp_path: Path, first: bool) -> None:
    """BudgetStopping's last checkpoint is the newest: it is listed, hot, and resumes."""

    class Slowly(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            time.sleep(0.05)

    quiet_trainer(tmp_path / "before", monitor()).fit(Tiny(), loader(1))  # pays for the life of this process until now
    instant = StopPriors(step_ns=1, save_ns=1, flush_ns=1, teardown_ns=1, exit_ns=1)
    stops = BudgetStopping(limit_gpu_hours=2 / 3600, priors=instant, on_breach="return")
    ours = tiering(tmp_path, keep=every(steps=1000))
    train(tmp_path, *((stops, ours) if first else (ours, stops)), Slowly(), saves(tmp_path), steps=500)
    (newest,) = (r for r in records(tmp_path) if os.path.basename(r.path).startswith("stopped-"))
    assert newest.tier == "hot"
    assert 1 < newest.step < 500
    assert {r.tier for r in records(tmp_path) if r.step < newest.step} == {"cold"}
    resumed, _ = train(tmp_path, tiering(tmp_path), ckpt_path=newest.path, max_steps=newest.step + 1)
    assert resumed.global_step == newest.step + 1


@pytest.mark.parametrize("fails_at", [None, 2])
@pytest.mark.parametrize("with_monitor", [0, 1, 2], ids=["alone", "before", "after"])
def test_nothing_is_left_behind(tmp_path: Path, fails_at: int | None, with_monitor: int) -> None:
    """After a fit, also one that failed, and after a second, the Trainer's objects are as they were."""
    ours, costs = tiering(tmp_path), monitor()
    callbacks = [[ours], [costs, ours], [ours, costs]][with_monitor]
    trainer = quiet_trainer(tmp_path / "run", *callbacks, saves(tmp_path), enable_checkpointing=True)
    before = state_of(trainer)
    for _ in range(2):
        if fails_at is None:
            trainer.fit(Tiny(), loader(3))
        else:
            with pytest.raises(RuntimeError):
                trainer.fit(Tiny(fails_at=fails_at), loader(3))
        assert state_of(trainer) == before
        trainer.fit_loop.max_epochs = 3


def test_a_users_own_saves_are_listed_by_their_names(tmp_path: Path) -> None:
    """`trainer.save_checkpoint` of the user's own is taken up, and without rules nothing of it moves."""
    train(tmp_path, Saves(tmp_path, 2, 4), tiering(tmp_path), enable_checkpointing=False)
    assert tiers(tmp_path) == {2: "hot", 4: "hot"}


def test_two_in_one_trainer_are_refused(tmp_path: Path) -> None:
    """Two callbacks would move the same files."""
    with pytest.raises(ConfigError, match="two in one Trainer"):
        train(tmp_path, tiering(tmp_path), tiering(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "nothing to do"),
        ({"cold": "x", "demote": "all"}, "expected 'rest' or 'none'"),
        ({"cold": "x", "bandwidth": 0}, "expected bytes a second above 0"),
        ({"cold": "x", "keep": last(1), "expire_after": "-1d"}, "expected a number above 0 and a unit"),
        ({"cold": "x", "expire_after": "30d"}, "without keep: say first what stays"),
        ({"cold": "x", "keep": "lst(3)"}, "did you mean 'last'"),
        ({"cold": "x", "keep": last(1), "on_failed_run": "delete"}, "expected 'keep' or such as 'expire 7d'"),
        ({"cold": "x", "keep": last(1), "hot_quota": "many"}, "such as 500GB"),
        ({"cold": "x", "keep": last(1), "min_free": "110%"}, "expected a percentage below 100"),
        ({"cold": "x", "keep": last(1), "expire_tagged": {"debug": "soon"}}, "expire_tagged"),
        ({"cold": "x", "verify": "all"}, "expected 'size', 'etag' or 'content'"),
        ({"cold": "x", "finish_timeout": -1}, "expected seconds of at least 0"),
        ({"cold": "x", "storage_class": "s3:NONE"}, "s3:NONE"),
        ({"keep": 3}, "expected rules of costguard.keep"),
    ],
)
def test_a_bad_value_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    """Who, what, why and the remedy."""
    with pytest.raises(ConfigError, match=sentence):
        CheckpointTiering(**arguments)


# -- deaths ------------------------------------------------------------------------------------------------------------

KILLED = Path(__file__).with_name("killed_tiering.py")


@pytest.mark.parametrize("line", [2, 5, 8])
def test_killed_while_moving_nothing_is_lost(tmp_path: Path, line: int) -> None:
    """SIGKILL while checkpoints are sent: every one is hot or cold, whole, and the next training goes on with it."""
    child = start(KILLED, tmp_path)
    for _ in range(line):
        child.read_until(lambda text: text.startswith("saved"))
    child.process.kill()
    child.finish()
    known = [r for r in records(tmp_path) if r.complete]
    assert len(known) >= line
    train(tmp_path, saves(tmp_path), tiering(tmp_path), steps=1)
    assert {r.id for r in known} <= {r.id for r in records(tmp_path)}
    assert {r.state for r in records(tmp_path)} <= {"hot", "cold"}
    for record in records(tmp_path):
        assert torch.load(fetch(record.path), weights_only=False)["global_step"] == record.step
    assert not list(tmp_path.rglob(".costguard-trash"))


# -- a real S3 server --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_cold_on_s3(tmp_path: Path, seaweed_url: str) -> None:
    """The cold store is a bucket: weights come back bitwise, and no credentials are written down."""
    ours: dict[str, Any] = {
        "keep": "by_model_checkpoint()",
        "bandwidth": 1e12,
        "storage_options": {"client_kwargs": {}},
    }
    _, module = train(tmp_path, saves(tmp_path), CheckpointTiering(seaweed_url, **ours), steps=3)
    assert names(tmp_path) == {"step=3.ckpt"}
    gone = tmp_path / "saves" / "step=1.ckpt"
    train(tmp_path, saves(tmp_path), CheckpointTiering(seaweed_url, **ours), steps=3, ckpt_path=gone)
    assert torch.equal(weight_in(gone), module.weights[1])
    assert all(KEY not in f.read_text() for f in (tmp_path / "run" / "costguard-checkpoints").iterdir())


# -- from a configuration ----------------------------------------------------------------------------------------------

YAML = """
trainer:
  accelerator: cpu
  devices: 1
  max_steps: 4
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  default_root_dir: run
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {dirpath: saves, filename: "{step}", every_n_train_steps: 1}
    - class_path: costguard.CheckpointTiering
      init_args:
        cold: cold
        keep:
          class_path: costguard.keep.any_of
          init_args:
            rules:
              - {class_path: costguard.keep.last, init_args: {n: 1}}
              - {class_path: costguard.keep.every, init_args: {steps: 2}}
"""


@pytest.mark.filterwarnings("ignore")
def test_rules_from_a_lightning_cli_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are plain data in a YAML, joined by `any_of`."""
    from lightning.pytorch import LightningDataModule
    from lightning.pytorch.cli import LightningCLI

    class Data(LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader(4)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(YAML)
    cli = LightningCLI(Tiny, Data, save_config_callback=None, args=["fit", "--config", "config.yaml"])
    assert cli.trainer.global_step == 4
    assert tiers(tmp_path) == {1: "cold", 2: "hot", 3: "cold", 4: "hot"}


@pytest.mark.filterwarnings("ignore")
def test_rules_in_a_yaml_may_be_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a command line."""
    from lightning.pytorch import LightningDataModule
    from lightning.pytorch.cli import LightningCLI

    class Data(LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader(4)

    monkeypatch.chdir(tmp_path)
    head = YAML[: YAML.index("        keep:")]
    (tmp_path / "config.yaml").write_text(f"{head}        keep: last(1) | every(steps=2)\n        hot_quota: 500GB\n")
    LightningCLI(Tiny, Data, save_config_callback=None, args=["fit", "--config", "config.yaml"])
    assert tiers(tmp_path) == {1: "cold", 2: "hot", 3: "cold", 4: "hot"}


def test_a_callback_can_be_copied_and_sent(tmp_path: Path) -> None:
    """Launchers that spawn send callbacks to other processes, also after a fit."""
    ours = tiering(tmp_path, keep=last(2))
    train(tmp_path, saves(tmp_path), ours)
    for copy_of in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        train(tmp_path, saves(tmp_path), copy_of)
