"""Whose time this process's time is: one run's at a time, from the creation of the process to its end."""

from __future__ import annotations

import atexit
import gc
import multiprocessing.util
import os
import sys
import time
from typing import Protocol

from costguard.clock import first_billed_ns, in_notebook
from costguard.records import Activity
from costguard.units import NS_PER_S

EXIT_NS = NS_PER_S // 20
"""Estimated time from the last exit handler to the end of a small process."""
EXIT_PER_COLLECTION = 6
"""With torch loaded the interpreter takes about six times as long as one garbage collection, whatever the load of the
machine: 0.20 s and 1.1 to 1.3 s, 0.23 s and 1.5 s, 0.32 s and 2.0 s (Python 3.11, torch 2.13, 2 CPU cores, 2026-11)."""


class Owner(Protocol):
    """A run that owns the process's time."""

    def on_exit(self) -> None:
        """The interpreter begins to end."""
        ...

    def release(self, exit_ns: int) -> int:
        """End; `exit_ns` is the estimated time to come. Returns the instant of the end."""
        ...


class ProcessTime:
    """Hands the process's time from one run to the next, without a hole and without an overlap."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._owner: Owner | None = None
        self._free_from_ns: int | None = None
        self._early_handler = False

    def take(self, owner: Owner) -> tuple[int, Activity]:
        """Make `owner` the owner of this process's time.

        Returns:
            Where its time begins: where the run before it ended, else at the process's creation; and the activity
            of the time until now.
        """
        if os.getpid() != self._pid:
            # A forked child is a process of its own, which multiprocessing ends with finalizers of its own, not atexit.
            self.__init__()  # type: ignore[misc]
            multiprocessing.util.Finalize(None, self._finish, exitpriority=0)
        if self._owner is not None:
            self._free_from_ns = self._owner.release(0)
        self._owner = owner
        if not self._early_handler:
            self._early_handler = True
            atexit.register(self._on_exit)
        if self._free_from_ns is None:
            return first_billed_ns(), Activity.STARTUP
        # Between two runs a script builds the next one; in a notebook somebody thinks.
        return self._free_from_ns, Activity.IDLE if in_notebook() else Activity.STARTUP

    def _on_exit(self) -> None:
        if self._owner is not None and os.getpid() == self._pid:
            self._owner.on_exit()

    def _finish(self) -> None:
        if self._owner is not None and os.getpid() == self._pid:
            self._owner.release(_exit_ns())
            self._owner = None


def _exit_ns() -> int:
    """Estimate what the interpreter will still take."""
    if "torch" not in sys.modules:
        return EXIT_NS
    begin = time.perf_counter_ns()
    gc.collect()
    return EXIT_PER_COLLECTION * (time.perf_counter_ns() - begin)


PROCESS = ProcessTime()
# Exit handlers run in reverse order: this one, registered when costguard is imported, comes after those of nearly
# everything that a training script uses, so that their time is still metered.
atexit.register(PROCESS._finish)
