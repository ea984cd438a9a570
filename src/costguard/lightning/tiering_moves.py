"""What becomes of a training's checkpoints: planned and carried out on one thread beside it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

from costguard.checkpoints.carrying import carry_out
from costguard.checkpoints.faults import BusyError, CheckpointError, StoreError
from costguard.checkpoints.pace import TransferThread
from costguard.checkpoints.record import Record
from costguard.checkpoints.recovery import recover
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room, new_id
from costguard.checkpoints.weights import WholeError
from costguard.errors import warn
from costguard.lightning.checkpoint_figures import CheckpointFigures
from costguard.lightning.run import Run
from costguard.lightning.tiering_settings import Settings
from costguard.lightning.transfer_effect import TransferEffect
from costguard.policies.retention import Decision, Move, plan

BUSY_S: Final = 0.5
"""Seconds between two looks whether another move of this list is done."""
_UNDER_WAY: Final = ("demoting", "releasing", "stripping", "expiring")
_EARLIER: WeakValueDictionary[str, TransferThread] = WeakValueDictionary()
"""Of each folder the thread that last moved its checkpoints: what a training has left goes on while another begins."""


def _nothing(record: Record) -> None:
    """Nobody asked."""


class Moves:
    """One training's list of checkpoints, and the thread that moves them.

    Args:
        room: The checkpoints.
        settings: What the user wants.
        pointers: Gives the files that `ckpt_path="last"` may choose from; those stay on the hot disk.
        run: The run that is trained, until it is known that another one is gone on with.
        metered: Gives the run whose journal is told of it all, `None` where none is metered.
    """

    def __init__(
        self,
        room: Room,
        settings: Settings,
        pointers: Callable[[], Iterable[str]],
        run: str,
        metered: Callable[[], Run | None],
    ) -> None:
        self.room = room
        self.run = run
        self.deleted: list[int] = []
        """Bytes of each checkpoint that was deleted."""
        self.figures = CheckpointFigures(room, settings.retention, settings.tiers, metered)
        self._effect = TransferEffect(metered)
        self.closed = False
        self.at_end: Callable[[], object] | None = None
        """What is done when all is, at the end of training."""
        self._settings = settings
        self._stage_end: str | None = None
        self._pointers = pointers
        self._coming: set[str] = set()
        self._going: set[str] = set()
        self._guard = threading.Lock()
        self._wanted = False
        self._told: set[str] = set()
        self._thread = TransferThread(self._tell)
        earlier = _EARLIER.get(room.inventory.folder)
        _EARLIER[room.inventory.folder] = self._thread
        self._thread.submit("recover", lambda: self._begin(earlier))

    def _begin(self, earlier: TransferThread | None) -> None:
        while earlier is not None and not self.closed and not earlier.wait(0.2):
            pass
        self._recover()

    def _recover(self) -> bool:
        """Go on with what was interrupted; says whether all of it could be."""
        problems = recover(self.room).problems
        for problem in problems:
            self._say(problem, f"checkpoints: {problem}")
        return not problems

    # -- from training ------------------------------------------------------------------------------------------

    def take_up(
        self,
        path: str,
        facts: Mapping[str, Any],
        written: Callable[[], Any] | None,
        then: Callable[[Record], None] = _nothing,
    ) -> None:
        """Take a checkpoint up, once `written` returns if it is written beside, and tell `then`."""
        if written is None:
            self._adopt(path, facts, then)
        else:
            with self._guard:
                self._coming.add(path)
            self._thread.submit(f"take up {path} {new_id()}", lambda: self._adopt_written(path, facts, written, then))
        self.consider()

    def _adopt_written(
        self, path: str, facts: Mapping[str, Any], written: Callable[[], Any], then: Callable[[Record], None]
    ) -> None:
        try:
            written()
            self._adopt(path, facts, then)
        finally:
            with self._guard:
                going = path in self._going
                self._coming.discard(path)
                self._going.discard(path)
        record = self.room.inventory.find(path) if going else None
        if record is not None:
            self.room.inventory.update(record, released=True)

    def _adopt(self, path: str, facts: Mapping[str, Any], then: Callable[[Record], None]) -> None:
        if os.path.exists(path):
            stage_end, self._stage_end = self._stage_end, None
            facts = {**facts, "stage_end": stage_end} if stage_end else facts
            then(self.room.inventory.adopt(path, new_id(), complete=True, run=self.run, **facts))

    def end_stage(self, name: str, step: int) -> None:
        """Mark the checkpoint of a step, or else the next one, as the one that ends a stage."""
        newest = next((r for r in reversed(self.room.inventory.records()) if r.run == self.run), None)
        if newest is not None and newest.step == step:
            self.room.inventory.update(newest, stage_end=name)
        else:
            self._stage_end = name

    def stays(self, path: str) -> bool:
        """Whether what is to be deleted is kept by a rule, or demoted instead."""
        with self._guard:
            if path in self._coming:
                self._going.add(path)
                return True
        record = self.room.inventory.find(path)
        if record is None:
            return False
        try:
            decision = next((d for d in self.plan(without=record.id) if d.id == record.id), None)
        except CheckpointError as error:  # what a rule may have asked for cannot be read: keep, and tell
            self._say("plan", f"checkpoints: {error}")
            return True
        if decision is None or decision.move is Move.EXPIRE:
            self.deleted.append(record.size_bytes)
            return False
        self.room.inventory.update(record, released=True)
        self.consider()
        return True

    def forget(self) -> None:
        """Something was deleted by others: what is gone counts in no rule any more."""
        self.room.inventory.let_ghosts_go()

    def bring_back(self, path: str, patience_s: float) -> Record | None:
        """Make a checkpoint readable under its old path; its record, `None` if it is not one of ours."""
        record = self.room.inventory.find(path)
        if record is None:
            return None
        if record.state not in ("hot", "both") or not os.path.exists(path):
            self._thread.wait(patience_s)
            record = self.room.inventory.find(path) or record
        while not os.path.exists(path):
            try:
                restore(self.room, record.id)
                break  # a name that is not there now does not come by asking again: loading says so
            except BusyError as error:
                self._say("busy", f"checkpoints: {path} is brought back when that is done: {error}")
                time.sleep(BUSY_S)
        return record

    def resumed_from(self, record: Record) -> None:
        """Training goes on from a checkpoint, which therefore stays; the one before need not."""
        self.run = record.run
        for other in self.room.inventory.records():
            if other.run == record.run and other.resumed_from != (other.id == record.id):
                self.room.inventory.update(other, resumed_from=other.id == record.id)

    def consider(self) -> None:
        """Have the plan made and carried out beside training."""
        self._wanted = True
        self._thread.submit("plan", self._carry_out_and_tell)

    def later(self, name: str, job: Callable[[], object]) -> None:
        """Do something on the thread, after what there is to be done."""
        self._thread.submit(name, job)

    def finish(self, patience_s: float) -> int:
        """Carry out the plan for the last time; how many jobs are not done when the patience is at its end."""
        end = time.monotonic() + patience_s
        self._thread.wait(patience_s)
        self.consider()
        if self.at_end is not None:
            self.later("end", self.at_end)
        return 0 if self._thread.wait(max(0.0, end - time.monotonic())) else self._thread.pending

    def close(self) -> None:
        """Take nothing more on; what is being moved now may come to its end."""
        self.closed = True
        self._thread.close(0)

    # -- on the thread ------------------------------------------------------------------------------------------

    def plan(self, without: str = "") -> list[Decision]:
        """What is to become of each.

        Args:
            without: Id of one that `ModelCheckpoint` is about to let go.
        """
        history = self.room.inventory.history()
        checkpoints = [replace(c, released=c.released or c.id == without) for c in history.checkpoints]
        history, settings = replace(history, checkpoints=checkpoints), self._settings
        wanted = replace(self.room.on_disk(settings.retention, history), run=self.run)
        return plan(history, wanted, time.time_ns(), settings.tiers)

    def _carry_out_and_tell(self) -> None:
        try:
            self._carry_out()
        finally:
            self.figures.look(self.run)

    def _carry_out(self) -> None:
        while self._wanted and not self.closed:
            self._wanted = False
            inventory = self.room.inventory
            # Nothing but this thread moves anything: what is under way was left there by a store that went away.
            if any(record.state in _UNDER_WAY for record in inventory.records()) and not self._recover():
                return
            inventory.let_ghosts_go()
            for decision in self.plan():
                if self.closed or not self._do(decision):
                    return

    def _do(self, decision: Decision) -> bool:
        """Carry one decision out; says whether it is worth going on with the others now."""
        if decision.move is Move.KEEP:
            return True
        record = next((r for r in self.room.inventory.records() if r.id == decision.id), None)
        if record is None:
            return True
        if decision.move is Move.STRIP and not self._told.isdisjoint(("strip", record.id)):
            decision = replace(decision, move=Move.DEMOTE)  # it would be read for nothing at each plan
        try:
            with self._effect.moving():
                why = carry_out(self.room, decision, self._pointers())
            if why is None and decision.move is Move.EXPIRE:
                self.deleted.append(record.size_bytes)
        except StoreError as error:
            self._say(error.kind, f"checkpoints stay on the hot disk for now, and are moved later: {error}")
            return False
        except WholeError as error:
            self._say("whole" if error.lasting else "strip", f"checkpoints: step {record.step}: {error}")
        except CheckpointError as error:
            # One that was overwritten meanwhile is another checkpoint now.
            if decision.move is Move.STRIP or self.room.inventory.there(record):
                self._say(record.id, f"checkpoints: step {record.step} stays where it is: {error}")
        return True

    def _tell(self, name: str, error: Exception) -> None:
        what = name.partition(" /")[0]
        self._say(what, f"checkpoints: {what}: {error} ({type(error).__name__}); nothing is lost, it is tried again.")

    def _say(self, about: str, sentence: str) -> None:
        """Warn once of each thing: a store that is away is away at every save."""
        if about not in self._told:
            self._told.add(about)
            warn(sentence)
