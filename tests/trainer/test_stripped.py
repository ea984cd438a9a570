"""Checkpoints without optimizer state in real trainings: how small they get, what reads them, and what refuses to."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from tiering import records, saves, tiering, tiers, train
from torch import Tensor, nn

from costguard import CheckpointTiering, CostguardWarning, fetch
from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.restore import restore
from costguard.checkpoints.stripping import strip
from helpers import LIGHTNING_WARNINGS, Tiny, loader

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]


class Adam(Tiny):
    """A layer and Adam, whose moments are two thirds of a checkpoint; remembers its weights after each step."""

    def __init__(self, **hparams: Any) -> None:
        super().__init__()
        self.save_hyperparameters(hparams)
        self.layer = nn.Linear(64, 64)
        self.weights: dict[int, Tensor] = {}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.layer(torch.ones(64)).square().sum() + self.weight
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.weights[self.trainer.global_step] = self.layer.weight.detach().clone()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def stripping(folder: Path, **options: Any) -> CheckpointTiering:
    """Strips at once what no rule keeps."""
    return tiering(folder, strip_optimizer_after="0.000001s", **options)


def cold_ones(folder: Path) -> Adam:
    """A training that has left four checkpoints cold and one hot."""
    _, module = train(folder, saves(folder), tiering(folder), module=Adam())
    assert tiers(folder) == {1: "cold", 2: "cold", 3: "cold", 4: "cold", 5: "hot"}
    return module  # type: ignore[return-value]


def more(folder: Path, ours: CheckpointTiering) -> tuple[Trainer, Any]:
    """Goes on from the newest."""
    newest = folder / "saves" / "step=5.ckpt"
    return train(folder, saves(folder), ours, module=Adam(), ckpt_path=newest, max_epochs=2)


@pytest.mark.parametrize("from_hot", [False, True])
def test_cold_checkpoints_lose_their_optimizer_state(tmp_path: Path, from_hot: bool) -> None:
    """A third in size, the very weights, and everything else of Lightning's as it was; the newest stays whole."""
    if from_hot:
        _, module = train(tmp_path, saves(tmp_path), stripping(tmp_path), module=Adam())
        whole = os.path.getsize(tmp_path / "saves" / "step=5.ckpt")
    else:
        module = cold_ones(tmp_path)
        whole = records(tmp_path)[0].size_bytes
        room = room_above(str(tmp_path / "run"))
        before = torch.load(restore(room, records(tmp_path)[1].id, to=str(tmp_path / "copy")), weights_only=True)
        more(tmp_path, stripping(tmp_path))
    stripped = [r for r in records(tmp_path) if r.stripped]
    assert [r.step for r in stripped][:4] == [1, 2, 3, 4]
    assert {r.tier for r in stripped} == {"cold"}
    assert {r.state for r in records(tmp_path)} <= {"hot", "both", "cold"}
    assert all(0.3 * whole < r.size_bytes < 0.5 * whole for r in stripped)
    assert sum(p.stat().st_size for p in (tmp_path / "cold").rglob("*.ckpt")) == sum(r.size_bytes for r in stripped)
    for record in stripped[:4]:
        loaded = torch.load(fetch(record.path), weights_only=True)
        assert torch.equal(loaded["state_dict"]["layer.weight"], module.weights[record.step])  # type: ignore[index,operator]
        assert "optimizer_states" not in loaded
    if not from_hot:
        after = torch.load(tmp_path / "saves" / "step=2.ckpt", weights_only=True)
        assert before.keys() - after.keys() == {"optimizer_states"}
        assert all(before[key] == after[key] for key in after if key != "state_dict")


def test_what_only_reads_takes_the_old_path(tmp_path: Path) -> None:
    """`validate`, `test` and `predict` get the weights of a stripped one; so does `load_from_checkpoint`."""
    module = cold_ones(tmp_path)
    trainer, _ = more(tmp_path, stripping(tmp_path))
    for step, run in ((1, trainer.test), (2, trainer.validate)):
        tested = Adam()
        path = tmp_path / "saves" / f"step={step}.ckpt"
        assert not path.exists()
        run(tested, loader(1), ckpt_path=str(path), verbose=False)
        assert torch.equal(tested.layer.weight, module.weights[step])
    loaded = Adam.load_from_checkpoint(fetch(str(tmp_path / "saves" / "step=3.ckpt")))
    assert torch.equal(loaded.layer.weight.cpu(), module.weights[3])


@pytest.mark.parametrize("was_read", [False, True])
def test_training_does_not_go_on_from_it(tmp_path: Path, was_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence in place of Lightning's `KeyError`, before anything is fetched, also where it is hot again."""
    cold_ones(tmp_path)
    more(tmp_path, stripping(tmp_path))
    path = tmp_path / "saves" / "step=2.ckpt"
    if was_read:
        fetch(str(path))
    monkeypatch.setattr("costguard.lightning.tiering_moves.restore", pytest.fail)
    with pytest.raises(CheckpointError, match=r"step=2.ckpt: its optimizer state was left away .* cannot go on"):
        train(tmp_path, saves(tmp_path), tiering(tmp_path), module=Adam(), ckpt_path=path)
    assert not any(r.resumed_from for r in records(tmp_path) if r.stripped)


def test_what_cannot_be_stripped_moves_whole(tmp_path: Path) -> None:
    """A type of the user's in the hyperparameters: one warning with the remedy, and what is hot is demoted as ever."""
    with pytest.warns(CostguardWarning, match=r"weights_only=True .*Path") as told:
        train(tmp_path, saves(tmp_path), stripping(tmp_path), module=Adam(odd=Path))
    assert len([w for w in told if w.category is CostguardWarning]) == 1
    assert tiers(tmp_path) == {1: "cold", 2: "cold", 3: "cold", 4: "cold", 5: "hot"}
    assert not any(r.stripped for r in records(tmp_path))
    assert "optimizer_states" in torch.load(fetch(records(tmp_path)[1].path), weights_only=False)


def test_a_full_disk_demotes_what_it_cannot_strip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no space for the smaller one, the hot disk is not left full: the checkpoint moves whole."""
    append = HotFiles.append

    def full(files: HotFiles, path: str, data: bytes) -> None:
        if f"{os.sep}strip-" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(files, path, data)

    monkeypatch.setattr(HotFiles, "append", full)
    with pytest.warns(CostguardWarning, match="keeps its optimizer state for now") as told:
        train(tmp_path, saves(tmp_path), stripping(tmp_path), module=Adam())
    assert len([w for w in told if w.category is CostguardWarning]) == 1
    assert tiers(tmp_path) == {1: "cold", 2: "cold", 3: "cold", 4: "cold", 5: "hot"}
    assert not any(r.stripped for r in records(tmp_path))
    monkeypatch.undo()
    more(tmp_path, stripping(tmp_path))
    assert {r.step for r in records(tmp_path) if r.stripped} >= {1, 2, 3, 4}


def test_weights_alone_are_demoted_without_a_word(tmp_path: Path) -> None:
    """`save_weights_only=True` leaves nothing to strip: it moves as ever, and is not tried again."""
    keeps = saves(tmp_path, save_weights_only=True)
    train(tmp_path, keeps, stripping(tmp_path), module=Adam())
    assert tiers(tmp_path) == {1: "cold", 2: "cold", 3: "cold", 4: "cold", 5: "hot"}
    assert {bool(r.kept_whole) for r in records(tmp_path) if r.tier == "cold"} == {True}
    assert strip(room_above(str(tmp_path / "run")), records(tmp_path)[0].id) == records(tmp_path)[0]
