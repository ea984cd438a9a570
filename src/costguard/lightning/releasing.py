"""Starts the small process that gives the machine back when this training has ended."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from costguard.clock import is_alive, process_start_ns
from costguard.errors import warn
from costguard.lightning.run import Run
from costguard.watchdog.ending import When
from costguard.watchdog.orders import Orders, check_release
from costguard.watchdog.safety import why_lost

GRACE_S = 120.0
"""How long a launcher may take to start the training again before it counts as ended."""
START_CAP_S = 60.0
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); from costguard.watchdog.__main__ import main; "
_watches: dict[int, tuple[int, int | None]] = {}
"""The watch of each process, by its id: the watch's id and when it was created. A forked process has none."""


class OnStop:
    """What the user wants done with the machine.

    Args:
        owner: Whose arguments these are, for errors.
        command: Shell command that gives the machine back, `None` to leave it.
        when: Endings after which it is run, `["breach"]` if `None`.
        disk_survives: The user's word that the disk outlives the machine.

    Raises:
        ConfigError: If the command or the endings cannot be used.
    """

    def __init__(
        self, owner: str, command: str | None, when: Sequence[When] | None = None, *, disk_survives: bool = False
    ) -> None:
        self._command = command
        self._when: Sequence[When] = ("breach",) if when is None else when
        self._disk_survives = disk_survives
        check_release(owner, "unused" if command is None else command, self._when)

    def begin(self, run: Run, checkpoints: str, webhook: str | None = None) -> None:
        """Training starts: see `start_release`."""
        if self._command is not None:
            start_release(run, self._command, self._when, self._disk_survives, webhook, checkpoints=checkpoints)

    def refused(self, run: Run, webhook: str | None = None) -> None:
        """The run must not start: under a launcher, which may have got the machine for it; else somebody is there."""
        if self._command is not None and run.supervised:
            start_release(run, self._command, self._when, self._disk_survives, webhook)


def start_release(
    run: Run,
    command: str,
    when: Sequence[When] = ("breach",),
    disk_survives: bool = False,
    webhook: str | None = None,
    *,
    checkpoints: str | None = None,
    grace_s: float | None = None,
) -> None:
    """Leave a process behind that gives the machine back when this one has ended, however it ends.

    One process has one watch: that of the run that it trained last. Does nothing on other ranks than the first.

    Args:
        run: The run, its journal open.
        command: Shell command that gives the machine back.
        when: Endings after which it is run.
        disk_survives: The user's word that the disk outlives the machine.
        webhook: URL to which alerts are posted as JSON.
        checkpoints: Where checkpoints will go, to say now what would be refused later.
        grace_s: How long a launcher may take to start the training again; `GRACE_S` if `None`.

    Raises:
        ConfigError: If the command or the endings cannot be used.
    """
    check_release("start_release", command, when, ("command", "when"))
    if run.place.rank != 0:
        return
    folder, config = os.path.abspath(run.writer.folder), run.config
    if not os.path.exists(os.path.join(folder, run.writer.seat.segment)):
        warn("on_stop will not be run: this run leaves no journal, so that nothing would tell how it has ended.")
        return
    pid = _main_process()
    orders = Orders(
        folder=folder,
        attempt=run.writer.seat.attempt,
        pid=pid,
        pid_start=process_start_ns(pid),
        command=command,
        when=tuple(when),
        disk_survives=disk_survives,
        webhook=webhook,
        mirror=f"{config.mirror}/{run.run_id}" if config.mirror else None,
        grace_s=GRACE_S if grace_s is None else grace_s,
    )
    _end_earlier_watch()
    watch = _start(orders)
    if watch is not None:
        run.writer.fact("release", pid=watch, pid_start=process_start_ns(watch), when=list(when))
        _warn_of_disk(checkpoints, disk_survives)


def _main_process() -> int:
    """The process that trains, or the one that spawned it for that and goes on after it."""
    parent = multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def _start(orders: Orders) -> int | None:
    """Start the watch; orders go through a pipe, since commands and webhooks may hold keys and `ps` shows arguments."""
    try:
        # Where this process imports from, as multiprocessing hands it on too: a script may have changed it.
        done = subprocess.run(
            [sys.executable, "-c", _BOOT + "sys.exit(main())", json.dumps(sys.path)],
            input=orders.to_json(),
            capture_output=True,
            text=True,
            timeout=START_CAP_S,
            start_new_session=True,
            check=True,
        )
        pid = int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        told = str(getattr(error, "stderr", None) or error).strip().splitlines()
        warn(f"on_stop will not be run: its process cannot be started ({told[-1] if told else error}).")
        return None
    _watches[os.getpid()] = (pid, process_start_ns(pid))
    return pid


def _end_earlier_watch() -> None:
    pid, start_ns = _watches.pop(os.getpid(), (0, None))
    if pid and is_alive(pid, start_ns):
        os.kill(pid, signal.SIGTERM)


def _warn_of_disk(checkpoints: str | None, disk_survives: bool) -> None:
    why = None if disk_survives or checkpoints is None else why_lost(checkpoints)
    if why is not None:
        warn(
            f"on_stop will be refused while the newest checkpoint is in {checkpoints} ({why}): save to a URL or a "
            "network mount, or say disk_survives=True if that disk outlives the machine."
        )
