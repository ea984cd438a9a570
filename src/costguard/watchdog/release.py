"""Waits for the end of a training, and gives its machine back: the work of the small process beside it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from costguard.clock import Clock, SystemClock, boot_id, is_alive
from costguard.errors import CostguardError
from costguard.ledger.control import ControlLog
from costguard.ledger.files import Files, LocalFiles
from costguard.ledger.layout import seats_in
from costguard.ledger.opening import runs_in
from costguard.ledger.places import read_folder
from costguard.records import Action, Verdict
from costguard.units import NS_PER_S, format_duration_s, format_money
from costguard.watchdog.command import run_command
from costguard.watchdog.ending import Ending, how_it_ended
from costguard.watchdog.idling import Idling
from costguard.watchdog.orders import Orders
from costguard.watchdog.safety import why_unsafe
from costguard.webhook import post

LOG_NAME = "release.log"


@dataclass(frozen=True, slots=True)
class _InUse:
    """Somebody works on the machine: from when on, and whether that one will give it back."""

    what: str
    since_ns: int
    will_release: bool


class Release:
    """Looks after one machine from the end of a training on.

    Args:
        orders: What it is told.
        files: The file layer.
        clock: The clock.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        orders: Orders,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._orders = orders
        self._files = files or LocalFiles()
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._host = socket.gethostname()
        self._log = os.path.join(orders.folder, LOG_NAME)
        self._free_from_ns = 0
        self._told: dict[str, tuple[str, int]] = {}

    def run(self) -> None:
        """Wait for the end and do what is ordered; returns when the machine is given back or somebody else's."""
        while is_alive(self._orders.pid, self._orders.pid_start):
            self._sleep(self._orders.poll_s)
        while True:
            ending = self._wait_for_the_end()
            if ending is None:
                return
            if ending.how not in self._orders.when:
                self._say(f"{ending.why}: nothing is to be done (on_stop_when={list(self._orders.when)}).")
                return
            if self._give_back(ending):
                return

    # -- until it has ended -----------------------------------------------------------------------------------

    def _wait_for_the_end(self) -> Ending | None:
        """How the run ended, when nobody has started it again in the grace time; `None` if it is another's now."""
        orders = self._orders
        begin_ns = quiet_ns = self._clock.now_ns()
        while True:
            ending = self._look()
            now = self._clock.now_ns()
            if ending.how == "unknown" or ending.taken_over:
                self._leave(ending)
                return None
            if ending.how == "running" and now - begin_ns > orders.grace_s * NS_PER_S:
                ending = replace(ending, how="crash", why="its first process has ended and others hang")
            if ending.how in ("running", "restarted"):
                quiet_ns = now
            elif now - quiet_ns >= orders.grace_s * NS_PER_S:
                user = self._in_use()
                if user is None:
                    return ending
                if user.will_release:
                    self._say(f"{user.what} looks after the machine: it is left to that one.")
                    return None
                self._say(f"{user.what} works on this machine: the command waits for its end.")
                quiet_ns = now
            self._sleep(orders.poll_s)

    def _look(self) -> Ending:
        orders = self._orders
        try:
            account = read_folder(orders.folder, self._files)
            decisions = ControlLog(orders.folder, self._files).decisions()
        except (CostguardError, OSError) as error:
            return Ending(how="unknown", why=str(error).rstrip("."), attempt=orders.attempt)
        return how_it_ended(account, decisions, orders.attempt, self._host)

    def _leave(self, ending: Ending) -> None:
        if ending.how == "unknown":
            why = f"how the run ended is unknown ({ending.why})"
            self._tell("unknown", f"on_stop is not run: {why}. Give the machine back by hand.")
        else:
            self._say(f"{ending.why}: the machine is left to that one.")

    def _in_use(self) -> _InUse | None:
        """Another run of the same folder that works here, or already waits for the machine to be given back.

        Also notes when the last of them ended: until then the machine was not idle.
        """
        folder, here = os.path.abspath(self._orders.folder), boot_id()
        for other, account in runs_in(os.path.dirname(os.path.dirname(folder)), self._files):
            ranks = [] if os.path.abspath(other) == folder else account.ranks
            for rank in ranks:
                if rank.status == "running":
                    return _InUse(f"run {account.run_id!r}", rank.start_ns, "releases" in rank.header)
                if here is not None and rank.tenure.boot == here:
                    self._free_from_ns = max(self._free_from_ns, rank.final.at_ns)
        return None

    # -- until it is given back -------------------------------------------------------------------------------

    def _give_back(self, ending: Ending) -> bool:
        """Try until the machine is given back; `False` if somebody works on it again."""
        orders = self._orders
        idling = Idling(
            orders.folder,
            ending.attempt,
            not_before_ns=self._free_from_ns,
            mirror=orders.mirror,
            files=self._files,
            clock=self._clock,
        )
        self._say(f"{ending.why}: the machine is to be given back.")
        reason: str | None = "the watch ended before the machine was given back"
        pause_s = orders.pause_s
        try:
            while not self._try(ending, idling):
                self._pause(pause_s, idling)
                used_ns = self._used_again(idling)
                if used_ns is not None:
                    idling.close(None, used_ns)
                    return False
                pause_s = min(2 * pause_s, orders.longest_pause_s)
            reason = None
            return True
        finally:
            idling.close(reason)

    def _try(self, ending: Ending, idling: Idling) -> bool:
        account = read_folder(self._orders.folder, self._files)
        why = why_unsafe(account, disk_survives=self._orders.disk_survives)
        if why is not None:
            remedy = (
                "Bring it to safety and run the command by hand, or train with checkpoints on a URL or a network "
                "mount, or with disk_survives=True if the disk outlives the machine"
            )
            self._tell("unsafe_checkpoint", f"on_stop is not run: {why}. {remedy}.", idling)
            return False
        idling.settle()
        self._say("on_stop is run.")  # the command itself is written nowhere: it may hold keys
        problem = run_command(self._orders.command, self._log, self._orders.command_cap_s, COSTGUARD_ENDED=ending.how)
        if problem is not None:
            message = f"on_stop failed ({problem}; see {self._log}). It is tried again until it succeeds."
            self._tell("command_failed", message, idling)
            return False
        idle = format_duration_s(idling.seconds)
        message = f"The machine was given back after it was idle for {idle}."
        idling.verdict(Verdict(kind="release", action=Action.LOG, reason="released", message=message))
        self._say(message)
        return True

    def _pause(self, seconds: float, idling: Idling) -> None:
        """Wait, but not when the run has been started again."""
        end = self._clock.now_ns() + seconds * NS_PER_S
        while (left := (end - self._clock.now_ns()) / NS_PER_S) > 0:
            self._sleep(min(left, self._orders.poll_s))
            if max(s.attempt for s in seats_in(self._files.listing(self._orders.folder))) > idling.attempt:
                return

    def _used_again(self, idling: Idling) -> int | None:
        """The instant from which somebody works on the machine again, `None` if nobody does."""
        account = read_folder(self._orders.folder, self._files)
        later = [r for r in account.ranks if r.seat.attempt > idling.attempt]
        now, here = self._clock.now_ns(), boot_id()
        began = [r.start_ns if r.tenure.boot == here else now for r in later]
        user = self._in_use()
        if user is not None and not user.will_release:
            began.append(user.since_ns)
        if began:
            self._say("somebody works on the machine again: the command waits.")
        return min(began, default=None)

    # -- telling ----------------------------------------------------------------------------------------------

    def broke(self, error: BaseException) -> None:
        """Tell that the watch itself has failed."""
        what = f"{type(error).__name__}: {error}"
        self._tell("broken", f"the watch broke ({what}), and on_stop is not run. Give the machine back by hand.")

    def _say(self, message: str) -> None:
        say(self._log, message)

    def _tell(self, reason: str, message: str, idling: Idling | None = None) -> None:
        """Alert of a machine that is still paid for: at once when it is news, and again after a while."""
        self._say(message)
        now = self._clock.now_ns()
        before, told_ns = self._told.get(reason, ("", 0))
        if before == message and now - told_ns < self._orders.remind_s * NS_PER_S:
            return
        self._told[reason] = (message, now)
        verdict = Verdict(kind="release", action=Action.ALERT, reason=reason, message=message + self._cost(idling))
        if idling is not None:
            idling.verdict(verdict)
        if self._orders.webhook is not None:
            try:
                post(self._orders.webhook, verdict)
            except Exception as error:  # the network may do anything
                self._say(f"the alert could not be delivered ({type(error).__name__}: {error}).")

    def _cost(self, idling: Idling | None) -> str:
        if idling is None:
            return ""
        price = idling.per_hour
        rate = "" if price is None else f" at {format_money(price, idling.currency)} an hour"
        return (
            f" Until then the machine is paid for and idle{rate}, for {format_duration_s(idling.seconds)} so far "
            f"(`kill {os.getpid()}` on {self._host} ends this watch)."
        )


def say(log_path: str, message: str) -> None:
    """Write a line into the log of a run's watch; where that cannot be, nobody is the wiser and the work goes on."""
    now = datetime.now(timezone.utc)
    try:
        with open(log_path, "a", encoding="utf-8") as log:
            log.write(f"{now:%Y-%m-%dT%H:%M:%SZ} costguard: {message}\n")
    except OSError:
        return
