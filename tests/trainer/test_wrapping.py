"""What the monitor puts on a Trainer's objects while it trains is gone afterwards, whatever happened."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from costguard import CostMonitor
from costguard.lightning.instances import Instances
from helpers import LIGHTNING_WARNINGS, TOKENS, Tiny, loader, monitor, quiet_trainer, receipt_of, rows_of

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS]

HOOK = "on_before_optimizer_step"


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Lightning leaves Ctrl-C ignored after it has seen one."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


class Looks(Callback):
    """Notes what is on the objects while training, and may raise there."""

    def __init__(self, cost: CostMonitor, error: BaseException | None = None, where: str = "batch") -> None:
        self.cost, self.error, self.where = cost, error, where
        self.seen: dict[str, set[str]] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._look("setup", trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._look("batch", trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look("validation", trainer)

    def _look(self, where: str, trainer: Trainer) -> None:
        self.seen[where] = set(_on_instances(trainer, self.cost))
        if self.error is not None and where == self.where:
            raise self.error


def _on_instances(trainer: Trainer, cost: CostMonitor) -> dict[str, Any]:
    """Every method that lies on an instance in place of its class, and every hook that is switched off."""
    objects = {"trainer": trainer, "strategy": trainer.strategy, "bar": trainer.progress_bar_callback}
    objects |= {f"logger {n}": logger for n, logger in enumerate(trainer.loggers)}
    found = {
        f"{name}.{attribute}": value
        for name, instance in objects.items()
        for attribute, value in vars(instance).items()
        if callable(value) and hasattr(type(instance), attribute)
    }
    hooks = {f"monitor.{name}": value for name, value in vars(cost).items() if name.startswith("on_")}
    return found | hooks


def _trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    return quiet_trainer(
        folder,
        *callbacks,
        logger=[CSVLogger(folder / "csv"), TensorBoardLogger(folder / "tb")],
        enable_progress_bar=True,
        **options,
    )


def test_everything_is_wrapped_while_training_and_put_back_after(tmp_path: Path) -> None:
    """Saving, loading, logging and the bar are metered in training; afterwards each object is as it was."""
    cost = monitor()
    looks = Looks(cost)
    trainer = _trainer(tmp_path, cost, looks)
    before = _on_instances(trainer, cost)
    trainer.fit(Tiny(), loader(3))
    assert looks.seen["batch"] - set(before) >= {
        "trainer.save_checkpoint",
        "strategy.load_checkpoint",
        "logger 0.log_metrics",
        "logger 1.log_metrics",
        "bar.get_metrics",
        f"monitor.{HOOK}",
    }
    assert _on_instances(trainer, cost) == before


@pytest.mark.parametrize("where", ["setup", "batch", "validation"])
@pytest.mark.parametrize("error", [RuntimeError("on purpose"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_everything_is_put_back_after_an_exception(tmp_path: Path, where: str, error: BaseException) -> None:
    """An exception in set-up, in a batch or in validation leaves each object as it was."""
    cost = monitor()
    looks = Looks(cost, error, where)
    trainer = _trainer(tmp_path, cost, looks, num_sanity_val_steps=0)
    before = _on_instances(trainer, cost)
    with pytest.raises(RuntimeError if isinstance(error, RuntimeError) else SystemExit):
        trainer.fit(Tiny(), loader(3), loader(1))
    assert "trainer.save_checkpoint" in looks.seen[where]
    assert _on_instances(trainer, cost) == before
    receipt_of(tmp_path)


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_everything_is_put_back_after_other_stages(tmp_path: Path, stage: str) -> None:
    """Validating and testing alone leave each object as it was."""
    cost = monitor()
    trainer = _trainer(tmp_path, cost)
    before = _on_instances(trainer, cost)
    getattr(trainer, stage)(Tiny(), loader(1), verbose=False)
    assert _on_instances(trainer, cost) == before


def test_trainer_can_be_used_again_after_an_exception(tmp_path: Path) -> None:
    """A fit after a failed one is metered as before, in the same attempt."""
    cost = monitor()
    trainer = _trainer(tmp_path, cost)
    before = _on_instances(trainer, cost)
    with pytest.raises(RuntimeError):
        trainer.fit(Tiny(fails_at=2), loader(3))
    quiet = Tiny()
    trainer.fit_loop.epoch_progress.reset()
    trainer.fit_loop.epoch_loop.batch_progress.reset()
    trainer.fit(quiet, loader(3))
    assert _on_instances(trainer, cost) == before
    receipt = receipt_of(tmp_path)
    (attempt,) = receipt["run"]["attempts"]
    assert attempt["batches"] == 5
    assert receipt["tokens"]["trained"] == 5 * TOKENS


class SetsUpAgain(Callback):
    """Calls the monitor's own set-up and tear-down a second time."""

    def __init__(self, cost: CostMonitor) -> None:
        self.cost = cost

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.cost.setup(trainer, pl_module, "fit")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.cost.teardown(trainer, pl_module, stage)


