"""The one place that touches what Lightning does not promise, each with a public way to fall back on."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from lightning.pytorch import Callback, Trainer

PER_BATCH_HOOKS = (
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_test_batch_start",
    "on_test_batch_end",
    "on_predict_batch_start",
    "on_predict_batch_end",
)


@cache
def skips_hooks_that_are_none() -> bool:
    """Whether this Lightning leaves out a callback's hook that is `None`, as 2.0 to 2.6 do."""
    try:
        call = import_module("lightning.pytorch.trainer.call")
        return "if callable(fn):" in inspect.getsource(call._call_callback_hooks)
    except (ImportError, AttributeError, OSError):
        return False


def skip_unused_hooks(callback: Callback) -> None:
    """Spare each batch the calls of hooks that a callback does not override (about 1 us each)."""
    if skips_hooks_that_are_none():
        for name in PER_BATCH_HOOKS:
            if getattr(type(callback), name, None) is getattr(Callback, name, None):
                callback.__dict__[name] = None


def restore_hooks(callback: Callback) -> None:
    """Undo `skip_unused_hooks`; twice is the same as once."""
    for name in PER_BATCH_HOOKS:
        if callback.__dict__.get(name, callback) is None:
            del callback.__dict__[name]


def last_after_an_exception(trainer: Trainer) -> tuple[Any, str]:
    """Object and method that Lightning calls last after an exception, when loaders and workers have been ended."""
    return (trainer, "_teardown") if hasattr(trainer, "_teardown") else (trainer.strategy, "teardown")


def step_counter(trainer: Trainer) -> Callable[[], int]:
    """Reads `trainer.global_step` without the Python code behind it, which each batch would pay for.

    Call it when training begins: it holds on to the loop's own counter.
    """
    try:
        loop = trainer.fit_loop.epoch_loop
        total: Any = loop.manual_optimization.optim_step_progress.total
        if trainer.lightning_module.automatic_optimization:
            total = loop.automatic_optimization.optim_progress.optimizer.step.total
        if total.completed == trainer.global_step:
            return partial(getattr, total, "completed")
    except AttributeError:
        pass
    return lambda: trainer.global_step


def logging_step(trainer: Trainer) -> int:
    """The step under which Lightning logs its own rows now."""
    step = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
    return step if isinstance(step, int) else trainer.global_step


def is_restored_after_setup(trainer: Trainer) -> bool:
    """Whether the strategy reads checkpoints only after it has set the model up (FSDP does)."""
    return bool(getattr(trainer.strategy, "restore_checkpoint_after_setup", True))


_READABLE = ("global_step", "current_epoch", "max_steps", "max_epochs", "world_size", "global_rank", "local_rank")


def make_shadow(module: Any, trainer: Trainer) -> None:
    """Make a copy of a module ready to run by itself: as it was written, with a Trainer that can only be read.

    What `torch.compile` has put in place belongs to the original and must not be called on the copy; what the copy
    logs goes nowhere.

    Args:
        module: The copy.
        trainer: The original's Trainer.
    """
    if getattr(module, "_compiler_ctx", None) is not None:
        for name in ("forward", "training_step", "validation_step", "test_step", "predict_step"):
            vars(module).pop(name, None)
        module._compiler_ctx = None
    for part in module.modules():
        if getattr(part, "_compiled_call_impl", None) is not None:
            part._compiled_call_impl = None
    module._trainer = SimpleNamespace(training=True, **{name: getattr(trainer, name) for name in _READABLE})
    module.log = module.log_dict = _say_nothing


def _say_nothing(*_: Any, **__: Any) -> None:
    """A copy does not log."""


def after_saves(trainer: Trainer, work: Callable[[], Any]) -> Future[Any] | None:
    """Do something when the checkpoints that were asked for are written, if that happens on a thread beside.

    Returns:
        For waiting; `None` if they are written already, and then nothing is done.
    """
    executor = getattr(trainer.strategy.checkpoint_io, "_executor", None)
    # AsyncCheckpointIO writes on one thread: what is asked of it now is done after the checkpoint.
    return None if executor is None else executor.submit(work)


def wait_for_saves(trainer: Trainer) -> None:
    """Return when the checkpoints that were asked for are written, where that happens on a thread beside."""
    waiting = after_saves(trainer, _say_nothing)
    if waiting is not None:
        waiting.result()


def batches_to_validation(trainer: Trainer) -> int | None:
    """Training batches between the one that ends now and the next validation in this epoch; `None` if none is known.

    It is 0 if a validation follows this very batch. The same on all ranks. To be asked only where `enable_validation`.
    """
    loop, every = trainer.fit_loop.epoch_loop, getattr(trainer, "val_check_batch", None)
    by_epoch = trainer.check_val_every_n_epoch
    if by_epoch is not None and (trainer.current_epoch + 1) % by_epoch:
        return None
    if every in (None, float("inf")):
        return 0 if every is not None and loop.batch_progress.is_last_batch else None
    done = (loop.total_batch_idx if by_epoch is None else loop.batch_idx) + 1
    return int(-done % every)


def last_of_fit(trainer: Trainer) -> tuple[Any, str]:
    """Object and method that Lightning calls last when a fit ends in order."""
    if trainer.loggers:
        return trainer.loggers[-1], "finalize"
    return trainer.lightning_module, "teardown"


def never_requeue(trainer: Trainer) -> None:
    """Keep Lightning's own Slurm plugin from putting the job back into the queue.

    Its handler of the signal before the time limit requeues whatever the flag says by then, so the signal is ignored
    from here on; when the fit ends, Lightning itself puts back the handler of before.
    """
    connector = getattr(trainer, "_accelerator_connector", None)
    for owner in (connector, trainer.strategy):
        environment = getattr(owner, "cluster_environment", None)
        if not getattr(environment, "auto_requeue", False):
            continue
        environment.auto_requeue = False  # type: ignore[union-attr]
        number = getattr(environment, "requeue_signal", None)
        if number is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, signal.SIG_IGN)


def saves_beside(trainer: Trainer) -> bool:
    """Whether checkpoints are written on a thread beside training."""
    return hasattr(trainer.strategy.checkpoint_io, "_executor")


def when_saved(trainer: Trainer) -> Callable[[], Any]:
    """Returns what waits until the checkpoints that were asked for until now are written."""
    executor = getattr(trainer.strategy.checkpoint_io, "_executor", None)
    if executor is None:
        return lambda: None
    waiting = executor.submit(int)
    result: Callable[[], Any] = waiting.result
    return result


def save_triggers(callback: Any) -> tuple[int, int]:
    """Steps and epochs between two saves of a `ModelCheckpoint`, 0 where it does not go by them."""
    steps, epochs = getattr(callback, "_every_n_train_steps", 0), getattr(callback, "_every_n_epochs", 0)
    return (steps if isinstance(steps, int) else 0), (epochs if isinstance(epochs, int) else 0)
