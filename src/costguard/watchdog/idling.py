"""Meters a machine that nobody uses and that is still paid for, as an attempt of the run that used it last."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from costguard.clock import Clock, SystemClock, boot_id, process_start_ns
from costguard.ledger.account import RunAccount
from costguard.ledger.activity import ActivityMeter
from costguard.ledger.attempt import AttemptWriter
from costguard.ledger.files import Files, LocalFiles
from costguard.ledger.mirror import open_mirror
from costguard.ledger.opening import Claim, claim_attempt
from costguard.prices import PriceBook
from costguard.records import Activity, Verdict
from costguard.units import NS_PER_HOUR

_OTHERWISE = "the time until the machine is given back is noted on its disk only"
_COPIED = ("job", "allocation", "planned_tokens", "tags", "book", "gap")


class Idling:
    """The time from the end of a training to the end of the machine.

    Args:
        folder: The run's folder.
        attempt: The attempt that used the machine last.
        not_before_ns: Instant before which it was somebody else's.
        mirror: URL of the run's folder on a store, if its journal is copied.
        files: The file layer.
        clock: The clock.
    """

    def __init__(
        self,
        folder: str,
        attempt: int,
        *,
        not_before_ns: int = 0,
        mirror: str | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._files, self._clock = files or LocalFiles(), clock or SystemClock()
        parent, run_id = os.path.split(os.path.abspath(folder))
        claim = claim_attempt(self._files, os.path.dirname(parent), run_id)
        self.attempt = claim.seat.attempt
        before = claim.earlier.of_attempt(attempt)
        self.devices = max((r.paid_devices for r in before), default=1)
        self._book = claim.earlier.books.get(attempt, PriceBook())
        self._start_ns = max(not_before_ns, self._free_from_ns(claim.earlier))
        meter = ActivityMeter(self._start_ns, Activity.IDLE, self._clock.now_ns)
        self._writer = AttemptWriter(
            files=self._files,
            folder=claim.folder,
            seat=claim.seat,
            segment=claim.segment,
            meter=meter,
            clock=self._clock,
            header=self._header(run_id, claim, attempt, before[0].header if before else {}),
            price_changes_ns=self._book.changes_ns(),
            mirror=open_mirror(mirror, self._files, _OTHERWISE) if mirror is not None else None,
            earlier=[os.path.join(claim.folder, r.seat.segment) for r in before],
        )
        for rank in claim.earlier.ranks:
            if rank.status != "closed":
                self._writer.adopt_page(rank.seat)

    def _free_from_ns(self, account: RunAccount) -> int:
        """When the last rank of this boot had ended: the time until then is metered."""
        now, here = self._clock.now_ns(), boot_id()
        ends = [r.final.at_ns for r in account.ranks if here is not None and r.tenure.boot == here]
        return min(now, max(ends, default=now))

    def _header(self, run_id: str, claim: Claim, releases: int, before: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **{name: before[name] for name in _COPIED if name in before},
            "run": run_id,
            "releases": releases,
            "why": "the machine is to be given back",
            "attempt": claim.seat.attempt,
            "rank": 0,
            "world_size": 1,
            "pid": os.getpid(),
            "pid_start": process_start_ns(),
            "host": socket.gethostname(),
            "boot": boot_id(),
            "idle_devices": self.devices - 1,
            "paid_devices": self.devices,
        }

    @property
    def seconds(self) -> float:
        """How long it has been so far."""
        return (self._clock.now_ns() - self._start_ns) / 1e9

    @property
    def per_hour(self) -> Fraction | None:
        """What the machine costs an hour now, `None` if unpriced."""
        now = self._clock.wall_ns()
        return self._book.device_money(now, now + NS_PER_HOUR, self.devices, self.devices)

    @property
    def currency(self) -> str:
        """The currency of the price."""
        return self._book.currency

    def verdict(self, verdict: Verdict) -> None:
        """Note what came of it."""
        self._writer.verdict(verdict)

    def settle(self) -> None:
        """See to it that the disk and the mirror have the run as it is: the machine may be gone in a moment."""
        self._writer.rest()

    def close(self, reason: str | None = None, at_ns: int | None = None) -> None:
        """End; twice is the same as once.

        Args:
            reason: Why, `None` if the machine was given back.
            at_ns: Instant from which the machine was somebody else's, if it is in use again.
        """
        self._writer.close(reason, 0, None if at_ns is None else max(at_ns, self._start_ns))
