"""A small process whose children die while they write a journal; run by test_journal_crash.py, it knows no torch.

Usage: dying.py kills TEMPLATE FOLDER | restores URL FOLDER | pages FOLDER | audit FOLDER [MIRROR_URL]
Prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from costguard.clock import SystemClock, boot_id, process_start_ns
from costguard.ledger.activity import ActivityMeter, Counters
from costguard.ledger.allocation import read_allocation
from costguard.ledger.attempt import AttemptWriter, count
from costguard.ledger.devices import Paid
from costguard.ledger.files import Files, LocalFiles
from costguard.ledger.layout import Seat
from costguard.ledger.live import LiveAttempt
from costguard.ledger.mirror import Mirror
from costguard.ledger.opening import claim_attempt, claim_rank, identify, run_that_saved
from costguard.ledger.places import read_folder
from costguard.prices import PriceBook
from costguard.records import Action, Activity, Verdict
from costguard.testing import CrashFiles, ManualClock

WALL_NS = 1_700_000_000_000_000_000
BOOK = PriceBook.for_run("test", "2.49", None)
WAYS = [(how, only_synced) for only_synced in (False, True) for how in ("before", "after", "torn")]


def header(seat: Seat, **more: Any) -> dict[str, Any]:
    fields = {"run": "r", "attempt": seat.attempt, "rank": seat.rank}
    fields |= {"host": "host-a", "boot": "boot-a", "pid": 1, "pid_start": 1, "allocation": None, "job": "job-1"}
    fields |= {"idle_devices": 0, "paid_devices": 1, "tags": {"team": "a"}, "book": BOOK.to_json(), "gap": "held"}
    return fields | more


def begin(files: Files, root: str, clock: Any, mirror: str | None = None, **more: Any) -> tuple[Any, AttemptWriter]:
    """Claim the next attempt and open its journal, as `costguard.lightning.run` does."""
    claim = claim_attempt(files, root, "r")
    meter = ActivityMeter(clock.now_ns(), Activity.STARTUP, clock.now_ns)
    writer = AttemptWriter(
        files=files,
        folder=claim.folder,
        seat=claim.seat,
        segment=claim.segment,
        meter=meter,
        clock=clock,
        header=header(claim.seat, **more),
        mirror=Mirror(mirror, files) if mirror else None,
    )
    for rank in claim.earlier.ranks:
        if rank.status == "died":
            writer.adopt_page(rank.seat)
    return meter, writer


def work(meter: ActivityMeter, writer: AttemptWriter, clock: ManualClock) -> None:
    """Every kind of line, less than 30 s in all, so that nothing is written but what is written here."""
    clock.advance(1)
    writer.fact("model", parameters=7)
    for step in (1, 2, 3):
        meter.enter(Activity.TRAIN)
        clock.advance(1)
        meter.settle(clock.now_ns(), Activity.DATA_WAIT, count(meter.state.counters, step, 10, 1, 1))
        writer.tick()
    save = writer.mark()
    with meter.span(Activity.CHECKPOINT):
        clock.advance(0.5)
    writer.saved(save=save, path="/c", step=3, bytes=9, blocked_ns=5, mark=[9, 9])
    writer.resumed(writer.seat.attempt, save)
    meter.enter(Activity.TRAIN)
    clock.advance(1)
    meter.settle(clock.now_ns(), Activity.VALIDATION, count(meter.state.counters, 4, 10, 1, 1))
    writer.settle()
    writer.verdict(Verdict(kind="budget", action=Action.WARN, reason="half", message="Half is gone.", step=4))
    meter.enter(Activity.TEARDOWN)
    clock.advance(0.25)
    writer.close("ValueError: no", 1000)


def in_child(do: Callable[[], None]) -> int:
    """Do something in a process of its own; returns how it ended."""
    child = os.fork()
    if child == 0:
        do()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kills(template: str, folder: str) -> list[dict[str, Any]]:
    """One life in full for each kind of disk, then one for each operation of it and each way to die there."""
    secrets.token_hex = lambda size=None: "0" * 2 * (size or 32)  # all lives write the same bytes

    def life(at: int, how: str, only_synced: bool) -> dict[str, Any]:
        root = os.path.join(folder, f"{at}-{how}-{only_synced}")
        shutil.copytree(template, root)
        log = os.open(root + ".log", os.O_WRONLY | os.O_CREAT | os.O_EXCL)

        def do() -> None:
            clock = ManualClock(now_ns=5000 * 10**9, wall_ns=WALL_NS)
            files = CrashFiles(at, how, only_synced=only_synced, log=log)
            meter, writer = begin(files, root, clock)
            work(meter, writer, clock)

        code = in_child(do)
        os.close(log)
        with open(root + ".log") as file:
            operations = file.read().splitlines()
        return {"at": at, "how": how, "cut": only_synced, "root": root, "code": code, "operations": operations}

    whole = life(0, "before", False)
    return [
        whole,
        life(0, "before", True),
        *(life(at, *way) for at in range(1, len(whole["operations"]) + 1) for way in WAYS),
    ]


def restores(url: str, folder: str) -> list[dict[str, Any]]:
    """Bring a run back from its mirror on an empty disk, dying at every operation."""

    def life(at: int, how: str) -> dict[str, Any]:
        root = os.path.join(folder, f"{at}-{how}")
        code = in_child(lambda: Mirror(url, CrashFiles(at, how)).restore(os.path.join(root, "costguard", "r")))
        return {"at": at, "how": how, "root": root, "code": code}

    lives: list[dict[str, Any]] = []
    while not lives or lives[-1]["code"] == 9:
        lives += [life(len(lives) // 3 + 1, how) for how in ("before", "torn", "after")]
    return lives


def pages(folder: str) -> list[dict[str, Any]]:
    """Children that train as fast as they can and say each step when it is done, killed in the middle of it."""
    lives = []
    for number in range(12):
        root = os.path.join(folder, str(number))
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(told)
            clock = SystemClock()
            here = {"host": socket.gethostname(), "boot": boot_id()}
            meter, _ = begin(LocalFiles(), root, clock, pid=os.getpid(), pid_start=process_start_ns(), **here)
            step = 0
            while True:
                step += 1
                meter.enter(Activity.TRAIN)
                meter.settle(clock.now_ns(), Activity.DATA_WAIT, Counters(step, step, step * 10, None, step))
                os.write(tell, struct.pack("<I", step))
        os.close(tell)
        heard = b""
        enough = random.Random(number).randrange(1, 3000) * 4
        while len(heard) < enough:
            heard += os.read(told, 4096)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while data := os.read(told, 1 << 16):
            heard += data
        os.close(told)
        whole = len(heard) // 4 * 4
        lives.append({"root": root, "told": struct.unpack("<I", heard[whole - 4 : whole])[0], "child": child})
    return lives


class Door:
    """`LocalFiles`, and whether this thread is inside one of its verbs."""

    def __init__(self) -> None:
        self._files = LocalFiles()
        self._here = threading.local()
        self.calls: dict[str, int] = {}

    @property
    def inside(self) -> bool:
        return getattr(self._here, "depth", 0) > 0

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._files, name)

        def call(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            self._here.depth = getattr(self._here, "depth", 0) + 1
            try:
                return verb(*arguments)
            finally:
                self._here.depth -= 1

        return call


def audit(folder: str, mirror: str | None = None) -> dict[str, Any]:
    """All that the journal does in a life, with a hook that hears of every file operation of the interpreter."""
    door = Door()
    root = os.path.realpath(folder)
    below = os.path.join(root, "costguard")
    around: list[str] = []
    through: dict[str, int] = {}

    def path_of(argument: Any) -> str | None:
        if isinstance(argument, int) and not isinstance(argument, bool) and argument > 2:
            try:
                return os.readlink(f"/proc/self/fd/{argument}")
            except OSError:
                return None
        if isinstance(argument, (str, bytes, os.PathLike)):
            return os.path.abspath(os.fsdecode(argument))
        return None

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("compile", "import", "exec", "os.readlink"):
            return
        numbers = event in ("mmap.__new__", "os.truncate", "os.listdir", "os.chmod", "os.utime", "fcntl.fcntl")
        named = arguments if event != "mmap.__new__" else arguments[:1]
        paths = [path_of(a) for a in named if numbers or not isinstance(a, int)]
        if any(p is not None and (p == below or p.startswith(below + "/")) for p in paths):
            if door.inside:
                through[event] = through.get(event, 0) + 1
            else:
                around.append(f"{event} {arguments!r}")

    sys.addaudithook(hook)
    allocation = read_allocation({})
    clock = ManualClock(now_ns=5000 * 10**9, wall_ns=WALL_NS)
    for _ in range(2):
        identify(None, {}, allocation, root, door)
        meter, writer = begin(door, root, clock, mirror)
        other = claim_rank(door, root, "r", Seat(writer.seat.attempt, 1))
        live = LiveAttempt(
            read_folder(writer.folder, door), BOOK, Paid(2, 0), writer.folder, writer.seat, 2, door, wall_offset_ns=0
        )
        lines = door.calls["sync"]
        clock.advance(31)
        for _ in range(500):  # the writer's own thread has a line to write
            if door.calls["sync"] > lines:
                break
            time.sleep(0.01)
        live.figures(meter.state, clock.now_ns())
        work(meter, writer, clock)
        run_that_saved(root, "/c", [9, 9], door)
        other.segment.close()
    done = list(around)
    with open(os.path.join(below, "control"), "w"):
        """The hook must hear of this one."""
    return {"around": done, "control": len(around) - len(done), "through": through, "calls": door.calls}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
    assert "torch" not in sys.modules
