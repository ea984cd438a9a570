"""A process that trains many times, each time as a new run: run by test_many_runs.py as `many_runs.py FOLDER`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor
from torch.utils.data import DataLoader

from costguard import CostMonitor
from helpers import Tiny, loader, monitor, quiet_trainer

BATCHES = 6


class Fails(torch.utils.data.Dataset[Tensor]):
    """Raises in the process that loads its third item."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Tensor:
        if index == 2:
            raise RuntimeError("worker failed")
        return torch.ones(2, 8, dtype=torch.int64)


class FailsInValidation(Tiny):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        raise RuntimeError("validation_step failed")


class Manual(Tiny):
    """Two optimizer steps for each batch, taken by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            self.manual_backward(self.weight**2)
            optimizer.step()


class Interrupts(Callback):
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            raise KeyboardInterrupt


def exception_in_training_step(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost).fit(Tiny(fails_at=3), loader(BATCHES))


def exception_in_a_worker(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost).fit(Tiny(), DataLoader(Fails(), batch_size=None, num_workers=1))


def exception_in_validation(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost, num_sanity_val_steps=0).fit(FailsInValidation(), loader(BATCHES), loader(1))


def exception_in_the_sanity_check(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost).fit(FailsInValidation(), loader(BATCHES), loader(1))


def exception_in_setup(folder: Path, cost: CostMonitor) -> None:
    class Raises(Callback):
        def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
            raise RuntimeError("setup failed")

    quiet_trainer(folder, cost, Raises()).fit(Tiny(), loader(BATCHES))


def keyboard_interrupt(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost, Interrupts()).fit(Tiny(), loader(BATCHES))


def two_fits(folder: Path, cost: CostMonitor) -> None:
    trainer = quiet_trainer(folder, cost)
    trainer.fit(Tiny(), loader(BATCHES))
    trainer.fit_loop.max_epochs = 2
    trainer.fit(Tiny(), loader(BATCHES))


def fit_validate_test_predict(folder: Path, cost: CostMonitor) -> None:
    trainer, module = quiet_trainer(folder, cost), Tiny()
    trainer.fit(module, loader(BATCHES), loader(2))
    trainer.validate(module, loader(2), verbose=False)
    trainer.test(module, loader(2), verbose=False)

    class Predicts(Tiny):
        def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.weight.detach()

    trainer.predict(Predicts(), loader(2))


def validate_alone(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost).validate(Tiny(), loader(2), verbose=False)


def fast_dev_run(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost, fast_dev_run=True).fit(Tiny(), loader(BATCHES), loader(2))


def accumulate_grad_batches(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost, accumulate_grad_batches=4).fit(Tiny(), loader(12))


def max_time(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost, max_time={"seconds": 1}, max_epochs=-1).fit(Tiny(), loader(50))


def manual_optimization(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost).fit(Manual(), loader(BATCHES))


def no_logger(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost, logger=False).fit(Tiny(), loader(BATCHES))


def csv_logger(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost, logger=CSVLogger(folder)).fit(Tiny(), loader(BATCHES))


def tensorboard_logger(folder: Path, cost: CostMonitor) -> None:
    quiet_trainer(folder, cost, logger=TensorBoardLogger(folder)).fit(Tiny(), loader(BATCHES))


def two_loggers(folder: Path, cost: CostMonitor) -> None:
    loggers = [CSVLogger(folder), TensorBoardLogger(folder)]
    quiet_trainer(folder, cost, logger=loggers).fit(Tiny(), loader(BATCHES))


CASES: tuple[Callable[[Path, CostMonitor], None], ...] = (
    exception_in_training_step,
    exception_in_a_worker,
    exception_in_validation,
    exception_in_the_sanity_check,
    exception_in_setup,
    keyboard_interrupt,
    two_fits,
    fit_validate_test_predict,
    validate_alone,
    fast_dev_run,
    accumulate_grad_batches,
    max_time,
    manual_optimization,
    no_logger,
    csv_logger,
    tensorboard_logger,
    two_loggers,
)


def main() -> None:
    for case in CASES:
        cost = monitor(tags={"case": case.__name__})
        try:
            case(Path(sys.argv[1]) / case.__name__, cost)
            ended = "returned"
        except RuntimeError as error:
            ended = f"RuntimeError: {str(error).splitlines()[-1].removeprefix('RuntimeError: ')}"
        except SystemExit as error:
            ended = f"SystemExit: {error.code}"
            signal.signal(signal.SIGINT, signal.default_int_handler)
        print(case.__name__, ended, flush=True)


if __name__ == "__main__":
    main()
