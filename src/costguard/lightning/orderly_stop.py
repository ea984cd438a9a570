"""A stop of all ranks at one step: no validation first, a last checkpoint, loggers flushed, an exit code for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from costguard.errors import STOPPED_CODE, StoppedForGood, warn
from costguard.lightning import clean_stop, private
from costguard.lightning.agreement import Together
from costguard.lightning.instances import Instances
from costguard.lightning.run import Run
from costguard.lightning.shield import shielded
from costguard.records import Activity, Verdict

TERMINATED_CODE = 128 + signal.SIGTERM
_FLAG_FILE = "FAULT_TOL_FINISHED_FLAG_FILE"
"""Where NVIDIA's resiliency launcher looks whether a run must not be started again."""


class OrderlyStop:
    """Ends one training; to be called on all ranks at the same optimizer step.

    Args:
        trainer: The Trainer.
        module: The module that trains.
        run: The run.
        on_breach: `return`, `exit`, or `auto`, which exits under a scheduler or launcher.
        together: How several ranks agree, `None` for one.
    """

    def __init__(
        self, trainer: Trainer, module: LightningModule, run: Run, on_breach: str, together: Together | None
    ) -> None:
        self.path = ""
        self._trainer = trainer
        self._module = module
        self._run = run
        self._on_breach = on_breach
        self._together = together
        self._exit = Instances()
        self._muted = Instances()
        self._put_back: Callable[[], None] | None = None
        self._end: StoppedForGood | None = None

    def stop(self, why: Verdict, step: int, *, for_good: bool) -> None:
        """Stop here.

        Args:
            why: The reason.
            step: Optimizer step.
            for_good: Whether nobody is to start it again; else it ends as by SIGTERM.
        """
        trainer = self._trainer
        self._put_back = clean_stop.end_here(trainer)
        for logger in trainer.loggers:
            # Lightning would have each write at once, for as long as it takes; they get their time when the fit ends.
            self._muted.wrap(logger, "save", lambda _: _nothing)
        finite = clean_stop.weights_are_finite(self._module)
        if self._together is not None:
            finite = self._together.agree(int(not finite)) == 0
        if finite:
            with self._run.meter.span(Activity.CHECKPOINT):
                self.path = path = clean_stop.save_last(trainer, f"stopped-step={step}.ckpt")
            if trainer.is_global_zero:
                print(f"costguard: {why.message} Stopped at step {step}; saved {path}.", flush=True)
        else:
            warn(f"stopped at step {step} without a checkpoint: weights are not finite; the last one stays.")
        if for_good:
            private.never_requeue(trainer)
            clean_stop.touch(os.environ.get(_FLAG_FILE))
        if not for_good or self._on_breach == "exit" or (self._on_breach == "auto" and self._run.supervised):
            self._exit_after_fit(StoppedForGood(why.message, STOPPED_CODE if for_good else TERMINATED_CODE))

    def _exit_after_fit(self, end: StoppedForGood) -> None:
        self._end = end

        def then_exit(original: Callable[..., Any]) -> Callable[..., Any]:
            def last(*args: Any, **kwargs: Any) -> Any:
                self.call_off_exit()
                original(*args, **kwargs)
                raise end

            return last

        self._exit.wrap(*private.last_of_fit(self._trainer), then_exit)

    def call_off_exit(self) -> None:
        """The process does not end with the fit."""
        self._exit.put_back()

    def flush(self, why: Verdict, cap_s: float) -> None:
        """Say the reason in the loggers, and let them write for a limited time."""
        self._muted.put_back()
        self._say_in_loggers(why)
        late = clean_stop.flush_loggers(self._trainer.loggers, cap_s)
        if late:
            names = ", ".join(type(each).__name__ for each in late)
            warn(f"{names} did not flush in {cap_s:.0f} s; the stop goes on without.")
        for each in late:
            clean_stop.leave_out(each, partial(self._exit_if_last, each))

    def _exit_if_last(self, logger: Any) -> None:
        if self._end is not None and private.last_of_fit(self._trainer)[0] is logger:
            self.call_off_exit()
            raise self._end

    @shielded
    def _say_in_loggers(self, why: Verdict) -> None:
        for logger in self._trainer.loggers:
            summary = getattr(getattr(logger, "experiment", None), "summary", None)
            if summary is not None and self._trainer.is_global_zero:
                summary["costguard/stopped_by"] = f"{why.kind}/{why.reason}"
                summary["costguard/stopped_because"] = why.message

    def put_back(self) -> None:
        """Undo what the stop changed in the Trainer; the exit stays."""
        self._muted.put_back()
        put_back, self._put_back = self._put_back, None
        if put_back is not None:
            put_back()


def _nothing() -> None:
    """A logger that writes later."""