def test_twice_is_the_same_as_once(tmp_path: Path) -> None:
    """Set-up and tear-down called twice: one run, each save and each row noted once, everything put back."""
    cost = monitor(log_every_s=0)
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=2, save_top_k=-1)
    trainer = quiet_trainer(
        tmp_path, cost, SetsUpAgain(cost), saves, logger=CSVLogger(tmp_path), enable_checkpointing=True
    )
    before = {name: set(vars(instance)) for name, instance in _parts(trainer)}
    trainer.fit(Tiny(), loader(4))
    assert {name: set(vars(instance)) for name, instance in _parts(trainer)} == before
    receipt = receipt_of(tmp_path)
    assert receipt["tokens"]["trained"] == 4 * TOKENS
    assert [c["step"] for c in receipt["checkpoints"]] == [2, 4]
    assert len(rows_of(tmp_path)) == 4


def _parts(trainer: Trainer) -> list[tuple[str, object]]:
    return [("strategy", trainer.strategy), *((f"logger {n}", logger) for n, logger in enumerate(trainer.loggers))]


def test_wrapper_of_the_user_survives(tmp_path: Path) -> None:
    """A method that the user has replaced on the Trainer before is called through, and is there again afterwards."""
    called = []
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=2)
    trainer = quiet_trainer(tmp_path, monitor(), saves, enable_checkpointing=True)
    original = trainer.save_checkpoint

    def users_own(*args: Any, **kwargs: Any) -> None:
        called.append(args)
        original(*args, **kwargs)

    trainer.save_checkpoint = users_own  # type: ignore[method-assign]
    trainer.fit(Tiny(), loader(2))
    assert len(called) == len(receipt_of(tmp_path)["checkpoints"]) == 1
    assert trainer.save_checkpoint is users_own


class WrapsLater(Callback):
    """Replaces a logger's method while the monitor's own wrapper is on it."""

    def __init__(self) -> None:
        self.steps: list[int | None] = []
        self.method: Callable[..., Any] = print

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logger: Any = trainer.logger
        inner = logger.log_metrics

        def log_metrics(metrics: Any, step: int | None = None) -> None:
            self.steps.append(step)
            inner(metrics, step)

        logger.log_metrics = self.method = log_metrics


def test_wrapper_put_on_top_of_ours_stays(tmp_path: Path) -> None:
    """What somebody else wrapped around our wrapper meanwhile is not taken away, and goes on to work."""
    cost, later = monitor(), WrapsLater()
    trainer = quiet_trainer(tmp_path, cost, later, logger=CSVLogger(tmp_path))
    trainer.fit(Tiny(), loader(3))
    logger: Any = trainer.logger
    assert logger.log_metrics is later.method
    before = len(rows_of(tmp_path))
    logger.log_metrics({"loss": 1.0}, 99)
    logger.save()
    rows = rows_of(tmp_path)
    assert len(rows) == before + 1
    assert not any(value for key, value in rows[-1].items() if key.startswith("costguard/"))
    assert later.steps[-1] == 99


def test_hooks_that_a_subclass_overrides_are_called(tmp_path: Path) -> None:
    """Only hooks that nobody overrides are switched off."""
    called = []

    class Mine(CostMonitor):
        def on_before_optimizer_step(self, *args: Any) -> None:
            called.append(args)

    trainer = quiet_trainer(tmp_path, Mine(peak_flops_per_s=1e9))
    trainer.fit(Tiny(), loader(3))
    assert len(called) == 3


def test_progress_bar_shows_spend_and_mfu(tmp_path: Path) -> None:
    """Two short fields beside Lightning's own, and only while training."""

    class Reads(Callback):
        shown: dict[str, Any]

        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.shown = dict(trainer.progress_bar_callback.get_metrics(trainer, pl_module))  # type: ignore[union-attr]

    shown = {}
    for name, cost in {"with": [monitor(usd_per_hour=1000)], "without": []}.items():
        reads, logger = Reads(), CSVLogger(tmp_path / name)
        trainer = quiet_trainer(tmp_path / name, *cost, reads, logger=logger, enable_progress_bar=True)
        trainer.fit(Tiny(), loader(3))
        shown[name] = reads.shown
    added = {name: value for name, value in shown["with"].items() if name not in shown["without"]}
    assert len(added) == 2
    assert all(isinstance(value, str) and len(value) <= 10 for value in added.values())
    assert any("$" in value for value in added.values())
    assert any("%" in value for value in added.values())


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_several_of_ours_leave_nothing_in_any_order(order: tuple[int, ...]) -> None:
    """Callbacks that wrap one method are torn down in the order in which they were set up: still nothing is left."""

    class Saver:
        def save(self) -> list[int]:
            return []

    saver, layers = Saver(), [Instances() for _ in range(3)]
    for number, layer in enumerate(layers):
        layer.wrap(saver, "save", lambda original, number=number: lambda: [number, *original()])
    assert saver.save() == [2, 1, 0]
    for done, number in enumerate(order, 1):
        layers[number].put_back()
        assert saver.save() == [n for n in (2, 1, 0) if n not in order[:done]]
    assert vars(saver) == {}
