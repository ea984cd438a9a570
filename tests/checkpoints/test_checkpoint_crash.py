"""Deaths at every storage operation of a demotion, a restore, an expiry and a collection: nothing is ever lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from crashing import Truth, World, make, search

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.recovery import collect
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.stripping import strip, stripped_id

KINDS = {
    "file": ["file"],
    "folder": ["folder"],
    "two": ["file", "folder"],
    "three": ["file", "folder", "linked"],
}
SIZES = [
    "file",
    pytest.param("folder", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    pytest.param("two", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    pytest.param("three", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
]


def ids(truth: Truth) -> list[str]:
    """All but the newest, which never goes."""
    return list(truth.content)[:-1]


def each(truth: Truth, *moves: Callable[[Room, str], object]) -> Callable[[Room], None]:
    def do(room: Room) -> None:
        known = {r.id for r in room.inventory.records()}
        for id in ids(truth):
            for move in moves:
                if id in known:
                    move(room, id)

    return do


def tell(capsys: pytest.CaptureFixture[str], what: str, found: object) -> None:
    with capsys.disabled():
        print(f"\n  {what}: {found}")


@pytest.mark.parametrize("size", SIZES)
def test_no_death_in_a_demotion_loses_a_checkpoint(size: str, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Upload, commit, release: after any death there is a whole copy, and going on leads to the same end."""
    truth = make(disk / "world", KINDS[size])
    found = search(disk / "world", disk / "lives", truth, each(truth, demote, release))
    tell(capsys, f"demotion of {size}", found)
    assert found.states > 0
    assert found.deaths > 2 * found.operations > 40


