"""Keeps a copy of the journal on any fsspec store, since a spot node's disk dies with the node."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import fsspec

from costguard.errors import RunNotFoundError, warn
from costguard.ledger.account import RunAccount
from costguard.ledger.files import Files
from costguard.ledger.fold import SeatFiles, fold
from costguard.ledger.layout import seats_in
from costguard.ledger.places import check_readable, only_run

PART_BYTES = 1 << 20
"""Object stores cannot append, so a segment is mirrored in parts and only its last part is sent again."""


class Mirror:
    """One run's journal on a store.

    Args:
        url: Folder of the run on the store.

    Raises:
        ValueError: If fsspec knows no such protocol.
        ImportError: If the protocol's package is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = fsspec.core.url_to_fs(self.url)
        self._sent: dict[str, int] = {}

    def push(self, path: str) -> None:
        """Send what a local segment has gained since the last time.

        Args:
            path: The local segment.
        """
        name = os.path.basename(path)
        done = self._sent.get(name, 0)
        first = done // PART_BYTES * PART_BYTES
        with open(path, "rb") as file:
            file.seek(first)
            data = file.read()
        if first + len(data) == done:
            return
        self._fs.makedirs(self._root, exist_ok=True)
        for at in range(0, len(data), PART_BYTES):
            part = f"{self._root}/{name}.p{(first + at) // PART_BYTES:06d}"
            self._fs.pipe_file(part, data[at : at + PART_BYTES])
        self._sent[name] = first + len(data)

    def seat_files(self) -> list[SeatFiles]:
        """All mirrored segments of the run; empty if there are none."""
        parts: dict[str, list[str]] = defaultdict(list)
        self._fs.invalidate_cache()
        try:
            listed = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        for key in sorted(listed):
            segment, dot, part = key.rsplit("/", 1)[-1].rpartition(".p")
            if dot and part.isdigit():
                parts[segment].append(key)
        return [
            SeatFiles(seat, b"".join(self._fs.cat_file(key) for key in parts[seat.segment]))
            for seat in seats_in(list(parts))
        ]

    def restore(self, folder: str, files: Files) -> None:
        """Bring back segments that the local folder lacks, so that the next attempt knows what was spent."""
        here = set(files.listing(folder))
        for each in self.seat_files():
            if each.seat.segment not in here and each.segment:
                files.make_folder(folder)
                handle = files.create(os.path.join(folder, each.seat.segment))
                files.write(handle, each.segment)
                files.sync(handle)
                files.close(handle)


class MirrorThread:
    """Pushes one segment about every minute, and never holds up anybody.

    Args:
        mirror: Where to.
        path: The local segment.
        before: Called before each push, to write a fresh line.
        every_s: Seconds between pushes.
    """

    def __init__(self, mirror: Mirror, path: str, before: Callable[[], None], every_s: float = 60.0) -> None:
        self._mirror = mirror
        self._path = path
        self._before = before
        self._every_s = every_s
        self._stop = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="costguard-mirror", daemon=True)
        self._thread.start()

    def close(self, patience_s: float = 10.0) -> None:
        """Push once more and end; give up waiting after `patience_s`."""
        self._stop.set()
        self._thread.join(patience_s)
        if self._thread.is_alive():
            warn(f"the mirror {self._mirror.url} did not take the journal in {patience_s:.0f} s; it is complete here.")

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._stop.wait(self._every_s)
            if not ended:
                self._before()
            try:
                self._mirror.push(self._path)
            except Exception as error:  # a store may raise anything; the local journal has it all
                if not self._warned:
                    self._warned = True
                    warn(
                        f"the mirror {self._mirror.url} is away ({_short(error)}); the journal here goes on, retrying."
                    )


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """Do something that a dead network may hang, or give up.

    Args:
        seconds: How long to wait.
        work: What to do, on another thread.

    Raises:
        TimeoutError: If it takes longer.
        Exception: Whatever `work` raised.
    """
    outcome: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=run, name="costguard-mirror-read", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    if error:
        raise error[0]
    return outcome[0]


def load_mirrored(url: str) -> tuple[str, RunAccount]:
    """Account for the one run at or below a URL.

    Raises:
        RunNotFoundError: If the store is away, or holds no run or more than one there.
    """
    try:
        fs, root = fsspec.core.url_to_fs(url)
        keys = fs.find(root)
    except Exception as error:  # a store may raise anything
        raise RunNotFoundError(f"{url!r} cannot be read: {_short(error)}.") from error
    folders = sorted({key.rsplit("/", 1)[0] for key in keys if ".jsonl.p" in key.rsplit("/", 1)[-1]})
    place = fs.unstrip_protocol(only_run(url, folders))
    account = fold(place.rstrip("/").rsplit("/", 1)[-1], Mirror(place).seat_files())
    check_readable(place, account)
    return place, account


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"[:200]
