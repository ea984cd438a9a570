"""A process that trains in quick steps and reports each: run by tests as `fast_steps.py FOLDER MAX_STEPS [FAILS_AT]`.

It saves a checkpoint every 100 steps, and goes on from the last one where there is one. With LINGERS in the
environment it stays for a while after training.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from helpers import Tiny, loader, monitor, quiet_trainer

SAVE_EVERY = 100
LINE = 4096
"""Width of a line: a pipe holds 16 of them, so the process is never further ahead of who reads them."""


class Reports(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        sys.stdout.write(str(trainer.global_step).ljust(LINE - 1) + "\n")
        sys.stdout.flush()


def main(folder: Path, max_steps: int, fails_at: int | None = None) -> None:
    # Started from a shell's background job, a process would ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    saves = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=SAVE_EVERY, save_last=True)
    trainer = quiet_trainer(
        folder, monitor(), Reports(), saves, max_epochs=-1, max_steps=max_steps, enable_checkpointing=True
    )
    last = folder / "checkpoints" / "last.ckpt"
    trainer.fit(Tiny(fails_at=fails_at), loader(10_000), ckpt_path=last if last.exists() else None)
    if "LINGERS" in os.environ:
        print("lingers", flush=True)
        time.sleep(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
