"""What a rank does for checkpoints on several nodes, as far as one process shows it; `tests/ddp` has two."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.trainer.states import TrainerFn

from costguard.checkpoints.cabinet import Cold, open_room, room_above
from costguard.checkpoints.faults import CheckpointError, RefusedError
from costguard.checkpoints.room import Room
from costguard.errors import CostguardWarning
from costguard.lightning.tiering_nodes import Nodes, is_part


@dataclass
class Strategy:
    """Tells what rank 0 would have told, and whether another rank has failed."""

    told: Any = None
    others: bool = True
    asked: int = 0

    def broadcast(self, obj: Any) -> Any:
        self.asked += 1
        return self.told if obj is None else obj

    def reduce_boolean_decision(self, decision: bool) -> bool:
        return decision and self.others


@dataclass
class Rank:
    """What is asked of a Trainer."""

    default_root_dir: str
    strategy: Strategy
    num_nodes: int = 2
    local_rank: int = 0
    node_rank: int = 1
    state: Any = field(default_factory=lambda: type("State", (), {"fn": TrainerFn.FITTING}))


class Owner:
    """What is asked of the first rank's moves."""

    closed = False
    at_end: Any = None

    def __init__(self, room: Room) -> None:
        self.room = room

    def later(self, name: str, job: Any) -> None:
        job()


def part(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "__1_0.distcp").write_bytes(b"shard")
    return str(folder)


def made(rank: Rank, cold: Path, moves: Any = None) -> Nodes:
    return Nodes(rank, moves, Cold(url=str(cold)))  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [{"num_nodes": 1}, {"node_rank": 0}, {"local_rank": 1}, {"told": None}])
def test_other_ranks_list_nothing(rank: dict[str, Any], tmp_path: Path) -> None:
    """One node alone, which tells nobody; the first one; a second rank of a node; and where there is no cold store."""
    strategy = Strategy(told=rank.pop("told", ("run", "s")))
    nodes = made(Rank(str(tmp_path / "n1"), strategy, **rank), tmp_path / "cold")
    nodes.saved(part(tmp_path / "n1" / "step=1.ckpt"), 1)
    assert strategy.asked == (0 if rank.get("num_nodes") == 1 else 1)
    assert not (tmp_path / "n1" / "costguard-checkpoints").exists()


def test_only_shards_without_their_metadata_are_a_part(tmp_path: Path) -> None:
    """A whole checkpoint on a shared disk, an empty folder, nothing, and a file are none."""
    path = part(tmp_path / "a")
    assert is_part(path)
    (tmp_path / "a" / ".metadata").write_bytes(b"")
    (tmp_path / "b").mkdir()
    assert [is_part(str(p)) for p in (path, tmp_path / "b", tmp_path / "none", __file__)] == [False] * 4


def test_a_list_that_cannot_be_opened_leaves_the_shards_and_training_goes_on(tmp_path: Path) -> None:
    """Said once."""
    root = tmp_path / "n1"
    room = open_room(str(root), Cold(url=str(tmp_path / "cold")))
    room.inventory.update(room.inventory.adopt(__file__, "x"), state="cold", cold_since_ns=1)
    nodes = made(Rank(str(root), Strategy(told=("another", "s"))), tmp_path / "cold")
    path = part(root / "step=1.ckpt")
    with pytest.warns(CostguardWarning, match="the shards on this node stay here: .*1 checkpoints of the run"):
        nodes.saved(path, 1)
    nodes.saved(path, 2)
    nodes.bring_back(Rank(str(root), Strategy()), path)  # type: ignore[arg-type]
    nodes.finish(0)


def test_a_damaged_list_is_said_when_it_is_opened(tmp_path: Path) -> None:
    """And not raised on one rank alone, for which the others would wait."""
    root = tmp_path / "n1"
    (root / "costguard-checkpoints").mkdir(parents=True)
    (root / "costguard-checkpoints" / "room").write_text("{")
    with pytest.warns(CostguardWarning, match="the shards on this node stay here: .*cannot be read"):
        made(Rank(str(root), Strategy(told=("run", "s"))), tmp_path / "cold")


def test_what_one_node_cannot_bring_back_fails_on_all(tmp_path: Path) -> None:
    """None starts from a half."""
    root = tmp_path / "n1"
    nodes = made(Rank(str(root), Strategy(told=("run", "s"))), tmp_path / "cold")
    path = part(root / "step=1.ckpt")
    nodes.saved(path, 1)
    try:
        with pytest.raises(CheckpointError, match="another node could not bring back"):
            nodes.bring_back(Rank(str(root), Strategy(others=False)), path)  # type: ignore[arg-type]
        nodes.bring_back(Rank(str(root), Strategy()), path)  # type: ignore[arg-type]
        room = room_above(path)
        room.inventory.update(room.inventory.records()[0], state="cold", cold_since_ns=1)
        os.rename(path, f"{path}.away")
        with pytest.raises(CheckpointError, match="the manifest of its cold copy is gone"):
            nodes.bring_back(Rank(str(root), Strategy()), path)  # type: ignore[arg-type]
    finally:
        nodes.close()


def test_who_did_not_answer_is_asked_once_in_a_training(tmp_path: Path) -> None:
    """Each try sends this node's own files anew and waits for the others."""
    room = open_room(str(tmp_path / "n0"), Cold(url=str(tmp_path / "cold")))
    owner = Owner(room)
    nodes = made(Rank(str(tmp_path / "n0"), Strategy(), node_rank=0), tmp_path / "cold", owner)
    assert [key for key in room.cold.listing("") if "/session/" in key]
    path = tmp_path / "n0" / "step=1.ckpt"
    path.mkdir()
    (path / ".metadata").write_bytes(b"\x80\x02X\x0c\x00\x00\x00__1_0.distcpq\x00.")
    room.inventory.adopt(str(path), "a")
    owner.closed = True  # what is not answered at once is not waited for
    assert room.gather is not None
    for _ in range(2):
        with pytest.raises(RefusedError, match="did not come from other nodes"):
            room.gather(room, "a")
        owner.closed = False  # the second time is not tried
    owner.at_end()
    assert room.cold.listing("") == []
    nodes.close()
