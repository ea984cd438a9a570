"""A run's life at random: saves, pins, plans, deaths, outages, other writers, clocks and hands that delete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashing import NOW_NS, Died, Fate, Truth, World, lightning_file, tree
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.recovery import collect, find_orphans, recover
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.stripping import strip, stripped_id
from costguard.keep import History, every, last
from costguard.policies.retention import Move, Retention, plan

MOVES: list[Callable[[Room, str], object]] = [demote, release, restore, expire]
FATES = st.builds(Fate, st.integers(1, 90), st.sampled_from(["before", "after", "away"])) | st.builds(Fate)
PICK = st.integers(0, 50)


class Life(RuleBasedStateMachine):
    """What has been saved, and what may be gone; everything else must be somewhere, whole."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="costguard-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        (self.root / "hot").mkdir()
        self.truth = Truth()
        self.may_be_gone: set[str] = set()
        self.pinned: set[str] = set()
        self.now_ns = NOW_NS
        self.count = 0

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "root", "/nonexistent"), ignore_errors=True)

    def doing(self, do: Callable[[Room], object], fate: Fate | None = None) -> None:
        """A process: it may die, be refused, or find its store away."""
        world = World(self.root, fate or Fate())
        world.room.now_ns = lambda: self.now_ns
        world.room.part_bytes = 1 << 10  # of a file, which has optimizer state, several
        try:
            do(world.room)
        except (Died, CheckpointError):
            pass
        finally:
            world.close()

    @property
    def room(self) -> Room:
        return World(self.root).room

    def pick(self, number: int) -> str:
        ids = list(self.truth.content)
        return ids[number % len(ids)]

    def hot_alone(self, id: str) -> bool:
        return self.truth.cold(self.root, id) != self.truth.content[id]

    @rule(name=st.integers(0, 4), shards=st.sampled_from([0, 0, 1, 3]))
    def save(self, name: int, shards: int) -> None:
        """A name that may have been used before, a file or as many shards as there are ranks."""
        path = self.root / "hot" / f"step={name}.ckpt"
        for id, known in self.truth.path.items():
            if known == path.name and self.hot_alone(id):
                self.may_be_gone.add(id)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        self.count += 1
        content = {f"__{rank}_0.distcp": b"%d of %d" % (rank, self.count) for rank in range(shards)}
        if shards:
            path.mkdir()
        id = f"id{self.count}"
        if not shards:
            content[""], without = lightning_file(self.count)
            self.truth.stripped[id] = {"": without}
        for file, data in content.items():
            (path / file if file else path).write_bytes(data)
        self.truth.content[id] = content
        self.truth.path[id] = path.name
        self.room.inventory.adopt(str(path), id, step=name, saved_ns=self.now_ns)

    @precondition(lambda self: self.truth.content)
    @rule(number=PICK, move=st.sampled_from(MOVES), fate=FATES)
    def move(self, number: int, move: Callable[[Room, str], object], fate: Fate) -> None:
        id = self.pick(number)
        if move is expire and id not in self.pinned:
            self.may_be_gone.add(id)
        self.doing(lambda room: move(room, id), fate)

    @precondition(lambda self: self.truth.stripped)
    @rule(number=PICK, fate=FATES)
    def strips(self, number: int, fate: Fate) -> None:
        ids = list(self.truth.stripped)
        self.doing(lambda room: strip(room, ids[number % len(ids)]), fate)

    @precondition(lambda self: self.truth.content)
    @rule(number=PICK, pinned=st.booleans())
    def pin(self, number: int, pinned: bool) -> None:
        id = self.pick(number)
        known = {r.id: r for r in self.room.inventory.records()}
        if id in known and known[id].state != "expiring":
            self.room.inventory.pin(id, pinned)
            (self.pinned.add if pinned else self.pinned.discard)(id)

    @rule(fate=FATES, count=st.integers(1, 2), days=st.integers(0, 3), strip_after_ns=st.sampled_from([None, 0]))
    def apply(self, fate: Fate, count: int, days: int, strip_after_ns: int | None) -> None:
        """Plan, and do what was planned."""
        history = History(checkpoints=[r.as_checkpoint() for r in self.room.inventory.records()])
        life_ns = days * 86_400 * 10**9
        keep = last(count) | every(steps=2)
        wanted = Retention(keep=keep, expire_after_ns=life_ns, strip_after_ns=strip_after_ns)
        planned = plan(history, wanted, self.now_ns)
        self.may_be_gone |= {d.id for d in planned if d.move is Move.EXPIRE}

        def do(room: Room) -> None:
            for decision in planned:
                if decision.move is Move.EXPIRE:
                    expire(room, decision.id)
                elif decision.move is Move.DEMOTE:
                    demote(room, decision.id)
                    release(room, decision.id)
                elif decision.move is Move.STRIP:
                    strip(room, decision.id)

        self.doing(do, fate)

    @precondition(lambda self: self.truth.content)
    @rule(number=PICK)
    def deleted_by_hand(self, number: int) -> None:
        id = self.pick(number)
        path = self.root / "hot" / self.truth.path[id]
        for other, content in self.truth.content.items():
            if self.truth.path[other] == path.name and tree(path) == content and self.hot_alone(other):
                self.may_be_gone.add(other)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    @precondition(lambda self: self.truth.content)
    @rule(number=PICK, fate=FATES)
    def another_writer(self, number: int, fate: Fate) -> None:
        """Another machine with a list of its own demotes the same checkpoint to the same store."""
        id = self.pick(number)
        known = {r.id: r for r in self.room.inventory.records()}
        if id not in known:
            return
        elsewhere = self.root / "elsewhere"

        def do(room: Room) -> None:
            room.inventory = Inventory(str(elsewhere), room.files)
            elsewhere.mkdir(exist_ok=True)
            room.inventory.save(known[id])
            if known[id].state == "hot":
                demote(room, id)

        self.doing(do, fate)
        shutil.rmtree(elsewhere, ignore_errors=True)

    @rule(days=st.integers(-5, 40))
    def clock_jumps(self, days: int) -> None:
        self.now_ns = max(1, self.now_ns + days * 86_400 * 10**9)

    @rule(fate=FATES, what=st.sampled_from([recover, collect]))
    def tidy(self, fate: Fate, what: Callable[[Room], Any]) -> None:
        self.doing(what, fate)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "truth"):
            return
        states = {r.id: r.state for r in self.room.inventory.records()}
        for id, content in self.truth.content.items():
            if not self.may_be_gone.isdisjoint((id, stripped_id(id))):
                continue
            hot = self.root / "hot" / self.truth.path[id]
            trash = hot.parent / ".costguard-trash" / id
            copies = (tree(hot), tree(trash), self.truth.cold(self.root, id))
            # A copy that only another machine's list knows is found by its manifest.
            state = states.get(id, "cold" if copies[2] == content else None)
            if state in (None, "expiring") and id in self.truth.stripped:
                assert self.truth.cold(self.root, stripped_id(id)) == self.truth.stripped[id], id
                assert states.get(stripped_id(id)) in ("stripping", "cold"), id
                continue
            assert content in copies, (id, state)
            assert state not in (None, "expiring"), id

    @invariant()
    def tidied_up_there_is_nothing_but_copies(self) -> None:
        if not hasattr(self, "truth") or self.count % 3:
            return
        copy = Path(tempfile.mkdtemp(prefix="costguard-", dir=self.root.parent))
        shutil.rmtree(copy)
        shutil.move(self.root, copy)
        shutil.copytree(copy, self.root, symlinks=True)
        try:
            told = collect(self.room)
            assert told.problems == []
            orphans = find_orphans(self.room)
            assert (orphans.keys, orphans.uploads, orphans.tombstones) == ((), 0, ())
        finally:
            shutil.rmtree(self.root)
            shutil.move(copy, self.root)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_longer_lives_lose_nothing_either() -> None:
    """The same with more and longer lives."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Life, settings=settings(max_examples=300, stateful_step_count=40, deadline=None))
