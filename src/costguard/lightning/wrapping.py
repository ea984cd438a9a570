"""Meters what has no hook: writing, removing and reading checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from costguard.ledger.opening import file_mark
from costguard.lightning import private
from costguard.lightning.instances import Instances, Method
from costguard.lightning.membership import checked_word
from costguard.lightning.run import STATE_KEY, Run
from costguard.lightning.shield import metering
from costguard.records import Activity

OnLoaded = Callable[[Mapping[str, Any]], None]


def wrap_checkpoints(instances: Instances, trainer: Trainer, run: Run, on_loaded: OnLoaded) -> Callable[[], None]:
    """Wrap a Trainer's ways to write, remove and read checkpoints.

    Args:
        instances: Keeps what to put back.
        trainer: The Trainer.
        run: The run that pays.
        on_loaded: Called with the word of each checkpoint that training will go on from.

    Returns:
        To be called when nothing is written any more: notes what was unfinished before.
    """
    saved = _Saved(trainer, run)
    instances.wrap(trainer, "save_checkpoint", lambda original: _saving(original, trainer, run, saved))
    instances.wrap(trainer.strategy, "remove_checkpoint", lambda original: _removing(original, run))
    instances.wrap(trainer.strategy, "load_checkpoint", lambda original: _loading(original, trainer, run, on_loaded))
    return saved.look_again


class _Saved:
    """Notes checkpoints in the journal; those that are still being written are looked at again later."""

    def __init__(self, trainer: Trainer, run: Run) -> None:
        self._trainer = trainer
        self._run = run
        self._unfinished: list[tuple[dict[str, Any], dict[str, int]]] = []

    def time(self, begin_ns: int) -> dict[str, int]:
        """Note how long a save takes until it is written, which may be long after training has gone on.

        Returns:
            Where `written_ns` will be, by when it is written.
        """
        took: dict[str, int] = {}

        def written() -> None:
            took["written_ns"] = self._run.meter.now_ns() - begin_ns
            self._run.save_times_ns.append(took["written_ns"])

        with metering():
            if private.after_saves(self._trainer, written) is None:
                written()
        return took

    def note(self, took: dict[str, int], **fields: Any) -> None:
        """Note one save."""
        with metering():
            # Lightning's AsyncCheckpointIO returns before the file is there, or while an older one still is.
            names = {base.__name__ for base in type(self._trainer.strategy.checkpoint_io).__mro__}
            if "AsyncCheckpointIO" in names:
                self._unfinished.append((fields, took))
                self._run.writer.saved(**fields, bytes=None, mark=None, written_ns=None)
            else:
                self._write(fields)

    def look_again(self) -> None:
        """Note the sizes of what is written in the background, once it has all been written."""
        while self._unfinished:
            fields, took = self._unfinished.pop()
            self._write({**fields, **took})

    def _write(self, fields: dict[str, Any]) -> None:
        mark = file_mark(fields["path"])
        self._run.checkpoint_bytes += mark[0] if mark else 0
        self._run.writer.saved(**fields, bytes=mark[0] if mark else None, mark=mark)


def _saving(original: Method, trainer: Trainer, run: Run, saved: _Saved) -> Method:
    def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        saves = run.writer.saves if run.is_open else 0
        before = run.meter.enter(Activity.CHECKPOINT)
        begin = run.meter.state.since_ns
        try:
            result = original(filepath, *args, **kwargs)
        finally:
            run.meter.enter(before)
        took = saved.time(begin)
        if run.is_open and trainer.is_global_zero:
            path = os.fspath(filepath)
            # A save that holds no callbacks (weights only) has no number of its own and is not resumed from.
            saved.note(
                took,
                path=path if "://" in path else os.path.abspath(path),
                save=run.writer.saves if run.writer.saves > saves else None,
                step=trainer.global_step,
                blocked_ns=run.meter.state.since_ns - begin,
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
            with metering():
                run.identify_by_file(os.fspath(checkpoint_path), trainer.strategy.broadcast)
            checkpoint = original(checkpoint_path, *args, **kwargs)
            with metering():
                word = checked_word((checkpoint.get("callbacks") or {}).get(STATE_KEY))
                run.identify_by_content(word, trainer.strategy.broadcast)
                if trainer.state.fn == TrainerFn.FITTING:
                    on_loaded(word)
            return checkpoint

    return load_checkpoint
