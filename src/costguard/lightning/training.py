"""One training under the monitor, from its first batch to its last: what is metered, looked at and foreseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from costguard.ledger.live import Figures
from costguard.lightning.batches import BatchCounter
from costguard.lightning.device_side import DeviceSide
from costguard.lightning.gpu_watch import GpuWatch
from costguard.lightning.growth_watch import GrowthWatch
from costguard.lightning.instances import Method
from costguard.lightning.outlook import Outlook
from costguard.lightning.run import Run
from costguard.lightning.settings import Settings
from costguard.lightning.shield import tell
from costguard.lightning.stepping import StepMeter
from costguard.plan.forecast import Forecast
from costguard.units import NS_PER_S


class Training:
    """What a monitor keeps while it trains.

    Args:
        trainer: The Trainer.
        module: The module that trains.
        run: The run, open.
        counter: Counts what batches hold.
        said: What the user said.
    """

    def __init__(
        self, trainer: Trainer, module: LightningModule, run: Run, counter: BatchCounter, said: Settings
    ) -> None:
        self.last_work_ns = 0
        self._on = True
        self.steps = StepMeter(trainer, module, run, counter)
        self._trainer = trainer
        self._run = run
        self._next_tick_ns = 0
        self._side = DeviceSide(run, GpuWatch.for_device(trainer.strategy.root_device, run.pids()))
        self.outlook: Outlook | None = None
        self._growth: GrowthWatch | None = None
        if trainer.is_global_zero:
            planned_steps = trainer.max_steps if trainer.max_steps > 0 else None
            self.outlook = Outlook(run, planned_steps, said.planned_usd, said.planned_hours)
            self._growth = GrowthWatch(run, said.planned_per_day)

    def begin_batch(self, original: Method) -> Method:
        """Wrap what is called when a batch has come; the batch trains when it returns."""
        begin = self.steps.begin

        def on_train_batch_start(batch: Any, batch_idx: int) -> Any:
            result = original(batch, batch_idx)
            if self._on:
                try:
                    begin(batch, batch_idx)
                except Exception as error:  # as `shielded` does, without its cost at each batch
                    tell("on_train_batch_start", error)
            return result

        return on_train_batch_start

    @property
    def forecast(self) -> Forecast | None:
        """How the run is expected to end, as far as it can be said here."""
        return self.outlook.forecast if self.outlook is not None else None

    def end_batch(self, batch: Any, ended_ns: int) -> bool:
        """A batch is done; returns whether it is time for a tick."""
        self.steps.end(batch, ended_ns)
        self.last_work_ns = ended_ns
        if ended_ns < self._next_tick_ns:
            return False
        self._next_tick_ns = ended_ns + NS_PER_S
        return True

    def tick(self) -> Figures | None:
        """Once a second, between two batches; returns the live figures on the rank that shows them."""
        self.steps.take_late()
        figures = self._run.figures()
        self._side.tick(figures, self.steps.seen, self.steps.recompiles)
        if figures is not None and self.outlook is not None and self._growth is not None:
            verdict = self.outlook.tick(figures)
            for each in [*([verdict] if verdict is not None else []), *self._growth.tick(figures)]:
                self._side.tell(each)
        self.tell_flops()
        return figures

    def metrics(self) -> Mapping[str, float]:
        """What the device adds to a logger's row."""
        return self._side.metrics()

    def tell_flops(self) -> None:
        """Write down what counting has shown, if that is news."""
        probe = self.steps.probe
        if probe.news and self._run.is_open and self._trainer.is_global_zero:
            probe.news = False
            self._run.note_flops(self._trainer, probe.seen, probe.problem)

    def finish(self) -> None:
        """The last batch is done: what only the device knew is taken in, and the news are told."""
        self.steps.take_late(wait=True)
        self.tell_flops()

    def leave(self) -> None:
        """Put everything back; twice is the same as once."""
        self._on = False
        self.steps.leave()
        self._side.end()
