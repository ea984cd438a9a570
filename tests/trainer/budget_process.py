"""A training in a process of its own under a budget: `budget_process.py FOLDER RUN LIMIT [POT]`.

At a dollar a second; it prints each step, saves every 100, and goes on from the last checkpoint where there is one.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from budgeted import DOLLAR_A_SECOND
from costguard import BudgetStopping
from costguard.policies.reserve import StopPriors
from helpers import NS_PER_S, Tiny, loader, monitor, quiet_trainer

SAVE_EVERY = 100
PRIORS = StopPriors(step_ns=NS_PER_S // 10, save_ns=NS_PER_S, flush_ns=0, teardown_ns=NS_PER_S, exit_ns=3 * NS_PER_S)


class Slow(Tiny):
    """Takes a hundredth of a second a step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        time.sleep(0.01)
        return super().training_step(batch, batch_idx)


class Reports(Callback):
    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        print(trainer.global_step, flush=True)


def main(folder: Path, run: str, limit: float, pot: str | None = None) -> None:
    warnings.simplefilter("ignore")
    saves = ModelCheckpoint(folder / "saves" / run, every_n_train_steps=SAVE_EVERY, save_last=True)
    stopping = BudgetStopping(limit_usd=limit, pot=pot, priors=PRIORS, on_breach="exit")
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id=run, dir=str(folder))
    trainer = quiet_trainer(folder, stopping, cost, saves, Reports(), max_epochs=-1, enable_checkpointing=True)
    last = folder / "saves" / run / "last.ckpt"
    trainer.fit(Slow(logs=False), loader(1_000_000), ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), *sys.argv[4:])
