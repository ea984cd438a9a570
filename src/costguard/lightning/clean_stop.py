"""Ends a training in order at this step: no validation first, no minimum in the way, one last checkpoint."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from costguard.errors import warn
from costguard.lightning import private
from costguard.lightning.instances import Instances

FLUSH_CAP_S = 60.0
"""Longest that loggers may take to flush."""


def end_here(trainer: Trainer) -> Callable[[], None]:
    """Let the training loop end after this step; call on all ranks at the same one.

    Lightning would run a whole validation first, and go on until `min_steps` and `min_epochs` are reached.

    Returns:
        Puts back what was changed; for when training has ended.
    """
    loop, epoch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    before = (trainer.limit_val_batches, loop.min_epochs, epoch_loop.min_steps)
    trainer.limit_val_batches, loop.min_epochs, epoch_loop.min_steps = 0, 0, 0
    trainer.should_stop = True

    def put_back() -> None:
        trainer.limit_val_batches, loop.min_epochs, epoch_loop.min_steps = before

    return put_back


def checkpoint_folder(trainer: Trainer) -> str:
    """Where the training's own checkpoints go."""
    for callback in trainer.checkpoint_callbacks:
        folder = getattr(callback, "dirpath", None)
        if folder:
            return str(folder)
    return os.path.join(trainer.default_root_dir, "checkpoints")


def save_last(trainer: Trainer, name: str) -> str:
    """Write one checkpoint with all ranks, and return when it is there, also where it is written in the background.

    Args:
        trainer: The Trainer.
        name: Name of the file.

    Returns:
        Its path.
    """
    path = os.path.join(checkpoint_folder(trainer), name)
    trainer.save_checkpoint(path)
    private.wait_for_saves(trainer)
    return path


def weights_are_finite(module: LightningModule) -> bool:
    """Whether each weight that this rank holds is a number; waits for the device."""
    bad = [(~torch.isfinite(_local(p))).any() for p in module.parameters() if p.is_floating_point()]
    return not any(bool(each) for each in bad)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    local: Any = getattr(parameter, "to_local", None)
    tensor: torch.Tensor = (local() if local is not None else parameter).detach()
    return tensor


def flush_loggers(loggers: Iterable[Any], cap_s: float = FLUSH_CAP_S) -> list[Any]:
    """Let each logger write what it holds, each on a thread of its own, and wait for them for a limited time.

    Returns:
        Those that were not done in time.
    """
    threads = [(each, threading.Thread(target=_save, args=[each], daemon=True)) for each in loggers]
    for _, thread in threads:
        thread.start()
    end = time.monotonic() + cap_s
    for _, thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [each for each, thread in threads if thread.is_alive()]


def leave_out(logger: Any, then: Callable[[], Any]) -> None:
    """Ask a logger that does not answer for nothing more: Lightning's own wait for it has no end.

    Args:
        logger: The logger; its methods are as before once Lightning has finalized it.
        then: Called at that moment.
    """
    out = Instances()

    def skip(*_: Any, **__: Any) -> None:
        out.put_back()
        then()

    out.wrap(logger, "save", lambda _: lambda *a, **k: None)
    out.wrap(logger, "finalize", lambda _: skip)


def touch(path: str | None) -> None:
    """Create a file where a path is given, or warn."""
    if path:
        try:
            with open(path, "a", encoding="utf-8"):
                pass
        except OSError as error:
            warn(f"cannot touch {path} ({error.strerror}): a launcher that looks there may start this run again.")


def _save(logger: Any) -> None:
    try:
        logger.save()
    except Exception:  # a logger of any kind may raise anything; it is told apart by what it has written
        return
