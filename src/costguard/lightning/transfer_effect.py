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

    def _add(self, before: tuple[Run, int, int] | None, after: tuple[Run, int, int] | None) -> None:
        if before is None or after is None or before[0] is not after[0] or after[0].ended:
            return  # a move that outlives its run says nothing of the next one's batches
        run, train_ns, batches = after
        self._beside_ns += train_ns - before[1]
        self._beside_batches += batches - before[2]
        beside = {"beside_ns": self._beside_ns, "beside_batches": self._beside_batches}
        run.writer.fact(FACT, **beside, train_ns=train_ns, batches=batches)

    def _sample(self) -> tuple[Run, int, int] | None:
        """The run, its nanoseconds of training and its batches so far."""
        run = self._metered()
        if run is None or not run.is_open:
            return None
        state, now = run.meter.state, run.meter.now_ns()
        going_on = max(0, now - state.since_ns) if state.activity == Activity.TRAIN else 0
        counters = state.counters
        # Batches that compiled or were tried out are not in the time of training.
        return run, state.totals[Activity.TRAIN] + going_on, counters.batches - counters.warmup.batches
