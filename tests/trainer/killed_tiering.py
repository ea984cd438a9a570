"""A script that trains with checkpoints in two tiers, slowly, until it is killed: `killed_tiering.py FOLDER`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from helpers import TESTS

sys.path.insert(0, str(TESTS / "trainer"))

from tiering import Remembering, saves, tiering, train

warnings.simplefilter("ignore")


class Says(Callback):
    """Says what was saved at the batch before."""

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        print("saved" if trainer.global_step else "begins", trainer.global_step, flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    train(folder, saves(folder), Says(), tiering(folder, bandwidth=20_000), steps=10_000, module=Remembering())
