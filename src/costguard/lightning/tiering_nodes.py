"""Checkpoints on the disks of several nodes: one rank of each sends what only its disk has when rank 0 asks for it."""

from __future__ import annotations

import os
import time
from functools import partial

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from costguard.checkpoints.cabinet import Cold, has_parts, leave_word, part_room
from costguard.checkpoints.faults import CheckpointError, RefusedError
from costguard.checkpoints.gathering import Patience, gather
from costguard.checkpoints.mailbox import begin_session, end_session
from costguard.checkpoints.parts import adopt_part
from costguard.checkpoints.record import Record
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room, new_id
from costguard.checkpoints.serving import POLL_S, Serving
from costguard.errors import CostguardError, warn
from costguard.lightning.tiering_moves import Moves


class Nodes:
    """What this rank does for checkpoints that lie on the disks of several nodes; nothing where there is one node.

    Made on all ranks in `setup`, since the name of the run is told there; after that no rank waits for another but
    in `bring_back`.

    Args:
        trainer: Of this training.
        moves: Rank 0's; `None` on others.
        cold: Where what is demoted goes.
    """

    def __init__(self, trainer: Trainer, moves: Moves | None, cold: Cold) -> None:
        self._cold = cold
        self._root = str(trainer.default_root_dir)
        self._several = trainer.num_nodes > 1
        self._answers = self._several and trainer.local_rank == 0 and trainer.node_rank > 0
        self._fits = trainer.state.fn == TrainerFn.FITTING
        self._serving: Serving | None = None
        self._room: Room | None = None
        self._run, self._session = "", ""
        self._refused: dict[str, str] = {}
        if self._several:
            told = self._asks(moves) if moves is not None and moves.room.store is not None else None
            told = trainer.strategy.broadcast(told)
            if told is not None:
                self._run, self._session = told
            if self._answers and self._run and self._known(self._root):
                self._open(os.path.join(self._root, "part"))

    def _asks(self, moves: Moves) -> tuple[str, str]:
        """Rank 0: demotions ask the other nodes for their shards from now on."""
        room, session = moves.room, new_id()
        if self._fits:
            room.gather = partial(self._gather, Patience(stopped=lambda: moves.closed))
            moves.later("ask other nodes", partial(begin_session, room, session))
            moves.at_end = partial(end_session, room, session)
        return room.run, session

    def _gather(self, patience: Patience, room: Room, id: str) -> Record:
        """Gather once in this training: each try sends this node's own files anew and waits for the others."""
        if id in self._refused:
            raise RefusedError(self._refused[id])
        try:
            return gather(room, id, patience)
        except RefusedError as error:
            self._refused[id] = str(error)
            raise

    def _known(self, root: str) -> bool:
        try:
            return has_parts(root, self._run)
        except CheckpointError:  # said when it is opened
            return True

    def _open(self, path: str) -> Room | None:
        """Open this node's list, and answer from now on; what fails here leaves shards where they are."""
        if self._room is None:
            try:
                self._room = part_room(path, self._root, self._cold, self._run)
            except (CostguardError, OSError) as error:
                self._answers = False
                warn(f"checkpoints: the shards on this node stay here: {error}")
                return None
            if self._fits:
                self._serving = Serving(self._room, self._session, _tell, POLL_S)
                self._serving.start()
        return self._room

    def saved(self, path: str, step: int) -> None:
        """Take up what this node has of a checkpoint that all ranks have saved, if its `.metadata` is elsewhere."""
        if not self._answers or not self._run or not is_part(path):
            return
        room = self._open(path)
        if room is not None and adopt_part(room, path, step=step, saved_ns=time.time_ns()) is not None:
            leave_word(path, room)

    def bring_back(self, trainer: Trainer, path: str) -> None:
        """Bring back what this node had of a checkpoint that is loaded now; what fails on one node fails on all.

        Raises:
            CheckpointError: If a node could not.
        """
        if not self._several:
            return
        problem: Exception | None = None
        try:
            self._bring_back(path)
        except Exception as error:  # the other ranks wait for word
            problem = error
        if not trainer.strategy.reduce_boolean_decision(problem is None):
            raise problem or CheckpointError(f"{path}: another node could not bring back what it had of it.")

    def _bring_back(self, path: str) -> None:
        if not self._answers or not self._run or os.path.exists(path):
            return
        beside = os.path.dirname(path)
        if self._room is None and self._known(beside):
            self._open(path)
        record = self._room.inventory.find(path) if self._room is not None else None
        if self._room is not None and record is not None:
            restore(self._room, record.id)

    def finish(self, patience_s: float) -> None:
        """Answer until rank 0 asks for nothing more."""
        if self._serving is not None and not self._serving.finish(patience_s) and patience_s > 0:
            warn(
                f"checkpoints: after {patience_s:.0f} s it is not known whether this node's shards are still asked "
                "for; what was not sent stays here, and the next training in this folder goes on."
            )

    def close(self) -> None:
        """Answer no more."""
        if self._serving is not None:
            self._serving.close()


def is_part(path: str) -> bool:
    """Whether a path is a folder of shards without the `.metadata` that names them, by a short look."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return ".metadata" not in names and any(name.endswith(".distcp") for name in names)


def _tell(problem: str) -> None:
    warn(f"checkpoints: shards of this node: {problem}")
