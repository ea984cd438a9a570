"""Meters the batches of one training: when each begins and ends, what it holds, what it costs in FLOPs."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from costguard.flops.sizes import BatchSize
from costguard.flops.step import StepFlops, Work
from costguard.ledger.activity import Batch, Counters
from costguard.ledger.attempt import count
from costguard.lightning import private
from costguard.lightning.batches import COUNTED_ELSEWHERE, BatchCount, BatchCounter, reads_own_batches
from costguard.lightning.compiling import compilations
from costguard.lightning.device_clock import clock_of
from costguard.lightning.probing import StepProbe
from costguard.lightning.run import Run
from costguard.lightning.shield import shielded
from costguard.lightning.sizes import BatchSizer
from costguard.records import Activity

_TRAIN = int(Activity.TRAIN)
_COMPILE = int(Activity.COMPILE)
_DATA_WAIT = int(Activity.DATA_WAIT)


def _look(batch: Any) -> Any:
    """What batches that cost the same share: shapes and the dtype of the first tensor; `None` of other batches."""
    kind = type(batch)
    if kind is torch.Tensor:
        return batch.shape, batch.dtype
    if kind is list or kind is tuple:
        looks: list[Any] = [part.shape for part in batch if type(part) is torch.Tensor]
        return (*looks, batch[0].dtype) if looks and len(looks) == len(batch) else None
    return None


class StepMeter:
    """From the first batch of a training to its last.

    A warm-up is a batch that is unlike those before: the first one, the first of each size, which is counted, and one
    in which something was compiled. Its time is `compile`, so that it does not drag the mean.

    Args:
        trainer: The Trainer.
        module: The module that trains.
        run: The run, open.
        counter: Counts what batches hold.
    """

    def __init__(self, trainer: Trainer, module: LightningModule, run: Run, counter: BatchCounter) -> None:
        self.probe = StepProbe(trainer, module)
        self.clock = clock_of(trainer.strategy.root_device)
        self._run = run
        self._meter = run.meter
        self._counter = counter
        self._reads_own = reads_own_batches(trainer)
        self.step = private.step_counter(trainer)
        self._sizer = BatchSizer()
        self._size: BatchSize | None = None
        self._in_flight: Any = None
        self._look: Any = None
        self._same: Batch | None = None
        self._counts_as: Batch | None = None
        self._warm = True
        self._compiled = compilations()
        self._compiled_first: int | None = None

    @property
    def seen(self) -> StepFlops | None:
        """What the first counted batch showed."""
        return self.probe.seen.step if self.probe.seen is not None else None

    @property
    def recompiles(self) -> int:
        """Graphs that were compiled since the first batch."""
        return 0 if self._compiled_first is None else self._compiled - self._compiled_first

    def begin(self, batch: Any, batch_idx: int) -> None:
        """Waiting for data is over."""
        meter = self._meter
        self._in_flight = batch
        if self.clock is not None:
            state = meter.state
            self.clock.batch_start(meter.now_ns() - state.since_ns if state.activity == _DATA_WAIT else 0)
        look = _look(batch)
        if self._same is not None and batch_idx and look is not None and look == self._look:
            self._counts_as = self._same  # as the one before, which is the usual case
            meter.enter(_TRAIN)
            return
        self._look, self._counts_as, self._same = look, None, None
        self._size = size = self._sizer.size(batch)
        if self._warm or batch_idx == 0 or self.probe.wants(size):
            self._try_out(batch, batch_idx)
        else:
            meter.enter(_TRAIN)

    @shielded
    def _try_out(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.probe.refresh()
        size = self._size
        new = size is not None and self.probe.wants(size)
        self._warm = self._warm or new
        self._meter.enter(_COMPILE if self._warm else _TRAIN)
        if new and size is not None:
            self.probe.begin(size, batch, batch_idx)

    def end(self, batch: Any, ended_ns: int) -> None:
        """A batch is done: count it, and wait for the next one."""
        counters = self._meter.state.counters
        if self._in_flight is not None:
            same = self._counts_as
            if same is not None and compilations() == self._compiled:
                self._in_flight = None
                counters = same.added_to(counters, self.step())
            else:
                counters = self._counted(counters, self.step(), batch)
        if self.clock is not None:
            self.clock.batch_end()
        self._meter.settle(ended_ns, _DATA_WAIT, counters)
        self._warm = False

    def end_early(self, step: int) -> None:
        """A batch whose end is not seen yet is done: somebody saves a checkpoint after its step."""
        state = self._meter.state
        if self._in_flight is not None and step > state.counters.step:
            counters = self._counted(state.counters, step, self._in_flight)
            self._meter.settle(self._meter.now_ns(), state.activity, counters)

    def _counted(self, counters: Counters, step: int, batch: Any) -> Counters:
        self._in_flight = None
        size, compiled = self._size, compilations()
        if self._warm:
            self.probe.end(size)
        if self._compiled_first is None:
            self._compiled_first = compiled
        if compiled != self._compiled:
            # What was compiled in this batch, first or again, took its time.
            self._compiled, self._warm = compiled, True
            if self._meter.state.activity == _TRAIN:
                self._meter.relabel(_COMPILE)
        counts = self._counter.count(batch) if self._reads_own else COUNTED_ELSEWHERE
        if self._warm:
            self.probe.note_tokens(counts.tokens, counts.padding)
        work = self.probe.work(size, batch)
        self._same = self._alike(batch, counts, work)
        counted = count(counters, step, *counts, work, warm=self._warm)
        # Tokens that could not be counted throughout are unknown, not fewer.
        return counted._replace(tokens=None, padding=None) if self._counter.failed else counted

    def _alike(self, batch: Any, counts: BatchCount, work: Work | None) -> Batch | None:
        """What each further batch that looks like this one adds, `None` where that depends on more than its look."""
        depends = self.probe.depends_on_contents or not (self._counter.is_plain(batch) or not self._reads_own)
        return None if depends or self._counter.failed else Batch(*counts, work)

    def take_late(self, *, wait: bool = False) -> None:
        """Count what only the device knew: which tokens were padding, how long sequences were, what was no wait.

        Args:
            wait: Wait for the device; only for the end of training.
        """
        self._run.move_to_padding(self._counter.late(wait=wait))
        self._run.add_work(self.probe.late(wait=wait))
        if self.clock is not None:
            self._meter.move(_DATA_WAIT, _TRAIN, self.clock.drain().hidden_ns)

    def leave(self) -> None:
        """Put back what is still under watch."""
        self.probe.end(None)
