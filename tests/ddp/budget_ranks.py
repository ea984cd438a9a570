"""A script that Lightning or torchrun starts as two ranks: `budget_ranks.py FOLDER WHAT`.

It trains at a dollar a second and device until its budget stops it. Each rank leaves `rank-N-ATTEMPT.json` with what it
has seen: the step at which it stopped, whether any data was touched, and the time its process has lived.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from budgeted import DOLLAR_A_SECOND
from costguard import BudgetStopping, CostMonitor
from costguard.clock import process_start_ns
from costguard.policies.reserve import StopPriors
from helpers import NS_PER_S, now_ns, quiet_trainer

RANK = int(os.environ.get("LOCAL_RANK", "0"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
SLOW_S, FAST_S = 0.03, 0.01
PRIORS = StopPriors(
    step_ns=NS_PER_S // 10, save_ns=NS_PER_S, flush_ns=NS_PER_S // 10, teardown_ns=NS_PER_S, exit_ns=3 * NS_PER_S
)


class Data:
    """Notes that it was read."""

    touched = 0

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        self.touched += 1
        return torch.ones(2, 8)


class Model(LightningModule):
    """Of some layers, so that there is something to shard; rank 1 is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def configure_model(self) -> None:
        mesh = getattr(self, "device_mesh", None)
        if mesh is not None:
            from torch.distributed.fsdp import fully_shard

            for layer in self.net:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh["data_parallel"])
            fully_shard(self.net, mesh=mesh["data_parallel"])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        time.sleep(SLOW_S if RANK == 1 else FAST_S)
        return self.net(batch).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(0.1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Terminates(Callback):
    """Sends this process SIGTERM at a step."""

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 20 and RANK == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def main(folder: Path, what: str) -> None:
    warnings.simplefilter("ignore")
    data, saves = Data(), ModelCheckpoint(folder / "saves", every_n_train_steps=1000)
    limit = 60 if what == "signal" else 36
    cost = CostMonitor(usd_per_gpu_hour=DOLLAR_A_SECOND, peak_flops_per_s=1e9, dir=str(folder), run_id="r")
    if what == "torchrun":
        limit = 130
        cost = CostMonitor(usd_per_gpu_hour=DOLLAR_A_SECOND, peak_flops_per_s=1e9, dir=str(folder))
    stopping = BudgetStopping(limit_usd=limit, priors=PRIORS, on_breach="auto" if what == "torchrun" else "return")
    strategy: Any = "ddp"
    if what == "fsdp2":
        from lightning.pytorch.strategies import ModelParallelStrategy

        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    more = [Terminates()] if what == "signal" else []
    options: dict[str, Any] = {}
    if what == "accumulate":
        options = {"accumulate_grad_batches": 2, "min_steps": 100_000, "val_check_interval": 41}
    trainer = quiet_trainer(
        folder, stopping, cost, saves, *more, strategy=strategy, devices=2, enable_checkpointing=True, **options
    )
    train = torch.utils.data.DataLoader(data, batch_size=None)
    val = torch.utils.data.DataLoader([torch.ones(2, 8)] * 4, batch_size=None) if what == "accumulate" else None
    code: Any = 0
    try:
        trainer.fit(Model(), train, val)
    except SystemExit as end:
        code = end.code
        raise
    finally:
        told = {
            "step": trainer.global_step,
            "touched": data.touched,
            "code": code,
            "reason": getattr(stopping.stopped_by, "reason", None),
            "signal": str(signal.getsignal(signal.SIGTERM)),
            "lived_s": (now_ns() - (process_start_ns() or 0)) / NS_PER_S,
        }
        (folder / f"rank-{RANK}-{ATTEMPT}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
