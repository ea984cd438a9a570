"""Looks at the device from the side while it trains: the GPU's own figures, and why MFU is low."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costguard.errors import warn
from costguard.flops.step import StepFlops
from costguard.ledger.done import OVER_100_PERCENT
from costguard.ledger.live import Figures
from costguard.lightning.diagnosis import signals_of
from costguard.lightning.gpu_watch import GpuWatch
from costguard.lightning.run import Run
from costguard.policies.utilization import why_low
from costguard.records import Action, Activity, Verdict
from costguard.units import NS_PER_S

FACT_EVERY_NS = 30 * NS_PER_S
JUDGED_AFTER_NS = 60 * NS_PER_S
"""Train time after which MFU is judged, and again after each further stretch of ten times that."""


class DeviceSide:
    """Looks at the device of this process a few times a minute; on a CPU only MFU is judged.

    Args:
        run: The run.
        watch: The GPU's own figures, `None` where there are none.
    """

    def __init__(self, run: Run, watch: GpuWatch | None) -> None:
        self._run = run
        self._watch = watch
        self._next_fact_ns = 0
        self._judge_at_ns = JUDGED_AFTER_NS
        self._judged: set[str] = set()
        if watch is not None:
            watch.start()

    def tick(self, figures: Figures | None, seen: StepFlops | None, recompiles: int) -> None:
        """Once a second, between two batches.

        Args:
            figures: The live figures; `None` on ranks that show none.
            seen: The first counted batch.
            recompiles: Compilations after the first batch.
        """
        meter = self._run.meter
        if self._watch is not None:
            self._look(self._watch, meter.now_ns())
        train_ns = meter.state.totals[Activity.TRAIN]
        if figures is not None and train_ns >= self._judge_at_ns:
            self._judge_at_ns = train_ns + 10 * JUDGED_AFTER_NS
            self._judge(figures, seen, recompiles)

    def metrics(self) -> Mapping[str, float]:
        """The GPU's figures for the logger."""
        return self._watch.metrics() if self._watch is not None else {}

    def end(self) -> None:
        """Training is over: the last figures are written, and nothing is read any more."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
            self._run.writer.fact("gpu", **watch.fact())

    def _look(self, watch: GpuWatch, now_ns: int) -> None:
        for sentence in watch.warnings():
            warn(sentence)
        if now_ns >= self._next_fact_ns:
            self._next_fact_ns = now_ns + FACT_EVERY_NS
            self._run.writer.fact("gpu", **watch.fact())

    def _judge(self, figures: Figures, seen: StepFlops | None, recompiles: int) -> None:
        """Say why MFU is low, each cause once, or that it cannot be so high."""
        if figures.mfu is not None and figures.mfu > 1:
            self._tell_once(_over(figures.mfu, self._run.meter.state.counters.step))
            return
        signals = signals_of(
            self._run.states(),
            figures,
            seen=seen,
            dtype=self._run.peak_dtype,
            recompiles=recompiles,
            currency=self._run.config.book.currency,
        )
        verdict = why_low(signals if self._watch is None else self._watch.signals(signals))
        if verdict is not None:
            self._tell_once(verdict)

    def _tell_once(self, verdict: Verdict) -> None:
        if verdict.reason not in self._judged:
            self._judged.add(verdict.reason)
            self.tell(verdict)

    def tell(self, verdict: Verdict, say: Callable[[str], Any] = warn) -> None:
        """Write a verdict down, and say what asks for something to be done."""
        self._run.writer.verdict(verdict)
        if verdict.action in (Action.WARN, Action.ALERT):
            say(verdict.message)


def _over(mfu: float, step: int) -> Verdict:
    message = (
        f"MFU is {mfu:.0%}, which nothing reaches: the peak is not this device's, or what was counted is not what "
        "runs; pass peak_flops_per_s=, or see `costguard doctor`."
    )
    return Verdict(
        kind="mfu", action=Action.WARN, reason=OVER_100_PERCENT, message=message, step=step, evidence={"mfu_ratio": mfu}
    )
