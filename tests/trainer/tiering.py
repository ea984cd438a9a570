"""What the tests of `CheckpointTiering` share: a training whose weights are remembered, and a look at the two tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from costguard import CheckpointTiering
from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.record import Record
from costguard.keep import by_model_checkpoint
from helpers import Tiny, loader, quiet_trainer


class Remembering(Tiny):
    """Remembers its weight after each step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.weights: dict[int, torch.Tensor] = {}

    def on_train_batch_end(self, *_: Any) -> None:
        self.weights[self.trainer.global_step] = self.weight.detach().clone()


def saves(folder: Path, **options: Any) -> ModelCheckpoint:
    """A `ModelCheckpoint` after every step, of which it keeps the newest."""
    newest = {"monitor": "step", "mode": "max"} if options.get("save_top_k", 1) > 1 else {}
    return ModelCheckpoint(folder / "saves", "{step}", **{"every_n_train_steps": 1, **newest, **options})


def tiering(folder: Path, *, cold: str | None = "cold", **options: Any) -> CheckpointTiering:
    """Moves to a folder beside the run, by default just what ModelCheckpoint would delete."""
    return CheckpointTiering(
        cold and str(folder / cold), **{"bandwidth": 1e12, "keep": by_model_checkpoint(), **options}
    )


def train(folder: Path, *callbacks: Callback, steps: int = 5, **options: Any) -> tuple[Trainer, Remembering]:
    """Train some steps in `folder/run`."""
    ckpt_path, module = options.pop("ckpt_path", None), options.pop("module", None) or Remembering()
    trainer = quiet_trainer(folder / "run", *callbacks, **{"enable_checkpointing": True, **options})
    trainer.fit(module, loader(steps), ckpt_path=ckpt_path)
    return trainer, module


def records(folder: Path) -> list[Record]:
    """What is listed of the run."""
    return room_above(str(folder / "run")).inventory.records()


def tiers(folder: Path) -> dict[int, str]:
    """Where the newest checkpoint of each step is."""
    return {record.step: record.tier for record in records(folder)}


def names(folder: Path) -> set[str]:
    """What lies in the folder that `saves` writes to."""
    return {path.name for path in (folder / "saves").iterdir() if not path.name.startswith(".")}


def weight_in(path: Path | str) -> torch.Tensor:
    """The weight in a checkpoint."""
    weight: torch.Tensor = torch.load(path, weights_only=False)["state_dict"]["weight"]
    return weight


def state_of(trainer: Trainer) -> list[dict[str, Any]]:
    """Everything that is set on the instances that are wrapped."""
    names = ("save_checkpoint", "remove_checkpoint", "load_checkpoint", "_teardown", "teardown")
    objects = (trainer, trainer.strategy, trainer.strategy.checkpoint_io)
    return [{name: vars(each)[name] for name in names if name in vars(each)} for each in objects]
