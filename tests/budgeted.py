"""What tests of budgets share: a clock that training moves, guards with small priors, what a stop must keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from costguard import BudgetStopping
from costguard.ledger.process_time import PROCESS
from costguard.lightning import run as run_module
from costguard.policies.reserve import StopPriors
from costguard.testing import ManualClock
from helpers import NS_PER_S, Tiny, loader, quiet_trainer, receipt_of

DOLLAR_A_SECOND = 3600
"""US dollars per GPU-hour at which each second of each device costs one dollar."""
PRIORS = StopPriors(
    step_ns=NS_PER_S // 10,
    save_ns=NS_PER_S,
    flush_ns=NS_PER_S // 10,
    teardown_ns=NS_PER_S // 2,
    exit_ns=NS_PER_S // 2,
)


class Elsewhere:
    """Owns the process's time between two trainings, so that none of it is billed to either."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def on_exit(self) -> None:
        """Nothing to do."""

    def release(self, exit_ns: int) -> int:
        """What follows begins now."""
        return int(self._clock.now_ns())


def metered_from_now(clock: Any) -> None:
    """End the run that owns this process's time, and let the next one begin now."""
    PROCESS.take(Elsewhere(clock))


@contextmanager
def moved_by_hand(wall_ns: int = 1_800_000_000_000_000_000) -> Iterator[ManualClock]:
    """All runs of this process go by a clock that only training moves."""
    clock, real = ManualClock(now_ns=1000 * NS_PER_S, wall_ns=wall_ns), run_module.SystemClock()
    metered_from_now(clock)
    with mock.patch.object(run_module, "SystemClock", return_value=clock):
        try:
            yield clock
        finally:
            metered_from_now(real)


class Ticking(Tiny):
    """Moves the clock at each batch.

    Args:
        clock: The clock.
        step_s: Seconds that a training batch takes.
        val_s: Seconds that a validation batch takes.
    """

    def __init__(self, clock: ManualClock, step_s: float = 0.1, val_s: float = 0.0, **options: Any) -> None:
        super().__init__(logs=False, **options)
        self.clock, self.step_s, self.val_s = clock, step_s, val_s
        self.trained = self.validated = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.clock.advance(self.step_s)
        self.trained += 1
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.clock.advance(self.val_s)
        self.validated += 1


def guard(**options: Any) -> BudgetStopping:
    """A BudgetStopping at a dollar a second that stops at ten dollars, unless told otherwise."""
    limited = any(name in options for name in ("limit_usd", "limit_gpu_hours", "budgets", "pot"))
    priced = any(name in options for name in ("usd_per_gpu_hour", "usd_per_hour"))
    return BudgetStopping(
        **{
            **({} if limited else {"limit_usd": 10}),
            **({} if priced else {"usd_per_gpu_hour": DOLLAR_A_SECOND}),
            "priors": PRIORS,
            **options,
        }
    )


ENDLESS = 100_000
"""Batches that no budget here pays for."""


def train(
    folder: Path, module: LightningModule, *callbacks: Callback, ckpt_path: Any = None, val: int = 0, **options: Any
) -> Trainer:
    """Train until something stops it."""
    trainer = quiet_trainer(folder, *callbacks, **options)
    trainer.fit(module, loader(ENDLESS), loader(val) if val else None, ckpt_path=ckpt_path)
    return trainer


def kept(folder: Path, limit: float | str, clock: Any, dollars_a_second: int = 1) -> dict[str, Any]:
    """The receipt of the one run in a folder, after checking that it kept its limit and used nearly all of it."""
    metered_from_now(clock)
    return checked(receipt_of(folder), limit, dollars_a_second)


def checked(receipt: dict[str, Any], limit: float | str, dollars_a_second: int = 1) -> dict[str, Any]:
    """All attempts together stay at or under the limit; less than twice what was set aside for stopping is left."""
    total, limit = Decimal(receipt["spend"]["total"]), Decimal(str(limit))
    stop = receipt["budget"]["stops"][-1]
    reserve = Decimal(str(stop["reserved_s"])) * dollars_a_second
    assert total <= limit, f"overshoot of {total - limit}"
    assert limit - total < 2 * reserve, f"{limit - total} is left, of {reserve} set aside"
    assert any((v["kind"], v["action"]) == ("budget", "stop") for v in receipt["verdicts"])
    return receipt


def seconds(receipt: dict[str, Any]) -> Fraction:
    """Device seconds of all attempts."""
    return Fraction(receipt["time"]["elapsed_device_ns"], NS_PER_S)


def stop_checkpoint(folder: Path) -> Path:
    """The one checkpoint that a stop has left."""
    (path,) = folder.rglob("stopped-step=*.ckpt")
    assert torch.load(path, weights_only=False)["global_step"] == int(path.stem.partition("=")[2])
    return path
