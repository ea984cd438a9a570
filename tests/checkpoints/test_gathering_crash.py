"""Deaths at every storage operation of a node that gathers, of one that sends, and of both: no shard is ever lost."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from crashing import MTIMES, NOW_NS, PART_BYTES, CrashStore, Died, Fate, Truth, World, search, tree

from costguard.checkpoints.demotion import release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import RefusedError
from costguard.checkpoints.gathering import Patience, gather
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.parts import adopt_part, serve
from costguard.checkpoints.recovery import Orphans, Recovery, find_orphans, recover
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore

NAME = "step=7.ckpt"
ON_DISKS = {
    "n0": {".metadata": pickle.dumps(("__0_0.distcp", "__1_0.distcp"), 2), "__0_0.distcp": b"shard"},
    "n1": {"__1_0.distcp": b"another"},
}


@dataclass
class Cluster:
    """The two nodes of one life; those whose fate it is may die."""

    owner: Room
    node: Room
    fate: Fate

    def look(self, _: float = 0.0) -> None:
        """The node looks; if it dies of it, or is dead, the owner does not learn of that."""
        with contextlib.suppress(Died):
            serve(self.node)


class Nodes(World):
    """Two hot disks and a cold store: who dies, does so at a storage operation of its own.

    Args:
        root: Where all three are.
        fate: Of those who may die.
        who: `owner`, `node`, or `both` at once.
    """

    def __init__(self, root: Path, fate: Fate | None = None, who: str = "both") -> None:
        self.root, self.fate = root, fate or Fate()
        self._unharmed = Fate()
        dies = {"n0": who != "node", "n1": who != "owner"}
        rooms = {name: self._room(name, self.fate if dies[name] else self._unharmed) for name in dies}
        self.room: Any = Cluster(rooms["n0"], rooms["n1"], self.fate)

    def _room(self, name: str, fate: Fate) -> Room:
        files: Any = CrashStore(HotFiles(), fate)
        store: Any = CrashStore(LocalStore(str(self.root / "cold")), fate)
        folder = self.root / name / "inventory"
        return Room(
            inventory=Inventory(str(folder), files),
            files=files,
            store=store,
            run="r",
            part_bytes=PART_BYTES,
            node=name,
            owner=name == "n0",
            new_id=self.unused,
            now_ns=lambda: NOW_NS,
        )

    def unused(self) -> str:
        seen = " ".join(str(p) for p in self.root.rglob("*"))
        seen += " ".join(p.read_text(errors="replace") for p in self.root.rglob("inventory/*.json"))
        return next(name for name in (f"att{n}" for n in range(10**6)) if name not in seen)

    def orphans(self) -> Orphans:
        return find_orphans(Nodes(self.root).room.owner)

    def close(self) -> None:
        super().close()
        for handle in self._unharmed.locks:
            os.close(handle)


@dataclass
class Shards(Truth):
    """What every node's disk had."""

    lost: list[str] = field(default_factory=list)

    def assert_safe(self, root: Path, may_expire: bool) -> None:
        """Each shard is on its node's disk, whole, or in a committed copy that is whole."""
        base = root / "cold" / "r" / "whole"
        committed = (base / "MANIFEST.json").exists() and not (base / "TOMBSTONE.json").exists()
        if committed:
            manifest = json.loads((base / "MANIFEST.json").read_text())
            data = base / "data" / manifest["attempt"]
            cold = {e["path"]: (data / e["node"] / e["path"]).read_bytes() for e in manifest["files"]}
            assert cold == {path: content for disk in ON_DISKS.values() for path, content in disk.items()}
            return
        record = root / "n0" / "inventory" / "whole.json"
        if not record.exists() or json.loads(record.read_text())["state"] == "expiring":
            assert may_expire
            return
        for name, content in ON_DISKS.items():
            assert content == tree(root / name / NAME), (name, sorted(root.rglob("*")))


