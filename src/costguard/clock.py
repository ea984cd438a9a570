"""One clock for everything that is billed: integer nanoseconds that count suspend and fit process start times."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Two readings of now: one to measure durations with, one to name instants with."""

    @property
    def now_ns(self) -> Callable[[], int]:
        """Reads nanoseconds of a clock that never goes back and, where the system has one, counts suspend."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, UTC; may be set by an administrator, so never subtracted to bill."""
        ...


# A partial of a C function: no Python frame in the step path.
_read_ns: Callable[[], int] = time.monotonic_ns if _BOOTTIME is None else partial(time.clock_gettime_ns, _BOOTTIME)
IMPORTED_NS = _read_ns()


class SystemClock:
    """The machine's own clocks: `CLOCK_BOOTTIME` where there is one, else the monotonic clock."""

    name = "boottime" if _BOOTTIME is not None else "monotonic"

    def __init__(self) -> None:
        # On the instance, so that reading the clock costs one call of C.
        self.now_ns: Callable[[], int] = _read_ns

    @staticmethod
    def wall_ns() -> int:
        """Read the wall clock in nanoseconds since the Unix epoch."""
        return time.time_ns()


def process_start_ns(pid: int | None = None) -> int | None:
    """When a process was created, on the clock of `SystemClock`.

    The kernel keeps it in clock ticks, so it is exact to 10 ms.

    Args:
        pid: Process id; this process if `None`.

    Returns:
        Nanoseconds since boot, or `None` where the system does not say (no `/proc`, no such process).

    Source:
        proc(5), field 22 (starttime) of /proc/[pid]/stat, counted from boot and including suspend.
    """
    if _BOOTTIME is None:
        return None
    try:
        stat = Path(f"/proc/{pid or os.getpid()}/stat").read_text()
        # The command name (field 2) may hold spaces and brackets: count from behind its last bracket.
        ticks = int(stat.rpartition(")")[2].split()[19])
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int, start_ns: int | None = None) -> bool:
    """Whether a process is there and has not ended; one that only waits for its parent to notice has.

    Args:
        pid: Process id.
        start_ns: When it was created, as `process_start_ns` says, so that a later process with the same id is told
            apart; `None` if unknown.

    Source:
        proc(5), field 3 (state) of /proc/[pid]/stat: Z is a zombie, X is dead.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        if Path("/proc/self/stat").exists():
            return False
        return _answers(pid)
    return state not in "ZX" and (start_ns is None or process_start_ns(pid) == start_ns)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def in_notebook() -> bool:
    """Whether this is an interactive kernel, whose process is older than the work it is asked for."""
    return "ipykernel" in sys.modules


def first_billed_ns() -> int:
    """Where this process's billed time begins: its creation, in a notebook the import of costguard."""
    if in_notebook():
        return IMPORTED_NS
    return process_start_ns() or IMPORTED_NS


def boot_id() -> str | None:
    """Name of the present boot of this machine, or `None` where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
