"""Meters what has no hook: writing, removing and reading checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from costguard.ledger.opening import file_mark
from costguard.lightning.instances import Instances, Method
from costguard.lightning.run import STATE_KEY, Run
from costguard.records import Activity

OnLoaded = Callable[[Mapping[str, Any]], None]


def wrap_checkpoints(instances: Instances, trainer: Trainer, run: Run, on_loaded: OnLoaded) -> None:
    """Wrap a Trainer's ways to write, remove and read checkpoints.

    Args:
        instances: Keeps what to put back.
        trainer: The Trainer.
        run: The run that pays.
        on_loaded: Called with each checkpoint that training will go on from.
    """
    instances.wrap(trainer, "save_checkpoint", lambda original: _saving(original, trainer, run))
    instances.wrap(trainer.strategy, "remove_checkpoint", lambda original: _removing(original, run))
    instances.wrap(trainer.strategy, "load_checkpoint", lambda original: _loading(original, trainer, run, on_loaded))


def _saving(original: Method, trainer: Trainer, run: Run) -> Method:
    def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        saves = run.writer.saves if run.is_open else 0
        before = run.meter.enter(Activity.CHECKPOINT)
        begin = run.meter.state.since_ns
        try:
            result = original(filepath, *args, **kwargs)
        finally:
            run.meter.enter(before)
        # A save that holds no callbacks (weights only) has no number of its own and is not resumed from.
        if run.is_open and trainer.is_global_zero:
            ended = run.meter.state.since_ns
            numbered = run.writer.saves > saves
            mark = file_mark(os.fspath(filepath))
            run.writer.saved(
                save=run.writer.saves if numbered else None,
                path=os.path.abspath(filepath) if "://" not in os.fspath(filepath) else os.fspath(filepath),
                step=trainer.global_step,
                bytes=mark[0] if mark else None,
                mark=mark,
                blocked_ns=ended - begin,
            )
        return result

    return save_checkpoint


def _removing(original: Method, run: Run) -> Method:
    def remove_checkpoint(*args: Any, **kwargs: Any) -> Any:
        with run.meter.span(Activity.CHECKPOINT):
            return original(*args, **kwargs)

    return remove_checkpoint


def _loading(original: Method, trainer: Trainer, run: Run, on_loaded: OnLoaded) -> Method:
    def load_checkpoint(checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        with run.meter.span(Activity.RESTORE):
            run.identify_by_file(os.fspath(checkpoint_path), trainer.strategy.broadcast)
            checkpoint = original(checkpoint_path, *args, **kwargs)
            word = (checkpoint.get("callbacks") or {}).get(STATE_KEY) if isinstance(checkpoint, Mapping) else None
            run.identify_by_content(word, trainer.strategy.broadcast)
            if trainer.state.fn == TrainerFn.FITTING and isinstance(checkpoint, Mapping):
                on_loaded(word or {})
            return checkpoint

    return load_checkpoint
