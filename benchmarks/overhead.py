"""What a step costs with CostMonitor, with BudgetStopping too, and with Lightning's ThroughputMonitor, in one run.

A tiny model, so that the callbacks show. One training goes on while every few steps another variant takes its turn:
bare, with CostMonitor, with CostMonitor and BudgetStopping, with ThroughputMonitor. The median step of each turn is
compared with that of the bare turn beside it, a few hundredths of a second away, so that the machine's drift meets them
all alike; the figure is the median of these differences. The ratios count: absolute times depend on the machine.
Run `python benchmarks/overhead.py [--steps 15000] [--ranks 2]`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import random
import statistics
import tempfile
import time
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from costguard import BudgetStopping, CostMonitor

TURN = 20
"""Steps of one turn; the first three after a change are not counted."""
ASKED = {50: 0.75, 1: 0.25}
"""Largest share of ThroughputMonitor's cost that CostMonitor may take, by log_every_n_steps."""
ASKED_OF_BOTH = 1.0
"""Largest share that CostMonitor and BudgetStopping may take together, at 50."""
_FOLDER = "COSTGUARD_BENCHMARK_FOLDER"
_HOOK = "on_train_batch_start"
"""What CostMonitor wraps on the strategy."""
OURS, BOTH, PEER = "CostMonitor", "with BudgetStopping", "ThroughputMonitor"


class Tiny(LightningModule):
    """Four small linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
        self.flops_per_batch = 3 * 2 * 4 * 16 * 16 * 4

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Mean square of the output; logs it, as most modules do."""
        loss = self.layers(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Turns(Callback):
    """Puts another variant's callback in place every few steps, and notes the time of each step.

    Args:
        variants: The callbacks of each variant, none for the bare one.
    """

    def __init__(self, variants: dict[str, list[Callback]]) -> None:
        self.variants = variants
        self.turns_us: dict[str, list[float]] = {name: [] for name in variants}
        self.steps_us: dict[str, list[float]] = {name: [] for name in variants}
        self._steps_us: list[float] = []
        self._order = random.Random(0)
        self._coming: list[str] = []
        self._now = ""
        self._age = 0
        self._began = 0
        self._wraps: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember what CostMonitor has wrapped on the logger, which the other variants are to be without."""
        self._wraps = dict(vars(trainer.loggers[0]))
        self._hook = vars(trainer.strategy)[_HOOK]
        (monitor,) = self.variants[OURS]
        self._acts = monitor.metered.after_batch
        self._own_acts = list(self._acts)
        asked = [callback for callbacks in self.variants.values() for callback in callbacks]
        self._others = [c for c in trainer.callbacks if c not in asked]

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        """The step before this one is over."""
        now = time.perf_counter_ns()
        self._age += 1
        if self._age > 3:
            self._steps_us.append((now - self._began) / 1000)
        self._began = now

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Change places when the turn is over."""
        if self._now and self._age < TURN:
            return
        if self._now:
            self.turns_us[self._now].append(statistics.median(self._steps_us))
            self.steps_us[self._now] += self._steps_us
            self._steps_us = []
        if not self._coming:
            # The order is drawn anew, so that no variant always follows the same other one.
            self._coming = self._order.sample(list(self.variants), len(self.variants))
        self._now, self._age = self._coming.pop(), 0
        callbacks = self.variants[self._now]
        trainer.callbacks = [*self._others, *callbacks]
        ours = any(isinstance(callback, CostMonitor) for callback in callbacks)
        for name in ("log_metrics", "save"):
            if ours:
                vars(trainer.loggers[0])[name] = self._wraps[name]
            else:
                vars(trainer.loggers[0]).pop(name, None)
        self._acts[:] = self._own_acts if any(isinstance(c, BudgetStopping) for c in callbacks) else []
        if ours:
            vars(trainer.strategy)[_HOOK] = self._hook
        else:
            vars(trainer.strategy).pop(_HOOK, None)


def measure(steps: int, log_every: int, folder: str, ranks: int) -> Turns:
    """Train once, and return what each turn took."""
    monitor = CostMonitor(usd_per_gpu_hour="2.49", peak_flops_per_s=1e11)
    budget = BudgetStopping(limit_usd=1_000_000)
    peer = ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]))
    variants: dict[str, list[Callback]] = {"bare": [], OURS: [monitor], BOTH: [monitor, budget], PEER: [peer]}
    turns = Turns(variants)
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_steps=steps,
        callbacks=[monitor, budget, peer, turns],
        logger=CSVLogger(folder, flush_logs_every_n_steps=100),
        log_every_n_steps=log_every,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Tiny(), DataLoader(TensorDataset(torch.rand(4 * steps * ranks, 16)), batch_size=4))
    return turns


def main() -> None:
    """Print one table for each log interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15000, help="steps of each of the two trainings")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of a DDP training on this machine")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    for log_every, asked in ASKED.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            # Ranks are this script, started again by the first.
            turns = measure(arguments.steps, log_every, os.environ.setdefault(_FOLDER, folder), arguments.ranks)
        if os.environ.get("LOCAL_RANK", "0") != "0":
            continue
        turns_us = turns.turns_us
        rounds = min(len(turns) for turns in turns_us.values())
        bare = turns_us["bare"][:rounds]
        added = {
            name: statistics.median(turn - beside for turn, beside in zip(took[:rounds], bare, strict=True))
            for name, took in turns_us.items()
            if name != "bare"
        }
        ratio, both = (added[name] / added[PEER] for name in (OURS, BOTH))
        step = statistics.median(bare)
        print(f"log_every_n_steps={log_every}: bare step {step:.1f} us, {rounds} rounds of {TURN} steps")
        for name, value in added.items():
            print(f"  {name:<20} adds {value:6.1f} us")
        if arguments.ranks > 1:
            for name, took in turns.steps_us.items():
                p99 = statistics.quantiles(took, n=100)[98]
                print(f"  {name:<20} mean {statistics.fmean(took):8.1f} us, p99 {p99:8.1f} us")
        print(f"  ratio {ratio:.2f}, asked for at most {asked}")
        print(f"  with BudgetStopping {both:.2f}" + (f", asked for at most {ASKED_OF_BOTH}" if log_every == 50 else ""))


if __name__ == "__main__":
    main()
