"""Storage that dies at one operation, and the search through every state that deaths can leave."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from costguard.checkpoints.faults import StoreError
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.manifest import Level
from costguard.checkpoints.recovery import Orphans, find_orphans, recover
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore
from costguard.checkpoints.stripping import stripped_id
from costguard.checkpoints.weights import leave_optimizer_away

NOW_NS = 1_800_000_000 * 10**9
PART_BYTES = 4
MTIMES = {1_700_000_000_000_000_000 + i * 1_000_000_007 for i in range(40)}


class Died(BaseException):
    """The process is gone: nothing it does from here on reaches a disk."""


@dataclass
class Fate:
    """When and how a process dies, counted over both tiers."""

    at: int = 0
    how: str = "before"
    names: list[str] = field(default_factory=list)
    dead: bool = False
    locks: list[int] = field(default_factory=list)

    def die(self) -> None:
        self.dead = True
        raise Died(f"{self.how} {self.at} {self.names[-1]}")


def halves(parts: Iterable[bytes], fate: Fate) -> Iterator[bytes]:
    """The first half of the parts, then death in the middle of the upload."""
    sent = list(parts)
    yield from sent[: len(sent) // 2]
    fate.die()


class CrashStore:
    """One tier's verbs, each of them numbered, one of them the last.

    Ways to die: `before` it, `after` it, `torn` (half of the bytes are written; of an upload, its parts and never its
    end), `short` (half an object under its full name, as a careless store leaves it). Or nobody dies, and the cold
    store is `away` from there on.
    """

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    @property
    def url(self) -> str:
        return str(self._inner.url)

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            fate = self._fate
            if fate.dead:
                raise Died
            fate.names.append(name)
            if fate.how == "away":
                if fate.at and len(fate.names) >= fate.at and isinstance(self._inner, LocalStore):
                    raise StoreError("away", "the store is away")
                return self._seen(name, verb(*arguments), arguments)
            last = len(fate.names) == fate.at
            if last and fate.how != "after":
                if fate.how != "before":
                    self._tear(name, verb, arguments)
                fate.die()
            result = verb(*arguments)
            result = self._seen(name, result, arguments)
            if fate.dead:
                raise Died
            if last:
                fate.die()
            return result

        return call

    def _seen(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        if name == "lock":
            self._fate.locks.append(result)
        elif name == "unlock":
            self._fate.locks.remove(arguments[0])
        elif name == "scan":
            # Copies of a state have other inodes; that a changed inode is noticed has a test of its own.
            return tuple(replace(fact, inode=0) for fact in result)
        return result

    def _tear(self, name: str, verb: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if name in ("write", "append"):
            path, data = arguments
            verb(path, data[: len(data) // 2])
        elif name == "put" and self._fate.how == "torn":
            key, parts, size, *_ = arguments
            verb(key, halves(parts, self._fate), size)
        elif name == "put":
            key, parts, *_ = arguments
            data = b"".join(parts)
            data = data[: len(data) // 2]
            verb(key, [data], len(data))
        else:
            raise AssertionError(name)


def ways(name: str) -> list[str]:
    """How one can die at a verb."""
    return ["before", "after", *(["torn"] if name in ("write", "append", "put") else [])] + ["short"] * (name == "put")


class World:
    """Two tiers in a folder: what a process finds, does and leaves."""

    part_bytes = PART_BYTES

    def __init__(self, root: Path, fate: Fate | None = None) -> None:
        self.root = root
        self.fate = fate or Fate()
        files: Any = CrashStore(HotFiles(), self.fate)
        store: Any = CrashStore(LocalStore(str(root / "cold")), self.fate)
        inventory = Inventory(str(root / "hot" / "inventory"), files)
        self.room = Room(
            inventory=inventory,
            files=files,
            store=store,
            run="r",
            required=Level.ETAG,
            part_bytes=self.part_bytes,
            new_id=self.unused,
            now_ns=lambda: NOW_NS,
        )

    def unused(self) -> str:
        """The first name that is nowhere, so that lives can be compared."""
        seen = " ".join(str(p) for p in self.root.rglob("*"))
        seen += " ".join(p.read_text(errors="replace") for p in (self.root / "hot" / "inventory").glob("*.json"))
        return next(name for name in (f"att{n}" for n in range(10**6)) if name not in seen)

    def orphans(self) -> Orphans:
        """What nobody needs in the cold tier."""
        return find_orphans(self.room)

    def close(self) -> None:
        """What the system does when a process ends."""
        for handle in self.fate.locks:
            with contextlib.suppress(OSError):
                os.close(handle)

    def key(self) -> str:
        """The same for two states that differ in nothing that matters: names of attempts and times of half a file."""
        lines: list[str] = []
        for path in sorted(self.root.rglob("*")):
            name = re.sub(r"upload-[0-9a-f]{16}", "upload-X", str(path.relative_to(self.root)))
            if path.is_symlink():
                lines.append(f"{name} -> {os.readlink(path)}")
            elif path.is_dir():
                lines.append(f"{name}/")
            else:
                mtime = path.stat().st_mtime_ns
                data = path.read_bytes()
                content = data.hex() if b"att" not in data else data.decode("latin-1")
                lines.append(f"{name} {mtime if mtime in MTIMES else '-'} {content}")
        names: dict[str, str] = {}
        text = re.sub(r"att\d+", lambda m: names.setdefault(m[0], f"A{len(names)}"), "\n".join(lines))
        # A hash of a manifest differs with the name of the attempt in it.
        text = re.sub(r'"manifest_sha256": "[0-9a-f]{64}"', '"manifest_sha256": "X"', text)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Truth:
    """What every checkpoint is made of, by id."""

    content: dict[str, dict[str, bytes]] = field(default_factory=dict)
    path: dict[str, str] = field(default_factory=dict)
    stripped: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def assert_safe(self, root: Path, may_expire: bool) -> None:
        """Each checkpoint that is not being deleted has one complete copy somewhere, by its bytes.

        In place of one that may be stripped there may be a committed copy without its optimizer state.
        """
        for id, content in self.stripped.items():
            if (root / "cold" / "r" / stripped_id(id) / "MANIFEST.json").exists():
                assert self.cold(root, stripped_id(id)) in (content, None), id
        for id, content in self.content.items():
            record = root / "hot" / "inventory" / f"{id}.json"
            state = json.loads(record.read_text())["state"] if record.exists() else "gone"
            base = root / "cold" / "r" / id
            if (base / "MANIFEST.json").exists() and not (base / "TOMBSTONE.json").exists():
                # Whoever has the cold store alone restores what has a manifest, so that it must be whole.
                assert self.cold(root, id) == content, (id, state)
            if state in ("gone", "expiring"):
                without = id in self.stripped and self.cold(root, stripped_id(id)) == self.stripped[id]
                assert may_expire or without, (id, state)
                continue
            hot = root / "hot" / self.path[id]
            trash = hot.parent / ".costguard-trash" / id
            assert content in (tree(hot), tree(trash), self.cold(root, id)), (id, state, sorted(root.rglob("*")))

    def cold(self, root: Path, id: str) -> dict[str, bytes] | None:
        base = root / "cold" / "r" / id
        if not (base / "MANIFEST.json").exists() or (base / "TOMBSTONE.json").exists():
            return None
        manifest = json.loads((base / "MANIFEST.json").read_text())
        data = base / "data" / manifest["attempt"]
        found = {}
        for entry in manifest["files"]:
            path = data / (entry["path"] or manifest["name"])
            if not path.exists():
                return None
            found[entry["path"]] = path.read_bytes()
        return found


def tree(path: Path) -> dict[str, bytes] | None:
    """Bytes of all files of a checkpoint."""
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.is_dir():
        return None
    files = [p for p in path.rglob("*") if p.is_file() and not p.is_symlink()]
    return {str(p.relative_to(path)): p.read_bytes() for p in files}


KINDS: dict[str, dict[str, bytes]] = {
    "file": {"": b"0123456789"},
    "folder": {".metadata": b"meta", "__0_0.distcp": b"shard 0", "sub/__1_0.distcp": b"", "wörk er": b"12345678"},
    "linked": {"": b"linked to"},
}


def lightning_file(number: int) -> tuple[bytes, bytes]:
    """A file as Lightning writes it for a small model and Adam, and the same without its optimizer state."""
    import torch

    generator = torch.Generator().manual_seed(number)
    weight, first, second = (torch.randn(32, generator=generator) for _ in range(3))
    rest = {"state_dict": {"weight": weight}, "global_step": number, "pytorch-lightning_version": "2.6.6"}
    state = {"state": {0: {"exp_avg": first, "exp_avg_sq": second}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    made = []
    for saved in ({**rest, "optimizer_states": [state]}, rest):
        file = io.BytesIO()
        torch.save(saved, file)
        made.append(file.getvalue())
    return made[0], made[1]


def sharded_folder(path: Path, number: int = 0) -> Any:
    """Write a folder as Lightning's FSDP strategy does for a small model and Adam; its weight."""
    import torch
    from torch.distributed import checkpoint

    generator = torch.Generator().manual_seed(number)
    weight, first, second = (torch.randn(8, 8, generator=generator) for _ in range(3))
    state = {"state": {"weight": {"exp_avg": first, "exp_avg_sq": second}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save({"model": {"weight": weight}, "optimizer_0": state}, checkpoint_id=path, no_dist=True)
    torch.save({"global_step": number}, path / "meta.pt")
    return weight


def made_of(kind: str, number: int, scratch: Path) -> tuple[dict[str, bytes], dict[str, bytes] | None]:
    """Files of a checkpoint, and of the same without its optimizer state where it can be stripped."""
    if kind == "lightning":
        whole, without = lightning_file(number)
        return {"": whole}, {"": without}
    if kind == "sharded":
        sharded_folder(scratch / "whole", number)
        leave_optimizer_away(World(scratch).room, str(scratch / "whole"), str(scratch / "without"))
        content, stripped = tree(scratch / "whole"), tree(scratch / "without")
        shutil.rmtree(scratch)
        return content or {}, stripped
    return {p: data + bytes([number]) * bool(data) for p, data in KINDS[kind].items()}, None


def make(root: Path, kinds: list[str]) -> Truth:
    """Checkpoints of these kinds, adopted, and a newest one that stays."""
    truth = Truth()
    world = World(root)
    times = iter(sorted(MTIMES))
    for number, kind in enumerate([*kinds, "file"]):
        name = f"step={number}.ckpt"
        path = root / "hot" / name
        id = f"id{number}"
        content, stripped = made_of(kind, number, root.parent / "made")
        if stripped is not None:
            truth.stripped[id] = stripped
        for relative, data in content.items():
            file = path / relative if relative else path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            os.utime(file, ns=(0, next(times)))
        if kind == "folder":
            (path / "empty").mkdir()
            (path / "inner").symlink_to("__0_0.distcp")
        if kind == "linked":
            (root / "hot" / "last.ckpt").symlink_to(name)
        truth.content[id], truth.path[id] = content, name
        world.room.inventory.adopt(str(path), id, step=number, saved_ns=NOW_NS)
    world.close()
    return truth


@dataclass
class Search:
    """Every state that deaths can leave, and what was found on the way."""

    states: int = 0
    deaths: int = 0
    operations: int = 0


def search(
    start: Path,
    scratch: Path,
    truth: Truth,
    operation: Callable[[Any], None],
    *,
    may_expire: bool = False,
    orphans: bool = False,
    world: Callable[..., World] = World,
    recovery: Callable[[Any], Any] = recover,
    deep: bool = True,
) -> Search:
    """Do an operation, dying at each step in each way; recover from each state, dying at each step of that too.

    A state that was seen before is not searched again, so that any number of deaths in a row is covered.

    Args:
        start: The world before.
        scratch: Where lives are lived.
        truth: What must not be lost.
        operation: What is done.
        may_expire: Whether it deletes checkpoints.
        orphans: Whether the world begins with orphans, which only a collection clears away.
        world: Makes the world of a life, of a folder and a fate.
        recovery: What is done after a death.
        deep: Whether there are deaths in the recovery too.
    """
    found = Search()
    scratch.mkdir()
    numbers = iter(range(10**9))

    def life(state: Path, do: Callable[[Any], None], fate: Fate) -> World:
        # Records hold whole paths, so every life is lived at one place and then laid aside.
        if start.exists():
            shutil.rmtree(start)
        shutil.copytree(state, start, symlinks=True)
        lived = world(start, fate)
        try:
            do(lived.room)
        except Died:
            assert fate.dead
        else:
            assert not fate.dead, "a death was swallowed"
        lived.close()
        return lived

    def deaths(state: Path, do: Callable[[Any], None], names: list[str]) -> Iterator[World]:
        for at, name in enumerate(names, 1):
            for how in ways(name):
                died = life(state, do, Fate(at, how))
                assert died.fate.dead, (at, how, name)
                found.deaths += 1
                truth.assert_safe(start, may_expire)
                yield died

    first = scratch / "first"
    shutil.copytree(start, first, symlinks=True)
    whole = life(first, operation, Fate())
    truth.assert_safe(start, may_expire)
    found.operations = len(whole.fate.names)
    end = whole.key()
    seen: set[str] = set()

    def laid_aside() -> Path:
        aside = scratch / str(next(numbers))
        start.rename(aside)
        return aside

    def take(died: World, waiting: list[Path]) -> None:
        key = died.key()
        if key not in seen:
            seen.add(key)
            waiting.append(laid_aside())

    waiting: list[Path] = []
    for died in deaths(first, operation, whole.fate.names):
        take(died, waiting)
    while waiting:
        state = waiting.pop()
        recovered = life(state, recovery, Fate())
        truth.assert_safe(start, may_expire)
        once = recovered.key()
        assert_recovered(once, laid_aside(), life, operation, end, orphans, recovery)
        for died in deaths(state, recovery, recovered.fate.names) if deep else ():
            take(died, waiting)
        shutil.rmtree(state)
    found.states = len(seen)
    life(first, operation, Fate())
    return found


def assert_recovered(
    once: str,
    aside: Path,
    life: Callable[..., World],
    finish: Callable[[Any], None],
    end: str,
    littered: bool,
    recovery: Callable[[Any], Any],
) -> None:
    """Recovering again changes nothing, no orphan is left, and going on leads to where no death would have led."""
    told: list[Any] = []
    twice = life(aside, lambda room: told.append(recovery(room)), Fate())
    assert twice.key() == once, told
    assert told[0].problems == []
    orphans = twice.orphans()
    assert littered or (orphans.keys, orphans.uploads, orphans.tombstones) == ((), 0, ())
    last = life(aside, finish, Fate())
    assert last.key() == end, sorted(str(p) for p in last.root.rglob("*"))
    shutil.rmtree(aside)
