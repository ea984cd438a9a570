"""A sharded checkpoint on the disks of several nodes moves as one: all of it or none, and no node waits for ever."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nodes import NAME, Node, adopt_part, cluster, environment, node_room, put_on_disks, shard, take_up, write_sharded
from rooms import s3_store

from costguard.checkpoints.cabinet import Cold, has_parts, open_room, part_room
from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.digest import PART_BYTES
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import CheckpointError, MismatchError, RefusedError, StoreError
from costguard.checkpoints.gathering import Patience, gather
from costguard.checkpoints.mailbox import Gathering, Part, begin_session, end_session, gathering_key, look, part_key
from costguard.checkpoints.manifest import FileEntry, Manifest
from costguard.checkpoints.parts import serve
from costguard.checkpoints.record import Record
from costguard.checkpoints.recovery import collect, find_orphans, rebuild, recover
from costguard.checkpoints.restore import check_copy, restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.serving import Serving
from costguard.checkpoints.store import LocalStore, Store
from costguard.checkpoints.stripping import strip
from costguard.checkpoints.weights import WholeError
from costguard.errors import ConfigError
from costguard.policies.retention import Move, Retention, plan

SCRIPT = Path(__file__).with_name("nodes.py")
TWO, THREE = [[0], [1, 2]], [[0], [1], [2]]


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three gloo ranks have written with torch."""
    return write_sharded(tmp_path_factory.mktemp("sharded") / "job", 3)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "cold"))


@pytest.fixture
def two(tmp_path: Path, store: LocalStore, sharded: Path) -> list[Node]:
    """An owner and a node."""
    return cluster(tmp_path, store, sharded, TWO)


def serving(*nodes: Node, rounds: int = 3) -> Patience:
    """Waits by letting others look, and gives up after so many rounds, without time."""
    clock = iter(range(10**6))

    def look_round(_: float) -> None:
        for node in nodes:
            serve(node.room)

    return Patience(seconds=rounds, sleep=look_round, now_ns=lambda: next(clock) * 10**9)


def assert_hot(nodes: list[Node], sharded: Path) -> None:
    """Every shard is on its disk, nobody is on the way, and nothing is left in the store."""
    there = {name: data for node in nodes for name, data in node.bytes().items()}
    assert there == {p.name: p.read_bytes() for p in sharded.iterdir()}
    assert [node.state for node in nodes] == ["hot"] * len(nodes)
    assert nodes[0].room.cold.listing("") == []
    assert nodes[0].room.cold.uploads("") == []


def loaded(path: Path) -> Any:
    """The weight that torch reads from a checkpoint."""
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"weight": torch.zeros(24, 8), "step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=str(path), no_dist=True)
    assert state["step"] == 7
    return state["weight"]