@pytest.mark.parametrize("size", SIZES)
def test_no_death_in_a_restore_loses_a_checkpoint(size: str, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was fetched is kept or fetched again, and nothing partial is ever under the name."""
    truth = make(disk / "world", KINDS[size])
    each(truth, demote, release)(World(disk / "world").room)
    found = search(disk / "world", disk / "lives", truth, each(truth, restore))
    tell(capsys, f"restore of {size}", found)
    assert found.states > 0
    assert found.deaths > 2 * found.operations > 40


@pytest.mark.parametrize("size", SIZES)
def test_no_death_in_an_expiry_leaves_half_a_checkpoint(
    size: str, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once begun, an expiry is brought to its end, and what it has begun with is never restored."""
    truth = make(disk / "world", KINDS[size])
    room = World(disk / "world").room
    for number, id in enumerate(ids(truth)):
        demote(room, id)
        if number % 2:
            release(room, id)
    found = search(disk / "world", disk / "lives", truth, each(truth, expire), may_expire=True)
    tell(capsys, f"expiry of {size}", found)
    assert found.states > 0
    assert found.deaths > 2 * found.operations > 40


STRIPPED = [
    ("file", "hot"),
    pytest.param("file", "both", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    pytest.param("file", "cold", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    pytest.param("sharded", "hot", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    pytest.param("sharded", "cold", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
]


@pytest.mark.parametrize(("kind", "tier"), STRIPPED)
def test_no_death_in_a_stripping_loses_a_checkpoint(
    kind: str, tier: str, disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every instant the full one is there, or the committed one without optimizer state; never half of both."""
    monkeypatch.setattr(World, "part_bytes", 2 << 10)
    truth = make(disk / "world", ["lightning" if kind == "file" else kind])
    if tier != "hot":
        each(truth, demote, *[release] * (tier == "cold"))(World(disk / "world").room)
    found = search(disk / "world", disk / "lives", truth, each(truth, strip))
    tell(capsys, f"stripping of a {tier} {kind}", found)
    assert found.states > 0
    assert found.deaths > 2 * found.operations > 40
    (left,) = [r for r in World(disk / "world").room.inventory.records() if r.state == "cold"]
    assert (left.id, left.stripped_from) == (stripped_id("id0"), "id0")
    assert not (disk / "world" / "cold" / "r" / "id0").exists()


def littered(root: Path, kinds: list[str]) -> Truth:
    """A world with an orphan of each sort, and things that only look like one."""
    truth = make(root, kinds)
    each(truth, demote, release)(World(root).room)
    cold = root / "cold" / "r"
    for name in ("id0/data/dead/a", "id0/data/dead/b", "lost/data/dead/a", "lost/data/dead/c.upload-0a0b0c0d0a0b0c0d"):
        (cold / name).parent.mkdir(parents=True, exist_ok=True)
        (cold / name).write_bytes(b"orphan")
    shutil.copytree(cold / "id0", cold / "half")
    shutil.rmtree(cold / "half" / "data" / "dead")
    (cold / "half" / "TOMBSTONE.json").write_text("{}")
    (cold / "id0" / "README.txt").write_text("not ours")
    shutil.copytree(cold / "id0", cold / "other-machine")
    manifest = json.loads((cold / "id0" / "MANIFEST.json").read_text())
    (cold / "other-machine" / "MANIFEST.json").write_text(json.dumps(manifest | {"id": "other-machine"}))
    (root / "hot" / "inventory" / "id0.json.tmp").write_text("{")
    (root / "hot" / "foreign.ckpt").write_bytes(b"somebody's own")
    return truth


def swept(room: Room) -> None:
    collect(room)


@pytest.mark.parametrize("size", SIZES)
def test_no_death_in_a_collection_takes_what_is_needed(
    size: str, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Orphans go, committed copies, foreign files and what is not of our making stay."""
    truth = littered(disk / "world", KINDS[size])
    found = search(disk / "world", disk / "lives", truth, swept, orphans=True)
    tell(capsys, f"collection beside {size}", found)
    assert found.states > 0
    assert found.deaths > 40
    told = collect(World(disk / "world").room)
    assert len(told.problems) == 1
    left = {str(p.relative_to(disk / "world")) for p in (disk / "world").rglob("*") if p.is_file()}
    assert {"cold/r/id0/README.txt", "hot/foreign.ckpt", "cold/r/other-machine/MANIFEST.json"} <= left
    assert not any("dead" in name or "half" in name or name.endswith(".tmp") for name in left)


AUDIT = """
import os, sys, threading
from pathlib import Path
from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.recovery import collect, recover
from costguard.checkpoints.restore import restore
from costguard.checkpoints.stripping import strip
from crashing import CrashStore, World, make

root = Path(os.path.realpath(sys.argv[1]))
truth = make(root, ["file", "folder", "linked"])
inside, around, through = [0], [], [0]
verbs = CrashStore.__getattr__

def counted(self, name):
    call = verbs(self, name)
    def door(*arguments):
        inside[0] += 1
        try:
            return call(*arguments)
        finally:
            inside[0] -= 1
    return door

CrashStore.__getattr__ = counted

def named(argument):
    if isinstance(argument, int) and not isinstance(argument, bool) and argument > 2:
        try:
            return os.readlink(f"/proc/self/fd/{argument}")
        except OSError:
            return ""
    return os.path.abspath(os.fsdecode(argument)) if isinstance(argument, (str, bytes, os.PathLike)) else ""

def hook(event, arguments):
    if event in ("compile", "import", "exec", "os.readlink", "object.__getattr__"):
        return
    if any(named(a).startswith(str(root)) for a in arguments):
        if inside[0]:
            through[0] += 1
        else:
            around.append(f"{event} {arguments!r}")

World.unused = lambda self, names=iter(range(100)): f"att{next(names)}"
sys.addaudithook(hook)
room = World(root).room
for id in ("id0", "id1", "id2"):
    demote(room, id)
    release(room, id)
    recover(room)
    restore(room, id)
    release(room, id)
expire(room, "id0")
collect(room)
assert "torch" not in sys.modules and "fsspec" not in sys.modules
assert around == [], around
World.part_bytes = 1 << 10
make(root / "others", ["lightning"])
around.clear()
others = World(root / "others").room
assert strip(others, "id0").stripped
collect(others)
done = list(around)
open(root / "control", "w").close()
assert len(around) == len(done) + 1, "the hook must hear of this one"
assert done == [], done
print(through[0])
"""


def test_no_file_operation_goes_around_the_store(tmp_path: Path) -> None:
    """An audit hook of the interpreter hears of nothing in either tier outside the verbs that deaths are counted at."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AUDIT, str(tmp_path / "world")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200
