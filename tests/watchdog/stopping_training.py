"""A training with `on_stop`: `stopping_training.py FOLDER COMMAND WHEN DISK_SURVIVES`; prints each step.

A device costs a dollar a second, and the limit is reached some seconds after the script has come to its Trainer.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from costguard import BudgetStopping, CostMonitor
from costguard.clock import SystemClock, process_start_ns
from costguard.lightning import releasing
from costguard.policies.reserve import StopPriors
from helpers import Tiny, loader, quiet_trainer

SECONDS = 4


class Slowly(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        time.sleep(0.05)
        print(trainer.global_step, flush=True)


def main(folder: str, command: str, when: str, disk_survives: str) -> None:
    releasing.GRACE_S = float(os.environ.get("GRACE_S", "0.5"))
    priors = StopPriors()
    so_far_s = (SystemClock().now_ns() - (process_start_ns() or 0)) / 1e9
    guard = BudgetStopping(
        limit_usd=os.environ.get("LIMIT_USD") or f"{so_far_s + SECONDS + reserve_s(priors):.3f}",
        on_breach="exit",
        priors=priors,
        on_stop=command,
        on_stop_when=when.split(","),  # type: ignore[arg-type]
        disk_survives=disk_survives == "yes",
    )
    cost = CostMonitor(usd_per_gpu_hour=3600, peak_flops_per_s=1e9)
    quiet_trainer(folder, cost, guard, Slowly(), max_epochs=-1).fit(Tiny(), loader(10_000))


def reserve_s(priors: StopPriors) -> float:
    from costguard.policies.reserve import StopSamples, price_of_stopping

    nothing: Any = StopSamples(step_ns=[], save_ns=[], teardown_ns=[], exit_ns=[])
    return price_of_stopping(nothing, priors=priors, agreement_steps=1).ns / 1e9


if __name__ == "__main__":
    main(*sys.argv[1:])