@pytest.fixture(params=["folder", "weed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, int]:
    """The cold store of all nodes, and the bytes of a part: S3 takes no small ones."""
    if request.param == "folder":
        return LocalStore(str(tmp_path / "cold")), 1000
    return s3_store(request.getfixturevalue("weed_endpoint")), PART_BYTES


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("split", [TWO, THREE], ids=["two", "three"])
def test_shards_of_several_nodes_are_one_copy_and_come_back(
    split: list[list[int]], place: tuple[Store, int], tmp_path: Path, sharded: Path
) -> None:
    """Gathered, let go, restored by each node and as a whole by one, let go again, expired: on all nodes alike."""
    nodes = cluster(tmp_path, place[0], sharded, split, part_bytes=place[1])
    owner, others = nodes[0], nodes[1:]
    record = gather(owner.room, "whole", serving(*others))
    assert (record.state, record.nodes) == ("both", tuple(f"n{i}" for i in range(len(split))))
    manifest = owner.room.committed(record)
    assert {entry.path: entry.node for entry in manifest.files} == {
        ".metadata": "n0",
        **{shard(rank): f"n{number}" for number, ranks in enumerate(split) for rank in ranks},
    }
    assert look(owner.room) == []
    for node in others:
        serve(node.room)
        # Nobody lets go of anything before the owner says so.
        assert (node.state, node.id, len(node.bytes())) == ("both", "whole", len(split[int(node.root.name[1])]))
    release(owner.room, "whole")
    for _ in range(2):
        for node in others:
            serve(node.room)
    assert [(node.state, node.path.exists()) for node in nodes] == [("cold", False)] * len(nodes)
    assert check_copy(owner.room, "whole") == sum(p.stat().st_size for p in sharded.iterdir())
    asking = others[-1]
    copy = Path(restore(asking.room, asking.id, str(tmp_path / "copy")))
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == {p.name: p.read_bytes() for p in sharded.iterdir()}
    assert loaded(copy).flatten().tolist() == list(range(192))
    for node in nodes:
        restore(node.room, node.id)
        assert len(node.bytes()) == len(split[int(node.root.name[1])]) + (node is owner)
    assert find_orphans(owner.room).keys == ()
    release(owner.room, "whole")
    expire(owner.room, "whole")
    for node in others:
        serve(node.room)
        serve(node.room)
    assert [p.name for node in nodes for p in node.root.glob("step*")] == []
    assert [[r.id for r in node.room.inventory.records()] for node in nodes] == [["newer"], *[[] for _ in others]]
    assert owner.room.cold.listing("") == []


def test_a_node_that_is_missing_means_no_commit_and_no_hang(two: list[Node], sharded: Path) -> None:
    """One clear sentence; the attempt is thrown away, the copies stay, and the next time it works."""
    with pytest.raises(RefusedError, match=r"2 shards .* did not come from other nodes, such as __1_0.distcp.* stays"):
        gather(two[0].room, "whole", serving())
    assert_hot(two, sharded)
    assert "did not come" in two[0].room.inventory.get("whole").problem
    assert recover(two[0].room).done == []
    assert gather(two[0].room, "whole", serving(two[1])).state == "both"


def test_waiting_ends_at_once_when_it_is_stopped(two: list[Node], sharded: Path) -> None:
    """The end of a training does not wait for a node."""
    with pytest.raises(RefusedError, match="did not come"):
        gather(two[0].room, "whole", Patience(stopped=lambda: True))
    assert_hot(two, sharded)


def test_without_a_gathering_the_old_refusal_stands(two: list[Node], sharded: Path) -> None:
    """Who only demotes is told why it stays; a part is moved by nobody but its owner."""
    with pytest.raises(RefusedError, match="they may be on another node's disk, so it stays"):
        demote(two[0].room, "whole")
    for move in (demote, expire, gather):
        with pytest.raises(RefusedError, match="is a part of a checkpoint"):
            move(two[1].room, two[1].id)
    with pytest.raises(RefusedError, match="no committed cold copy"):
        release(two[1].room, two[1].id)
    assert_hot(two, sharded)


def test_a_demotion_gathers_where_it_is_told_how(two: list[Node]) -> None:
    """What has all its shards here is demoted alone as ever."""
    asked: list[str] = []

    def ask(room: Room, id: str) -> Record:
        asked.append(id)
        return gather(room, id, serving(two[1]))

    two[0].room.gather = ask
    assert demote(two[0].room, "newer").nodes == ()
    assert demote(two[0].room, "whole").nodes == ("n0", "n1")
    assert asked == ["whole"]


def test_no_plan_counts_a_part_as_a_checkpoint(two: list[Node]) -> None:
    """Neither as the newest, nor as one that a rule may move."""
    inventory = two[1].room.inventory
    assert [c.complete for c in inventory.history().checkpoints] == [False]
    assert inventory.newest_complete() is None
    assert [d.move for d in plan(inventory.history(), Retention(), 10**19)] == [Move.KEEP]


def test_what_is_no_part_is_not_taken_up_as_one(two: list[Node], tmp_path: Path) -> None:
    """A folder with its .metadata is on a shared disk; a file and an empty folder have no shards."""
    room = two[1].room
    (tmp_path / "n1" / "empty").mkdir()
    for path in (two[0].path, tmp_path / "n0" / "newer.ckpt", tmp_path / "n1" / "empty", tmp_path / "none"):
        assert adopt_part(room, str(path), step=1) is None


def test_the_owner_waits_for_one_node_after_another(tmp_path: Path, store: LocalStore, sharded: Path) -> None:
    """A part that has come is a sign, and not yet all."""
    nodes = cluster(tmp_path, store, sharded, THREE)
    rounds: list[float] = []

    def look_round(seconds: float) -> None:
        rounds.append(seconds)
        serve(nodes[-len(rounds)].room)

    assert gather(nodes[0].room, "whole", Patience(sleep=look_round)).state == "both"
    assert rounds == [5.0, 5.0]


def test_what_the_owner_has_may_not_change_meanwhile(two: list[Node]) -> None:
    """It is saved again while the other node sends: the old copy of it is not committed."""
    others = serving(two[1])

    def saves(_: float) -> None:
        others.sleep(0)
        (two[0].path / shard(0)).write_bytes(b"of the next save")

    with pytest.raises(RefusedError, match="was changed while its shards were gathered"):
        gather(two[0].room, "whole", replace(others, sleep=saves))
    assert (two[0].room.cold.listing(""), two[0].path.exists()) == ([], True)


@pytest.mark.parametrize("damage", ["gone", "other"])
def test_the_owner_looks_at_what_others_have_sent_before_it_commits(
    damage: str, two: list[Node], sharded: Path
) -> None:
    """A part is a claim: the objects are looked at."""
    others = serving(two[1])

    def loses(_: float) -> None:
        others.sleep(0)
        key = next(key for key in two[0].room.cold.listing("") if key.endswith(shard(2)))
        two[0].room.cold.delete(key)
        if damage == "other":
            two[0].room.cold.put(key, [b"other"], 5)

    with pytest.raises(MismatchError, match="is not there" if damage == "gone" else "has 5 bytes instead of"):
        gather(two[0].room, "whole", replace(others, sleep=loses))
    serve(two[1].room)
    assert_hot(two, sharded)


def test_a_restore_that_had_ended_but_for_the_note_is_noted(two: list[Node]) -> None:
    """Of a part it is whole when what this node had is there."""
    gather(two[0].room, "whole", serving(two[1]))
    serve(two[1].room)
    release(two[0].room, "whole")
    serve(two[1].room)
    for node in two:
        restore(node.room, "whole")
        node.room.inventory.update(node.room.inventory.get("whole"), state="restoring")
        assert recover(node.room).done == ["whole: it is restored"]
        assert node.state == "both"


class Hooked(LocalStore):
    """A cold store of one node, at one verb of which something happens elsewhere first."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.before: dict[str, Callable[[str], None]] = {}
        self.sent = 0

    def put(self, key: str, parts: Any, size: int, part_md5s: Any = ()) -> None:
        self.before.pop("put", lambda _: None)(key)
        self.sent += 1
        super().put(key, parts, size, part_md5s)

    def create(self, key: str, data: bytes) -> bool:
        self.before.pop("create", lambda _: None)(key)
        return super().create(key, data)


@pytest.mark.parametrize("verb", ["put", "create"])
def test_a_late_node_cleans_up_what_it_has_sent(verb: str, tmp_path: Path, sharded: Path, store: LocalStore) -> None:
    """The owner gives up while the node is sending, or just before it says that it has: its own objects go again."""
    nodes = cluster(tmp_path, store, sharded, TWO)
    late = Hooked(store.root)
    nodes[1].room.store = late
    gave_up, sending = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def owner() -> None:
        try:
            patience = Patience(stopped=gave_up.is_set, sleep=lambda _: sending.wait(10))
            gather(nodes[0].room, "whole", patience)
        except RefusedError as error:
            errors.append(error)

    thread = threading.Thread(target=owner)

    def happens(_: str) -> None:
        gave_up.set()
        sending.set()
        thread.join(10)
        assert len(errors) == 1

    late.before[verb] = happens
    thread.start()
    deadline = time.monotonic() + 20
    while not sending.is_set():
        assert time.monotonic() < deadline, "nothing was sent"
        serve(nodes[1].room)
    assert_hot(nodes, sharded)
    assert serve(nodes[1].room).done == []


class Watched:
    """A node's store, at the so manyth request of which something happens elsewhere first."""

    def __init__(self, inner: LocalStore, at: int, happens: Callable[[], None]) -> None:
        self._inner, self._at, self._happens = inner, at, happens
        self.url, self.requests = inner.url, 0

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            self.requests += 1
            if self.requests == self._at:
                self._happens()
            return verb(*arguments)

        return call


@pytest.mark.parametrize("ends", ["commits", "gives up"])
def test_the_owner_may_end_the_gathering_between_any_two_requests_of_a_node(
    ends: str, tmp_path: Path, sharded: Path
) -> None:
    """A copy that is committed keeps all that it names, and of one that is not nothing is left, whoever was first."""
    ended = 0
    for at in range(1, 10**6):
        root = tmp_path / str(at)
        nodes = cluster(root, LocalStore(str(root / "cold")), sharded, TWO)
        ended += ended_at(at, ends, nodes, LocalStore(str(root / "cold")))
        for node in nodes:
            recover(node.room)
        serve(nodes[1].room)
        if nodes[0].state == "both":
            assert check_copy(nodes[0].room, "whole") > 0
            assert (nodes[1].state, find_orphans(nodes[0].room).keys) == ("both", ())
        else:
            assert_hot(nodes, sharded)
        if nodes[1].room.store.requests < at:  # type: ignore[union-attr]
            break
    assert ended > 5


def ended_at(at: int, ends: str, nodes: list[Node], store: LocalStore) -> int:
    """Two looks of a node, before one request of which its owner goes on; says how often it did."""
    goes_on, asked = threading.Event(), threading.Event()
    patience = Patience(
        stopped=lambda: goes_on.is_set() and ends == "gives up", sleep=lambda _: (asked.set(), goes_on.wait(20))
    )

    def owner() -> None:
        with contextlib.suppress(RefusedError):
            gather(nodes[0].room, "whole", patience)

    thread = threading.Thread(target=owner)
    done: list[int] = []

    def happens() -> None:
        if ends == "gives up" or any("/parts/" in key for key in store.listing("")):
            done.append(at)
            goes_on.set()
            thread.join(20)

    nodes[1].room.store = Watched(store, at, happens)  # type: ignore[assignment]
    thread.start()
    assert asked.wait(20)
    serve(nodes[1].room)
    serve(nodes[1].room)
    goes_on.set()
    thread.join(20)
    return len(done)


def test_what_was_sent_is_sent_once(two: list[Node]) -> None:
    """Whoever looks again while the owner waits for others sends nothing again."""
    counting = Hooked(two[0].room.cold.root)  # type: ignore[attr-defined]
    two[1].room.store = counting

    def look_rounds(_: float) -> None:
        for _ in range(3):
            serve(two[1].room)

    gather(two[0].room, "whole", Patience(sleep=look_rounds))
    assert counting.sent == 2


def test_a_late_node_that_died_is_cleaned_up_by_the_collection(two: list[Node], sharded: Path) -> None:
    """What nobody comes back for: objects of a dropped upload, its part, and a question that nobody waits for."""
    room = two[0].room
    manifest = Manifest(
        id="whole", run="run-7", attempt="old", name=NAME, kind="folder", path="p", files=(), folders=("",)
    )
    room.cold.create(part_key(room, "whole", "old", "n1"), Part(node="n1", manifest=manifest).encode())
    room.cold.put(room.data_prefix("whole", "old") + "n1/__1_0.distcp", [b"shard"], 5)
    asked = Gathering(id="gone", attempt="old", path="/elsewhere", below=NAME, step=7, shards=())
    room.cold.create(gathering_key(room, "gone"), asked.encode())
    assert len(find_orphans(room).keys) == 3
    # A node that only has parts cannot tell, and touches nothing.
    assert find_orphans(two[1].room).keys == ()
    assert collect(two[1].room).done == []
    assert len(room.cold.listing("")) == 3
    assert collect(room).done == ["3 objects and 0 unfinished uploads are deleted"]
    assert_hot(two, sharded)


def test_a_shard_that_has_changed_since_its_save_stays_everywhere(two: list[Node]) -> None:
    """The node says so, and the owner gives up at once instead of waiting."""
    changed = two[1].path / shard(1)
    changed.write_bytes(b"another save is being written here")
    with pytest.raises(RefusedError, match=r"node n1 sends no shards, so it stays: .*has changed since it was taken"):
        gather(two[0].room, "whole", serving(two[1]))
    served = serve(two[1].room)
    assert (served.problems, served.waiting) == ([], [])
    assert changed.read_bytes() == b"another save is being written here"
    assert two[0].room.cold.listing("") == []
    assert [node.state for node in two] == ["hot", "hot"]


def test_a_shard_that_changes_after_it_was_sent_is_not_let_go(two: list[Node], sharded: Path) -> None:
    """The cold copy has what was hashed; what has taken its place on the disk is another save's."""
    gather(two[0].room, "whole", serving(two[1]))
    (two[1].path / shard(1)).write_bytes(b"of the next run")
    serve(two[1].room)
    release(two[0].room, "whole")
    serve(two[1].room)
    assert (two[1].path / shard(1)).read_bytes() == b"of the next run"
    assert two[1].room.inventory.get("whole").state == "cold"
    copy = Path(restore(two[1].room, "whole", str(two[1].root / "copy")))
    assert (copy / shard(1)).read_bytes() == (sharded / shard(1)).read_bytes()


def test_shards_of_another_step_are_not_taken_for_these(two: list[Node]) -> None:
    """The same path was saved again, and one node has not got that far."""
    record = two[1].room.inventory.records()[0]
    two[1].room.inventory.update(record, step=6)
    with pytest.raises(RefusedError, match="is of step 6 here, and of step 7 at its owner"):
        gather(two[0].room, "whole", serving(two[1]))


@pytest.mark.parametrize("where", [0, 1])
def test_a_shard_that_is_not_named_is_refused(where: int, tmp_path: Path, store: LocalStore, sharded: Path) -> None:
    """Left of a save by more ranks: whoever has it, nothing moves until it is removed."""
    put_on_disks(tmp_path, sharded, TWO)
    (tmp_path / f"n{where}" / NAME / shard(9)).write_bytes(b"left")
    nodes = [Node(node_room(tmp_path / f"n{i}", store, f"n{i}", owner=i == 0), tmp_path / f"n{i}") for i in (0, 1)]
    nodes[0].room.inventory.adopt(str(nodes[0].path), "whole", step=7)
    assert adopt_part(nodes[1].room, str(nodes[1].path), step=7)
    found_by = r"1 shards are there that its \.metadata does not name, such as __9_0\.distcp of node n0"
    if where == 1:  # before anything is sent
        found_by = r"node n1 sends no shards, so it stays: .* does not name __9_0\.distcp"
    with pytest.raises(RefusedError, match=found_by):
        gather(nodes[0].room, "whole", serving(nodes[1]))
    serve(nodes[1].room)
    assert [(node.state, len(node.bytes())) for node in nodes] == [("hot", 2 + (where == 0)), ("hot", 2 + where)]
    assert store.listing("") == []


@pytest.mark.parametrize("same", [True, False])
def test_a_shard_on_two_nodes_is_kept_once_if_it_is_the_same(
    same: bool, tmp_path: Path, store: LocalStore, sharded: Path
) -> None:
    """Each node sends under its own name, so that neither overwrites the other's."""
    put_on_disks(tmp_path, sharded, THREE)
    double = tmp_path / "n2" / NAME / shard(1)
    double.write_bytes((sharded / shard(1)).read_bytes() if same else b"another one")
    nodes = [Node(node_room(tmp_path / f"n{i}", store, f"n{i}", owner=i == 0), tmp_path / f"n{i}") for i in range(3)]
    nodes[0].room.inventory.adopt(str(nodes[0].path), "whole", step=7)
    for node in nodes[1:]:
        assert adopt_part(node.room, str(node.path), step=7)
    if not same:
        with pytest.raises(RefusedError, match=r"__1_0\.distcp of node n2 is another one than that of n1"):
            gather(nodes[0].room, "whole", serving(*nodes[1:]))
        for node in nodes[1:]:
            serve(node.room)
        assert [node.state for node in nodes] == ["hot"] * 3
        assert store.listing("") == []
        return
    gather(nodes[0].room, "whole", serving(*nodes[1:]))
    for node in nodes[1:]:
        serve(node.room)
    assert [node.state for node in nodes] == ["both"] * 3
    objects = [key.rpartition("/")[2] for key in store.listing("")]
    assert sorted(objects) == sorted([".metadata", "MANIFEST.json", *map(shard, range(3))])
    assert find_orphans(nodes[0].room).keys == ()


def test_the_question_of_another_owner_is_left_alone(two: list[Node], sharded: Path) -> None:
    """Two processes take themselves for the owner: the second gives up and takes nothing from the first."""
    asked = Gathering(
        id="whole", attempt="first", path="/elsewhere", below=NAME, step=7, shards=(shard(0), shard(1), shard(2))
    )
    key = gathering_key(two[0].room, "whole")
    two[0].room.cold.create(key, asked.encode())
    with pytest.raises(RefusedError, match="is being gathered by somebody else"):
        gather(two[0].room, "whole", serving(two[1]))
    assert two[0].room.cold.listing("") == [key]
    two[0].room.cold.delete(key)
    two[0].room.cold.create(key, b"torn")
    with pytest.raises(CheckpointError, match="a gathering cannot be read"):
        gather(two[0].room, "whole", serving(two[1]))
    assert_hot(two, sharded)


@pytest.mark.parametrize("cold", [False, True])
def test_what_lies_on_several_disks_keeps_its_optimizer_state(
    cold: bool, tmp_path: Path, store: LocalStore, sharded: Path
) -> None:
    """Nothing is made of a part of it, and all of it stays where it is."""
    put_on_disks(tmp_path, sharded, TWO)
    (tmp_path / "n0" / NAME / "meta.pt").write_bytes(b"meta")
    nodes = [Node(node_room(tmp_path / f"n{i}", store, f"n{i}", owner=i == 0), tmp_path / f"n{i}") for i in (0, 1)]
    for number, node in enumerate(nodes):
        take_up(node, number)
    if cold:
        gather(nodes[0].room, "whole", serving(nodes[1]))
    before = store.listing("")
    with pytest.raises(WholeError, match="its shards lie on the disks of several nodes"):
        strip(nodes[0].room, "whole")
    assert store.listing("") == before
    assert {r.id for r in nodes[0].room.inventory.records()} == {"whole", "newer"}
    assert len(nodes[0].bytes()) == 3


def test_a_node_takes_up_no_copy_that_it_only_finds(two: list[Node]) -> None:
    """After the loss of its disk what is in the store is its owner's."""
    gather(two[0].room, "whole", serving(two[1]))
    empty = two[1].root.parent / "new"
    assert rebuild(node_room(empty / "node", two[0].room.cold, "n8", owner=False)) == []
    (whole,) = rebuild(node_room(empty / "owner", two[0].room.cold, "n9", owner=True))
    assert (whole.id, whole.part, len(whole.fingerprint)) == ("whole", False, 4)
    restore(node_room(empty / "owner", two[0].room.cold, "n9", owner=True), "whole")
    assert len(list((empty / "owner" / NAME).iterdir())) == 4


def test_a_word_to_delete_is_not_believed_while_the_copy_is_there(two: list[Node]) -> None:
    """Only what its owner has deleted first is gone."""
    gather(two[0].room, "whole", serving(two[1]))
    serve(two[1].room)
    two[0].room.cold.create("run-7/GATHER/to/n1/whole.expire", b"{}")
    serve(two[1].room)
    assert (two[1].state, two[1].path.exists()) == ("both", True)
    expire(two[0].room, "whole")
    serve(two[1].room)
    assert not two[1].path.exists()


def test_the_owner_decides_for_all_what_stays(two: list[Node], sharded: Path) -> None:
    """Pinned at the owner: no node lets go. Pinned at a node: that one keeps its own."""
    gather(two[0].room, "whole", serving(two[1]))
    two[0].room.inventory.pin("whole")
    with pytest.raises(RefusedError, match="it is pinned"):
        release(two[0].room, "whole")
    serve(two[1].room)
    assert [node.state for node in two] == ["both", "both"]
    two[0].room.inventory.pin("whole", pinned=False)
    two[1].room.inventory.pin("whole")
    release(two[0].room, "whole")
    assert serve(two[1].room).problems == ["checkpoint whole (step 7) stays: it is pinned."]
    assert two[1].path.exists()
    two[1].room.inventory.pin("whole", pinned=False)
    serve(two[1].room)
    assert not two[1].path.exists()


def test_a_node_lets_go_only_of_what_it_finds_in_the_manifest(two: list[Node], sharded: Path) -> None:
    """An object that was damaged since: the word alone is not enough."""
    gather(two[0].room, "whole", serving(two[1]))
    serve(two[1].room)
    release(two[0].room, "whole")
    key = next(k for k in two[0].room.cold.listing("") if k.endswith(shard(2)))
    two[0].room.cold.put(key, [b"short"], 5)
    assert "has 5 bytes instead of" in serve(two[1].room).problems[0]
    assert two[1].path.exists()
    two[0].room.cold.put(key, [(sharded / shard(2)).read_bytes()], (sharded / shard(2)).stat().st_size)
    serve(two[1].room)
    assert (two[1].path.exists(), two[1].state) == (False, "cold")


def test_what_is_wanted_back_is_not_let_go_by_an_older_word(two: list[Node]) -> None:
    """A training goes on from it before a node has heard that it was to go."""
    gather(two[0].room, "whole", serving(two[1]))
    serve(two[1].room)
    release(two[0].room, "whole")
    restore(two[1].room, "whole")
    assert serve(two[1].room).done == []
    assert two[1].state == "both"
    restore(two[0].room, "whole")
    release(two[0].room, "whole")
    restore(two[0].room, "whole")
    assert serve(two[1].room).done == []
    assert [node.state for node in two] == ["both", "both"]


def test_a_copy_made_without_a_node_leaves_that_one_as_it_was(two: list[Node], sharded: Path) -> None:
    """All shards were there without it, and what else it has is in no manifest: its own stays, whatever is said."""
    root = two[0].root.parent / "n9"
    broken = Hooked(str(root.parent / "cold"))
    late = Node(node_room(root, broken, "n9", owner=False), root)
    late.path.mkdir()
    (late.path / shard(2)).write_bytes((sharded / shard(2)).read_bytes())
    (late.path / "random_state.pt").write_bytes(b"of this rank alone")
    assert adopt_part(late.room, str(late.path), step=7)

    def away(_: str) -> None:
        raise StoreError("away", "the store is away")

    def look_round(_: float) -> None:
        broken.before["create"] = away
        with pytest.raises(StoreError, match="is away"):
            serve(late.room)
        serve(two[1].room)

    gather(two[0].room, "whole", Patience(sleep=look_round))
    assert serve(late.room).waiting == []
    assert (late.state, sorted(late.bytes())) == ("hot", [shard(2), "random_state.pt"])
    assert "without what this node has" in late.room.inventory.get("whole").problem
    assert find_orphans(two[0].room).keys == ()
    assert [key for key in two[0].room.cold.listing("") if "n9" in key] == []


# -- what is read from the store is not trusted ----------------------------------------------------------------------


def entry(**changes: Any) -> FileEntry:
    given: dict[str, Any] = {"path": "a", "size": 0, "sha256": "0" * 64, "part_bytes": 1, "part_md5s": ("x",)}
    return FileEntry(**{**given, "mtime_ns": 0, **changes})


def manifest_with(*files: FileEntry, **changes: Any) -> Manifest:
    given: dict[str, Any] = {"id": "a", "run": "r", "attempt": "b", "name": "n", "kind": "folder", "path": "p"}
    return Manifest(files=files, **{**given, **changes})


def test_a_manifest_of_one_disk_is_as_it_was() -> None:
    """It says nothing of nodes, and one that does not is read as one of one disk."""
    alone = manifest_with(entry())
    assert b"node" not in alone.encode()
    assert Manifest.decode(alone.encode()) == alone
    gathered = manifest_with(entry(node="n1"))
    assert Manifest.decode(gathered.encode()) == gathered
    assert (alone.nodes, gathered.nodes, gathered.files[0].place) == ((), ("n1",), "n1/a")


@pytest.mark.parametrize("node", ["..", "a/b", "", 7])
def test_a_node_of_a_manifest_leads_nowhere_else(node: Any) -> None:
    with pytest.raises(CheckpointError):
        Manifest.decode(manifest_with(entry(node=node)).encode())


@pytest.mark.parametrize(
    "changes", [{"id": "other"}, {"attempt": "other"}, {"files": (entry(),)}, {"files": (entry(node="n2"),)}]
)
def test_a_part_is_of_one_node_and_one_upload(changes: dict[str, Any]) -> None:
    part = Part(node="n1", manifest=manifest_with(entry(node="n1")))
    assert Part.decode(part.encode(), "a", "b", "n1") == part
    assert part.manifest is not None
    with pytest.raises(MismatchError, match="another one's"):
        Part.decode(replace(part, manifest=replace(part.manifest, **changes)).encode(), "a", "b", "n1")


@pytest.mark.parametrize("bad", [b"", b"[]", b"{}", b'{"schema": 9}', b'{"schema": 1}', b'{"schema":1,"id":1}'])
def test_what_cannot_be_read_is_told_and_touches_nothing(bad: bytes, two: list[Node], sharded: Path) -> None:
    """By a node that is asked with it; a damaged part makes the owner give up."""
    for read in (Gathering.decode, lambda data: Part.decode(data, "a", "b", "n1")):
        with pytest.raises(CheckpointError):
            read(bad)
    two[0].room.cold.create(gathering_key(two[0].room, "odd"), bad)
    assert len(serve(two[1].room).problems) == 1
    two[0].room.cold.delete(gathering_key(two[0].room, "odd"))

    def answer(_: float) -> None:
        attempt = two[0].room.inventory.get("whole").attempt or ""
        two[0].room.cold.create(part_key(two[0].room, "whole", attempt, "n7"), bad)

    with pytest.raises(CheckpointError, match="part"):
        gather(two[0].room, "whole", Patience(sleep=answer))
    assert_hot(two, sharded)


def test_shards_are_found_by_the_same_path_or_the_same_place_below(two: list[Node]) -> None:
    """Nodes have one path for it as a rule; a disk that is mounted elsewhere is known by where each trains."""
    two[1].room.inventory.update(two[1].room.inventory.records()[0], path=str(two[0].path))
    gathered = Gathering(id="a", attempt="b", path=str(two[0].path), below="", step=7, shards=())
    for asked in (gathered, replace(gathered, path="/elsewhere", below="none"), replace(gathered, path="/elsewhere")):
        two[1].room.cold.create(gathering_key(two[1].room, "a"), asked.encode())
        told = serve(two[1].room)
        assert bool(told.problems) == (asked == gathered)
        two[1].room.cold.delete(gathering_key(two[1].room, "a"))
        serve(two[1].room)


def test_nobody_is_made_to_send_what_is_not_its_part_of_a_checkpoint(two: list[Node]) -> None:
    """A question names a path, and only what this node took up itself is ever sent."""
    (two[1].root / "secrets").mkdir()
    (two[1].root / "secrets" / "a.distcp").write_bytes(b"secret")
    for path in ("secrets", str(two[1].root / "secrets"), "/etc", "../n1/secrets"):
        asked = Gathering(id="odd", attempt="b", path=path, below=path, step=7, shards=("a.distcp",))
        two[1].room.cold.create(gathering_key(two[1].room, "odd"), asked.encode())
        assert serve(two[1].room).done == []
        assert two[1].room.cold.listing("run-7/odd") == []
        two[1].room.cold.delete(gathering_key(two[1].room, "odd"))


# -- the thread, the folder, real processes --------------------------------------------------------------------------


def test_a_thread_answers_until_the_session_is_over(two: list[Node]) -> None:
    """Threads on both sides; it goes on after a store that was away, and ends when there is nothing left to be done."""
    begin_session(two[0].room, "left by a process that was killed")
    begin_session(two[0].room, "s")
    told: list[str] = []
    thread = Serving(two[1].room, "s", told.append, poll_s=0.01)
    thread.start()
    assert not thread.finish(0.2)
    gather(two[0].room, "whole", Patience(poll_s=0.01))
    release(two[0].room, "whole")
    end_session(two[0].room, "s")
    assert thread.finish(20)
    assert (two[1].state, two[1].path.exists(), told) == ("cold", False, [])
    assert [key for key in two[0].room.cold.listing("") if "GATHER" in key] == []


def test_a_thread_tells_once_of_a_store_that_is_away(two: list[Node], tmp_path: Path) -> None:
    """And closes when it is told to."""
    two[1].room.store = LocalStore(str(tmp_path / "no" / "such" / "disk"))
    told: list[str] = []
    thread = Serving(two[1].room, "s", told.append, poll_s=0.01)
    thread.start()
    assert not thread.finish(0.3)
    thread.close()
    assert thread.finish(10)
    assert len(told) == 1
    with pytest.raises(ConfigError, match="poll_s=0"):
        Serving(two[1].room, "s", told.append, poll_s=0)
    with pytest.raises(ConfigError, match="seconds=0"):
        Patience(seconds=0)


def test_a_node_opens_its_list_under_the_name_of_the_owners_run(tmp_path: Path) -> None:
    """It keeps its name and that it only has parts, also for the commands; another run's copies are not mixed in."""
    cold = Cold(url=str(tmp_path / "cold"))
    owner = open_room(str(tmp_path / "a"), cold)
    part = open_room(str(tmp_path / "b"), cold, part_of=owner.run)
    assert (part.run, part.owner, owner.owner) == (owner.run, False, True)
    assert part.node != owner.node
    again = open_room(str(tmp_path / "b"), Cold())
    assert (again.run, again.owner, again.node) == (owner.run, False, part.node)
    assert open_room(str(tmp_path / "b"), cold, part_of="next").run == "next"
    record = part.inventory.adopt(__file__, "x")
    part.inventory.update(record, state="cold", cold_since_ns=1)
    with pytest.raises(ConfigError, match="1 checkpoints of the run next are listed on this node"):
        open_room(str(tmp_path / "b"), cold, part_of=owner.run)


def test_where_all_nodes_share_the_folder_a_nodes_list_lies_beside_its_shards(tmp_path: Path) -> None:
    """The owner's own list is in the folder that was trained in, and is not taken for the node's."""
    cold = Cold(url=str(tmp_path / "cold"))
    shared, local = str(tmp_path / "shared"), tmp_path / "scratch" / NAME
    owner = open_room(shared, cold)
    assert not has_parts(shared, owner.run)
    part = part_room(str(local), shared, cold, owner.run)
    assert part.inventory.folder == str(tmp_path / "scratch" / "costguard-checkpoints")
    assert (part.owner, open_room(shared, cold).owner) == (False, True)
    assert has_parts(str(tmp_path / "scratch"), owner.run)
    assert not has_parts(str(tmp_path / "scratch"), "another")
    own = part_room(str(tmp_path / "n1" / "saves" / NAME), str(tmp_path / "n1"), cold, owner.run)
    assert own.inventory.folder == str(tmp_path / "n1" / "costguard-checkpoints")


@contextlib.contextmanager
def process(kind: str, root: Path, cold: Path, slow_s: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", str(SCRIPT), kind, str(root), str(cold)]
    env = {**environment(), **({"SLOW_S": str(slow_s)} if slow_s else {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as child:
        try:
            yield child
        finally:
            child.kill()


def told_of(child: subprocess.Popen[str], word: str) -> None:
    """Read until a process tells of something."""
    assert child.stdout is not None
    assert child.stderr is not None
    for line in child.stdout:
        if line.startswith(word):
            return
    raise AssertionError(child.stderr.read())


def assert_whole(root: Path, sharded: Path) -> None:
    copy = Path(
        restore(node_room(root / "n0", LocalStore(str(root / "cold")), "n0", owner=True), "whole", f"{root}/copy")
    )
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == {p.name: p.read_bytes() for p in sharded.iterdir()}
    left = {p.name for p in (root / "cold").rglob("*") if p.is_file()}
    assert left == {"MANIFEST.json", *(p.name for p in sharded.iterdir())}
    assert not (root / "n0" / NAME).exists()
    assert not (root / "n1" / NAME).exists()


@pytest.mark.parametrize("killed", ["nobody", "node", "owner"])
def test_real_processes_one_of_them_killed_while_it_sends(killed: str, tmp_path: Path, sharded: Path) -> None:
    """SIGKILL in the middle of an upload; started again, both come to the same end."""
    put_on_disks(tmp_path, sharded, TWO)
    cold = tmp_path / "cold"
    roots = {"owner": tmp_path / "n0", "node": tmp_path / "n1"}
    other = "owner" if killed == "node" else "node"
    with process(other, roots[other], cold) as lives:
        if killed != "nobody":
            with process(killed, roots[killed], cold, slow_s=0.3) as dies:
                told_of(dies, "putting")
                dies.kill()
                assert dies.wait(10) == -9
        again = "node" if killed == "node" else "owner"
        with process(again, roots[again], cold) as second:
            told_of(lives, "cold")
            told_of(second, "cold")
            assert (lives.wait(10), second.wait(10)) == (0, 0)
    assert_whole(tmp_path, sharded)
