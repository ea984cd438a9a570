"""Nodes with a disk of their own each, a checkpoint that torch wrote over all of them, and processes that are nodes.

Usage: nodes.py owner|node ROOT COLD    a process of a node; tells what it does, one line each, until it is ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooms import room_of

from costguard.checkpoints.demotion import release
from costguard.checkpoints.gathering import Patience, gather
from costguard.checkpoints.parts import adopt_part, serve
from costguard.checkpoints.recovery import recover
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore, Store

NAME = "step=7.ckpt"
RANKS = Path(__file__).with_name("dcp_ranks.py")


def environment() -> dict[str, str]:
    """For a child that imports what this process does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def write_sharded(folder: Path, ranks: int) -> Path:
    """A checkpoint that so many gloo ranks have written with torch."""
    folder.mkdir()
    command = [sys.executable, "-W", "ignore", str(RANKS), str(folder)]
    children = [subprocess.Popen([*command, str(rank), str(ranks)], env=environment()) for rank in range(ranks)]
    try:
        assert [child.wait(100) for child in children] == [0] * ranks
    finally:
        for child in children:
            child.kill()
            child.wait()
    return folder / "saved"


def shard(rank: int) -> str:
    """Name of a rank's shard."""
    return f"__{rank}_0.distcp"


@dataclass
class Node:
    """One node: its disk and its list."""

    room: Room
    root: Path

    @property
    def path(self) -> Path:
        """Where the checkpoint is on this disk."""
        return self.root / NAME

    @property
    def id(self) -> str:
        """Of what this node has of it."""
        found = self.room.inventory.find(str(self.path))
        assert found is not None
        return found.id

    @property
    def state(self) -> str:
        return self.room.inventory.get(self.id).state

    def bytes(self) -> dict[str, bytes]:
        """What is at the path."""
        return {p.name: p.read_bytes() for p in self.path.iterdir()} if self.path.is_dir() else {}


def node_room(root: Path, store: Store, name: str, *, owner: bool, **more: Any) -> Room:
    """A node's list beside its hot folder."""
    root.mkdir(parents=True, exist_ok=True)
    return room_of(root, store, node=name, owner=owner, **{"part_bytes": 1000, **more})


def put_on_disks(root: Path, saved: Path, split: list[list[int]]) -> None:
    """Give each node the shards of some ranks; the first has `.metadata` too."""
    for number, ranks in enumerate(split):
        path = root / f"n{number}" / NAME
        path.mkdir(parents=True)
        for name in [*map(shard, ranks), *([".metadata"] if number == 0 else [])]:
            shutil.copy2(saved / name, path / name)
    (root / "n0" / "newer.ckpt").write_bytes(b"newer")


def take_up(node: Node, number: int) -> None:
    """What each node does after the save."""
    if number == 0:
        node.room.inventory.adopt(str(node.path), "whole", step=7)
        node.room.inventory.adopt(str(node.root / "newer.ckpt"), "newer", step=8)
    else:
        assert adopt_part(node.room, str(node.path), step=7) is not None


def cluster(root: Path, store: Store, saved: Path, split: list[list[int]], **more: Any) -> list[Node]:
    """Nodes that have just saved a checkpoint together; the first owns it."""
    put_on_disks(root, saved, split)
    nodes = []
    for number in range(len(split)):
        folder = root / f"n{number}"
        room = node_room(folder, store, f"n{number}", owner=number == 0, **more)
        nodes.append(Node(room, folder))
        take_up(nodes[-1], number)
    return nodes


# -- as processes ----------------------------------------------------------------------------------------------------


def tell(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


class Slow(LocalStore):
    """A folder to which large objects take a while, so that there is a middle to be killed in."""

    def put(self, key: str, *arguments: Any) -> None:
        tell("putting", key)
        if os.environ.get("SLOW_S"):
            time.sleep(float(os.environ["SLOW_S"]))
        super().put(key, *arguments)


def be_owner(root: Path, cold: Path) -> None:
    """Gather and let go, as often as it takes."""
    node = Node(node_room(root, Slow(str(cold)), "n0", owner=True), root)
    if node.room.inventory.find(str(node.path)) is None:
        take_up(node, 0)
    recover(node.room)
    while node.room.inventory.get("whole").tier != "cold":
        gather(node.room, "whole", Patience(seconds=20.0, poll_s=0.05))
        tell("gathered", "whole")
        release(node.room, "whole")
    tell("cold", "whole")


def be_node(root: Path, cold: Path) -> None:
    """Answer until what is here is cold."""
    node = Node(node_room(root, Slow(str(cold)), root.name, owner=False), root)
    if node.room.inventory.find(str(node.path)) is None:
        take_up(node, 1)
    recover(node.room)
    while node.state != "cold":
        for line in serve(node.room).done:
            tell("did", line)
        time.sleep(0.05)
    tell("cold", node.id)


if __name__ == "__main__":
    {"owner": be_owner, "node": be_node}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
