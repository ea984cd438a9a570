"""A training that a Slurm job starts under a budget: `slurm_training.py FOLDER LIMIT`, at a dollar a second.

It names no run: that a start belongs to the run of the one before is for the job to say.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch import Tensor
from torch.utils.data import DataLoader

from budgeted import DOLLAR_A_SECOND
from costguard import BudgetStopping
from costguard.policies.reserve import StopPriors
from helpers import NS_PER_S, Tiny, loader, monitor, quiet_trainer

PRIORS = StopPriors(step_ns=NS_PER_S // 10, save_ns=NS_PER_S, flush_ns=0, teardown_ns=NS_PER_S, exit_ns=3 * NS_PER_S)


class Loading(Tiny):
    """Says when its data are loaded, and takes a hundredth of a second a step."""

    def train_dataloader(self) -> DataLoader[Any]:
        print("data", flush=True)
        return loader(1_000_000)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        time.sleep(0.01)
        return super().training_step(batch, batch_idx)


def main(folder: Path, limit: float) -> None:
    warnings.simplefilter("ignore")
    print("start", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
    stopping = BudgetStopping(limit_usd=limit, priors=PRIORS)
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, dir=str(folder))
    trainer = quiet_trainer(folder, stopping, cost, max_epochs=-1)
    environment = trainer._accelerator_connector.cluster_environment
    print("environment", type(environment).__name__, SLURMEnvironment.job_id(), flush=True)
    trainer.fit(Loading(logs=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
