"""Keeps a copy of the journal on any fsspec store, since a spot node's disk dies with the node."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its own exit hook must be older than ours
import contextlib
import errno
import os
import re
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence

import fsspec

from costguard.deadline import within
from costguard.errors import RunNotFoundError, warn
from costguard.ledger.account import RunAccount
from costguard.ledger.control import is_control
from costguard.ledger.files import Files, LocalFiles
from costguard.ledger.fold import SeatFiles, fold
from costguard.ledger.layout import Seat, seats_in
from costguard.ledger.lines import decode
from costguard.ledger.places import FolderReader, check_readable, only_run

PATIENCE_S = 15.0
"""Longest that a start waits for the store of a mirror: chosen."""
PART_BYTES = 1 << 20
"""Object stores cannot append, so a segment is mirrored in parts and only its last part is sent again."""


class Mirror:
    """One run's journal on a store.

    Args:
        url: Folder of the run on the store.
        files: The local file layer.

    Raises:
        ValueError: If fsspec knows no such protocol.
        ImportError: If the protocol's package is not installed.
    """

    def __init__(self, url: str, files: Files | None = None) -> None:
        self.url = url.rstrip("/")
        self._files = files or LocalFiles()
        self._fs, self._root = fsspec.core.url_to_fs(self.url)
        self._sent: dict[str, int] = {}
        self._decided: set[str] = set()
        self._names: dict[str, str] = {}

    def push(self, path: str) -> None:
        """Send what a local segment has gained since the last time.

        Args:
            path: The local segment.
        """
        done = self._sent.get(path, 0)
        first = done // PART_BYTES * PART_BYTES
        data = self._files.read(path, first)
        if path not in self._names:
            line, newline, _ = data.partition(b"\n")
            if not newline:
                return
            # Two machines that did not see each other may both have claimed one seat: the first line tells them apart.
            self._names[path] = f"{os.path.basename(path)}.{zlib.crc32(line):08x}"
        if first + len(data) == done:
            return
        self._fs.makedirs(self._root, exist_ok=True)
        for at in range(0, len(data), PART_BYTES):
            part = f"{self._root}/{self._names[path]}.p{(first + at) // PART_BYTES:06d}"
            self._fs.pipe_file(part, data[at : at + PART_BYTES])
        self._sent[path] = first + len(data)

    def push_decisions(self, folder: str) -> None:
        """Send what was decided about the run and is not there yet.

        Args:
            folder: The run's local folder.
        """
        for name in filter(is_control, self._files.listing(folder)):
            if name not in self._decided:
                self._fs.makedirs(self._root, exist_ok=True)
                # What somebody has decided there meanwhile stays as it is.
                if not self._fs.exists(f"{self._root}/{name}"):
                    self._fs.pipe_file(f"{self._root}/{name}", self._files.read(os.path.join(folder, name)))
                self._decided.add(name)

    def _fetch_decisions(self, folder: str) -> None:
        here = set(self._files.listing(folder))
        try:
            listed = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return
        for key in sorted(listed):
            name = key.rsplit("/", 1)[-1]
            if is_control(name) and name not in here:
                self._put(folder, name, self._fs.cat_file(key))

    def seat_files(self) -> list[SeatFiles]:
        """All mirrored segments of the run; empty if there are none."""
        parts: dict[tuple[Seat, str], list[str]] = defaultdict(list)
        self._fs.invalidate_cache()
        try:
            listed = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        for key in sorted(listed):
            found = _part(key)
            if found:
                parts[found].append(key)
        return _told_apart([(seat, b"".join(map(self._fs.cat_file, keys))) for (seat, _), keys in parts.items()])

    def restore(self, folder: str) -> None:
        """Bring back lines that the local folder lacks, so that the next attempt knows what was spent.

        Nothing that is there is touched: a segment of which lines are missing gets a further piece beside it.

        Args:
            folder: The run's local folder.

        Raises:
            OSError: If the disk does not take it all; what it took counts.
        """
        self._fetch_decisions(folder)
        here = {each.seat: each.segment for each in FolderReader(folder, self._files).seat_files()}
        seats = {name: seat for seat, segment in here.items() if (name := _name(segment))}
        for each in self.seat_files():
            seat = seats.get(_name(each.segment), each.seat)
            own = here.get(seat)
            if own and _name(own) not in (_name(each.segment), ""):
                seat = Seat(max(s.attempt for s in here) + 1, seat.rank)
                own = here.get(seat)
            lacks = _numbers(each.segment) - _numbers(own or b"")
            if lacks:
                self._write(folder, seat, each.segment, beside=own is not None)
                here[seat] = each.segment

    def _write(self, folder: str, seat: Seat, data: bytes, *, beside: bool) -> None:
        pieces = len(seat.more(self._files.listing(folder)))
        self._put(folder, f"{seat.stem}.more-{pieces + 1:04d}.jsonl" if beside else seat.segment, data)

    def _put(self, folder: str, name: str, data: bytes) -> None:
        self._files.make_folder(folder)
        handle = self._files.create(os.path.join(folder, name))
        try:
            if self._files.write(handle, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            self._files.sync(handle)
        finally:
            self._files.close(handle)


_PART = re.compile(r"(.+)\.([0-9a-f]{8})\.p\d{6}")


def _part(key: str) -> tuple[Seat, str] | None:
    match = _PART.fullmatch(key.rsplit("/", 1)[-1])
    seats = seats_in([match[1]]) if match else []
    return (seats[0], match[2]) if match and seats else None


def _told_apart(found: list[tuple[Seat, bytes]]) -> list[SeatFiles]:
    """Give every segment a seat of its own: of two that claimed one, the later is counted after all others."""
    next_attempt = max((seat.attempt for seat, _ in found), default=0) + 1
    taken: dict[Seat, bytes] = {}
    for seat, segment in sorted(found, key=lambda item: (item[0], _wall_ns(item[1]))):
        if seat in taken:
            taken[Seat(next_attempt, seat.rank)] = segment
            next_attempt += 1
        else:
            taken[seat] = segment
    return [SeatFiles(seat, segment) for seat, segment in sorted(taken.items())]


def _first_line(segment: bytes) -> bytes:
    line, newline, _ = segment.partition(b"\n")
    return line if newline else b""


def _name(segment: bytes) -> str:
    """What tells a segment from any other: the id in its first line, empty where that cannot be read."""
    lines = decode(_first_line(segment) + b"\n", "").lines
    return str(lines[0].get("id", "")) if lines else ""


def _wall_ns(segment: bytes) -> int:
    lines = decode(_first_line(segment) + b"\n", "").lines
    return lines[0]["t"] + lines[0]["w"] if lines and "w" in lines[0] else 0


def _numbers(segment: bytes) -> set[int]:
    return {line["n"] for line in decode(segment, "").lines}


def open_mirror(url: str, files: Files, otherwise: str) -> Mirror | None:
    """Open a mirror, or warn and do without.

    Args:
        url: Folder of the run on the store.
        files: The local file layer.
        otherwise: What it means to do without, for the warning.
    """
    try:
        mirror: Mirror = within(PATIENCE_S, lambda: Mirror(url, files))
        return mirror
    except Exception as error:  # a store may raise anything
        warn(f"no mirror at {url} ({error}): {otherwise}.")
        return None


class MirrorThread:
    """Pushes one segment about every minute, and never holds up anybody for long.

    Args:
        mirror: Where to.
        path: The local segment.
        before: Called before each push, to write a fresh line.
        earlier: Segments of earlier attempts, sent once.
        every_s: Seconds between pushes.
    """

    def __init__(
        self,
        mirror: Mirror,
        path: str,
        before: Callable[[], None],
        earlier: Sequence[str] = (),
        every_s: float = 60.0,
    ) -> None:
        self._mirror = mirror
        self._paths = [*earlier, path]
        self._before = before
        self._every_s = every_s
        self._wake = threading.Event()
        self._pushed = threading.Event()
        self._ended = False
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="costguard-mirror", daemon=True)
        self._thread.start()
        # Stores need threads to find a host by its name, and Python takes those away before exit handlers run.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            with contextlib.suppress(RuntimeError):
                register(self.push_now)

    def push_now(self, patience_s: float = 10.0) -> None:
        """Push without waiting for the minute to be over; give up waiting after `patience_s`."""
        if self._ended:
            return
        self._pushed.clear()
        self._wake.set()
        self._pushed.wait(patience_s)

    def close(self, patience_s: float = 10.0) -> None:
        """Push once more and end; give up waiting after `patience_s`."""
        self._ended = True
        self._wake.set()
        self._thread.join(patience_s)
        if self._thread.is_alive():
            warn(f"the mirror {self._mirror.url} did not take the journal in {patience_s:.0f} s; it is complete here.")

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(self._every_s)
            self._wake.clear()
            if not self._ended:
                self._before()
            try:
                for path in self._paths:
                    self._mirror.push(path)
                self._mirror.push_decisions(os.path.dirname(self._paths[-1]))
                del self._paths[:-1]
            except Exception as error:  # a store may raise anything; the local journal has it all
                self._away(error)
            self._pushed.set()

    def _away(self, error: Exception) -> None:
        # At the interpreter's end threads are forbidden: what was sent before is all that can be sent.
        if self._warned or (self._ended and isinstance(error, RuntimeError)):
            return
        self._warned = True
        warn(f"the mirror {self._mirror.url} is away ({_short(error)}); the journal here goes on.")


def load_mirrored(url: str) -> tuple[str, RunAccount]:
    """Account for the one run at or below a URL.

    Raises:
        RunNotFoundError: If the store is away, or holds no run or more than one there.
    """
    try:
        fs, root = fsspec.core.url_to_fs(url)
        fs.ls(root, detail=False)  # says what is wrong, where find() finds nothing
        keys = fs.find(root)
    except FileNotFoundError:
        keys = []
    except ImportError as error:
        extra = "; pip install 'lightning-costguard[s3]'" if url.startswith("s3") else ""
        raise RunNotFoundError(f"{url!r} cannot be read: {_short(error)}{extra}.") from error
    except Exception as error:  # a store may raise anything
        raise RunNotFoundError(f"{url!r} cannot be read: {_short(error)}.") from error
    folders = {fs.unstrip_protocol(key.rsplit("/", 1)[0]) for key in keys if _part(key)}
    place = only_run(url, sorted(folders))
    account = fold(place.rstrip("/").rsplit("/", 1)[-1], Mirror(place).seat_files())
    check_readable(place, account)
    return place, account


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"[:200]
