"""What a step costs with CostMonitor and with Lightning's own ThroughputMonitor, alternating in one run.

A tiny model, so that the callbacks show; blocks of steps alternate bare / CostMonitor / ThroughputMonitor, and the
figure is the median step of each, less the bare one. The ratio of the two is what counts: absolute times depend on
the machine. Run `python benchmarks/overhead.py [--steps 600] [--rounds 7]`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from costguard import CostMonitor

WARM_UP = 50
ASKED = {50: 0.75, 1: 0.25}
"""Largest share of ThroughputMonitor's cost that CostMonitor may take, by log_every_n_steps."""


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


class StepClock(Callback):
    """Notes when each batch begins."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def on_train_batch_start(self, *_: object) -> None:
        """Read the clock."""
        self.times.append(time.perf_counter_ns())

    def steps_us(self) -> list[float]:
        """Time between batches without the first ones, microseconds."""
        times = self.times[WARM_UP:]
        return [(b - a) / 1000 for a, b in zip(times, times[1:], strict=False)]


def run_block(make: Callable[[], list[Callback]], steps: int, log_every: int, folder: str) -> list[float]:
    """Train one block and return its step times in microseconds."""
    clock = StepClock()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps + WARM_UP,
        callbacks=[*make(), clock],
        logger=CSVLogger(folder, flush_logs_every_n_steps=100),
        log_every_n_steps=log_every,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    loader = DataLoader(TensorDataset(torch.rand(4 * (steps + WARM_UP), 16)), batch_size=4)
    gc.collect()
    trainer.fit(Tiny(), loader)
    return clock.steps_us()


def measure(steps: int, rounds: int, log_every: int, folder: str) -> dict[str, list[float]]:
    """Alternate the variants and return the median step of each block, by variant."""
    variants: dict[str, Callable[[], list[Callback]]] = {
        "bare": list,
        "CostMonitor": lambda: [CostMonitor(usd_per_gpu_hour="2.49", peak_flops_per_s=1e11)],
        "ThroughputMonitor": lambda: [ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]))],
    }
    medians: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(rounds):
        # The order turns, so that no variant always follows the same other one.
        names = list(variants)
        for name in names[round_ % 3 :] + names[: round_ % 3]:
            medians[name].append(statistics.median(run_block(variants[name], steps, log_every, folder)))
    return medians


def main() -> None:
    """Print one table for each log interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="measured steps of a block")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each variant")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    for log_every, asked in ASKED.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            medians = measure(arguments.steps, arguments.rounds, log_every, folder)
        bare = statistics.median(medians["bare"])
        added = {name: statistics.median(values) - bare for name, values in medians.items() if name != "bare"}
        ratio = added["CostMonitor"] / added["ThroughputMonitor"]
        spread = f"{min(medians['bare']):.0f} to {max(medians['bare']):.0f}"
        print(f"log_every_n_steps={log_every}: bare step {bare:.1f} us (blocks {spread})")
        for name, value in added.items():
            print(f"  {name:<18} adds {value:6.1f} us")
        print(f"  ratio {ratio:.2f}, asked for at most {asked}")


if __name__ == "__main__":
    main()
