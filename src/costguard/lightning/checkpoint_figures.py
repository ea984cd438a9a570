"""Tells the metered run what becomes of its checkpoints, so that its receipt knows what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lightning.pytorch import Trainer

from costguard.checkpoints.lives import Life, life_of
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room
from costguard.ledger.attempt import AttemptWriter
from costguard.lightning.cost_monitor import CostMonitor
from costguard.lightning.joining import callbacks_of
from costguard.lightning.run import Run
from costguard.lightning.shield import metering
from costguard.policies.retention import Retention, Tiers


class CheckpointFigures:
    """Compares the list of checkpoints with what was told of it, and writes down what has changed.

    A line says all of one checkpoint, so that nothing depends on each change being seen: what was moved while no
    journal was open yet, or by a recovery, is told at the next look.

    Args:
        room: The checkpoints.
        retention: What the user wants of them.
        tiers: The two places by their prices.
        metered: Gives the run that pays, `None` where none is metered.
    """

    def __init__(self, room: Room, retention: Retention, tiers: Tiers, metered: Callable[[], Run | None]) -> None:
        self._room = room
        self._retention = retention
        self._tiers = tiers
        self._metered = metered
        self._writer: AttemptWriter | None = None
        self._run = ""
        self._begin_ns = 0
        self._told: dict[str, Life] = {}

    def look(self, run: str) -> None:
        """Write down what has changed since the last look; what goes wrong is a warning.

        Args:
            run: The training whose checkpoints these are, as the list names it.
        """
        with metering():
            metered = self._metered()
            if metered is None or not metered.is_open or metered.ended:
                return
            self._introduce(metered, run)
            records = self._room.inventory.records()
            for life in [*self._gone(records), *self._lives(records, run)]:
                if self._told.get(life.id) != life:
                    self._told[life.id] = life
                    metered.writer.checkpoint(**life.to_json())

    def _introduce(self, metered: Run, run: str) -> None:
        """Say in each journal once where the list is and what its tiers cost."""
        if metered.writer is not self._writer:
            self._writer, self._told = metered.writer, {}
            # A checkpoint of another run that this one goes on from is that one's to pay.
            self._begin_ns = min((rank.wall_ns for rank in metered.account().ranks), default=0)
        elif run == self._run:
            return
        self._run = run
        hot, cold = self._tiers.hot, self._tiers.cold or self._room.storage_class
        metered.writer.fact(
            "checkpoints",
            list=self._room.inventory.folder,
            run=run,
            hot=hot.to_json() if hot else None,
            cold=cold.to_json() if cold else None,
            part_bytes=self._room.part_bytes,
        )

    def _gone(self, records: Sequence[Record]) -> Iterator[Life]:
        there = {record.id for record in records}
        for life in list(self._told.values()):
            if life.ended_ns is None and life.id not in there:
                yield replace(life, ended_ns=time.time_ns())

    def _lives(self, records: Sequence[Record], run: str) -> Iterator[Life]:
        failed = run in self._room.inventory.history().failed
        for record in records:
            if record.run == run and record.saved_ns >= self._begin_ns:
                lives_ns = self._retention.life_ns(record.as_checkpoint(), failed)
                due_ns = None if lives_ns is None else record.saved_ns + lives_ns
                yield life_of(record, self._room.part_bytes, due_ns)


def metered_run(trainer: Trainer) -> Run | None:
    """The run that a Trainer is metered for, `None` without a monitor; BudgetStopping may add one late."""
    monitor = next((c for c in callbacks_of(trainer) if isinstance(c, CostMonitor)), None)
    return monitor.metered if monitor is not None else None