def make(root: Path) -> Shards:
    """A checkpoint on two disks, taken up on both, and a newer one at its owner."""
    times = iter(sorted(MTIMES))
    for name, content in ON_DISKS.items():
        (root / name / NAME).mkdir(parents=True)
        for path, data in content.items():
            (root / name / NAME / path).write_bytes(data)
            os.utime(root / name / NAME / path, ns=(0, next(times)))
    newer = root / "n0" / "newer.ckpt"
    newer.write_bytes(b"newer")
    os.utime(newer, ns=(0, next(times)))
    world = Nodes(root)
    world.room.owner.inventory.adopt(str(root / "n0" / NAME), "whole", step=7, saved_ns=NOW_NS)
    world.room.owner.inventory.adopt(str(newer), "newer", step=8, saved_ns=NOW_NS)
    assert adopt_part(world.room.node, str(root / "n1" / NAME), step=7, saved_ns=NOW_NS)
    world.close()
    return Shards()


def surviving(cluster: Cluster, do: Callable[[], object]) -> None:
    """Do something at the owner; the node goes on looking also if the owner dies of it, and then that is told."""
    try:
        do()
    except RefusedError:
        if not cluster.fate.dead:
            raise
    except Died:
        cluster.look()
        raise
    cluster.look()
    if cluster.fate.dead:
        raise Died


def patience(cluster: Cluster) -> Patience:
    clock = iter(range(10**6))
    return Patience(seconds=2, sleep=cluster.look, now_ns=lambda: next(clock) * 10**9)


def demoted(cluster: Cluster) -> None:
    surviving(cluster, lambda: gather(cluster.owner, "whole", patience(cluster)))
    surviving(cluster, lambda: release(cluster.owner, "whole"))


def restored(cluster: Cluster) -> None:
    surviving(cluster, lambda: restore(cluster.owner, "whole"))
    restore(cluster.node, "whole")


def expired(cluster: Cluster) -> None:
    known = {record.id for record in cluster.owner.inventory.records()}
    surviving(cluster, lambda: expire(cluster.owner, "whole") if "whole" in known else None)


def recovered(cluster: Cluster) -> Recovery:
    """What each node does when it is started again, and one look more."""
    told = recover(cluster.owner)
    other = recover(cluster.node)
    told.problems += other.problems + serve(cluster.node).problems
    return told


WHO = ["owner", "node", "both"]
DEEP = [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


def searched(disk: Path, truth: Shards, who: str, deep: bool, operation: Callable[[Cluster], None], **more: Any) -> Any:
    return search(
        disk / "world",
        disk / "lives",
        truth,
        operation,
        world=lambda root, fate=None: Nodes(root, fate, who),
        recovery=recovered,
        deep=deep,
        **more,
    )


@pytest.mark.parametrize("deep", DEEP, ids=["once", "again"])
@pytest.mark.parametrize("who", WHO)
def test_no_death_in_a_gathering_loses_a_shard(
    who: str, deep: bool, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked, sent, committed, let go on both: after any death each shard has a copy, and going on ends the same."""
    found = searched(disk, make(disk / "world"), who, deep, demoted)
    with capsys.disabled():
        print(f"\n  gathering, {who} dies: {found}")
    assert found.states > 10
    assert found.deaths > 2 * found.operations > 60


@pytest.mark.parametrize("deep", DEEP, ids=["once", "again"])
@pytest.mark.parametrize("who", WHO)
def test_no_death_in_a_restore_loses_a_shard(
    who: str, deep: bool, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each brings back its own."""
    truth = make(disk / "world")
    demoted(Nodes(disk / "world").room)
    found = searched(disk, truth, who, deep, restored)
    with capsys.disabled():
        print(f"\n  restore, {who} dies: {found}")
    assert found.deaths > 2 * found.operations > 40


@pytest.mark.parametrize("deep", DEEP, ids=["once", "again"])
@pytest.mark.parametrize("who", WHO)
def test_no_death_in_an_expiry_leaves_a_part(
    who: str, deep: bool, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once begun at the owner it ends on all nodes."""
    truth = make(disk / "world")
    cluster = Nodes(disk / "world").room
    gather(cluster.owner, "whole", patience(cluster))
    cluster.look()
    found = searched(disk, truth, who, deep, expired, may_expire=True)
    with capsys.disabled():
        print(f"\n  expiry, {who} dies: {found}")
    assert found.deaths > 2 * found.operations > 20
    left = sorted(str(p.relative_to(disk / "world")) for p in (disk / "world").rglob("*") if p.is_file())
    assert left == ["n0/inventory/lock", "n0/inventory/newer.json", "n0/newer.ckpt", "n1/inventory/lock"]
