"""What a training batch takes while checkpoints move beside it, and what it takes otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from costguard.lightning.run import Run
from costguard.lightning.shield import metering
from costguard.records import Activity

FACT = "transfers"


class TransferEffect:
    """Counts the batches, and the time of training, that fall into moves, and writes both down beside all there were.

    Args:
        metered: Gives the run that is metered, `None` where none is.
    """

    def __init__(self, metered: Callable[[], Run | None]) -> None:
        self._metered = metered
        self._beside_ns = self._beside_batches = 0

    @contextmanager
    def moving(self) -> Iterator[None]:
        """A block in which a checkpoint moves; what goes wrong in the counting is a warning."""
        before = self._sample()
        try:
            yield
        finally:
            with metering():
                self._add(before, self._sample())

    def _add(self, before: tuple[int, int] | None, after: tuple[int, int] | None) -> None:
        run = self._metered()
        if before is None or after is None or run is None or not run.is_open or run.ended:
            return
        self._beside_ns += after[0] - before[0]
        self._beside_batches += after[1] - before[1]
        run.writer.fact(
            FACT,
            beside_ns=self._beside_ns,
            beside_batches=self._beside_batches,
            train_ns=after[0],
            batches=after[1],
        )

    def _sample(self) -> tuple[int, int] | None:
        """Nanoseconds of training and batches so far."""
        run = self._metered()
        if run is None or not run.is_open:
            return None
        state, now = run.meter.state, run.meter.now_ns()
        going_on = max(0, now - state.since_ns) if state.activity == Activity.TRAIN else 0
        counters = state.counters
        # Batches that compiled or were tried out are not in the time of training.
        return state.totals[Activity.TRAIN] + going_on, counters.batches - counters.warmup.batches
