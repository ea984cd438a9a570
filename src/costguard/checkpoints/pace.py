"""Keeps transfers below a bandwidth, and all of them on one thread."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from costguard.errors import config_error

NICE = 10
"""Priority of transfers, of 0 (training's) to 19."""


class Pace:
    """Spreads bytes over time; `moved_bytes` counts them, and an `observer` is told of each part's.

    Args:
        bytes_per_s: Most bytes a second on average, > 0; as fast as it goes if `None`.
        now_ns: Clock that never goes back.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        bytes_per_s: float | None = None,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise config_error(f"Pace(bytes_per_s={bytes_per_s!r}): expected bytes a second above 0, or None.")
        self._bytes_per_s = bytes_per_s
        self._now_ns = now_ns
        self._sleep = sleep
        self._free_ns = 0
        self.moved_bytes = 0
        self.observer: Callable[[int], None] | None = None

    def parts(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Pass parts on, no faster than that."""
        for part in parts:
            self.take(len(part))
            yield part

    def count(self, size: int) -> None:
        """Note bytes that somebody waits for, which no bandwidth holds up."""
        self.moved_bytes += size
        if self.observer is not None:
            self.observer(size)

    def take(self, size: int) -> None:
        """Wait until so many more bytes may be moved."""
        self.count(size)
        if self._bytes_per_s is None:
            return
        now = self._now_ns()
        if self._free_ns > now:
            self._sleep((self._free_ns - now) / 1e9)
        self._free_ns = max(self._free_ns, now) + round(size / self._bytes_per_s * 1e9)


class TransferThread:
    """Does jobs one after the other, beside training, and never in a forked child.

    Args:
        failed: Told of each job that raised, on this thread.
    """

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], object]] | None] = queue.SimpleQueue()
        self._open: set[str] = set()
        self._guard = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None

    def submit(self, name: str, job: Callable[[], object]) -> bool:
        """Add a job; says whether it was taken. One of a name at a time."""
        with self._guard:
            if self._ended or name in self._open:
                return False
            self._open.add(name)
            self._jobs.put((name, job))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="costguard-transfer", daemon=True)
                self._thread.start()
        return True

    @property
    def pending(self) -> int:
        """Jobs that are not done."""
        with self._guard:
            return len(self._open)

    def wait(self, patience_s: float) -> bool:
        """Wait until all is done; says whether it is."""
        with self._guard:
            return self._guard.wait_for(lambda: not self._open, patience_s)

    def close(self, patience_s: float) -> bool:
        """Take no more jobs, wait for those there are, drop what has not begun by then; says whether all was done."""
        done = self.wait(patience_s)
        with self._guard:
            self._ended = True
        self._jobs.put(None)
        return done

    def _run(self) -> None:
        _step_back()
        while True:
            job = self._jobs.get()
            if job is None:
                return
            name, work = job
            try:
                if not self._ended:
                    work()
            except Exception as error:  # the cold store may raise anything, and training goes on
                with contextlib.suppress(Exception):  # a warning may be an error here; nobody waits for a dead thread
                    self._failed(name, error)
            finally:
                with self._guard:
                    self._open.discard(name)
                    self._guard.notify_all()


def _step_back() -> None:
    """Let training have the cores first: hashing is what this thread does most, and it holds no lock meanwhile."""
    with contextlib.suppress(AttributeError, OSError):  # Linux alone knows priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
