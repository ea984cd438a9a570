"""The hard way to keep a pot: one numbered log, each number won by exclusive create, each entry with the sums after it.

Whoever adds entry n has read entry n-1 and nobody can add another n, so that all claims are in one order and none can
pass the limit, with no lock and no server. Whoever joins reads the last entry only.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from costguard.errors import PotAwayError, PotError
from costguard.pots.amounts import parts_of
from costguard.pots.book import HEAD
from costguard.pots.sealed import seal, unseal
from costguard.pots.state import Close, Event, State, apply
from costguard.pots.store import Store

UNFINISHED = 20
"""Looks at an entry that has no end before it is called unreadable."""

LOST_RACES = 200
"""In a row, before the pot is called away."""

SPREAD = 4
"""Losers wait for up to 2^4 rounds: enough for 16 who race all the time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One object of the log: the `number`-th, its author's `token`, what happened, and the pot after it."""

    number: int
    token: str
    event: dict[str, Any]
    state: State

    @staticmethod
    def key(number: int) -> str:
        """Where it lies; number 0 is the head."""
        return f"log/{number:08d}.json" if number else HEAD


def encode(number: int, token: str, event: dict[str, Any], state: State, at: str) -> bytes:
    """Write an entry."""
    return seal({"n": number, "token": token, "at": at, "event": event, "state": state.to_json()})


def decode(data: bytes, place: str) -> Entry:
    """Read an entry.

    Raises:
        PotError: If it is not ours, damaged, or newer.
    """
    fields = unseal(data, place)
    return Entry(
        number=fields["n"], token=fields["token"], event=fields["event"], state=State.from_json(fields["state"])
    )


class LogBook:
    """A pot's log.

    Args:
        store: Where it lies.
        head: Its head as it was read.
        stamp: Returns now as it is written, ISO 8601 UTC.
        sleep: Waits so many seconds.
    """

    def __init__(
        self, store: Store, head: Entry, stamp: Callable[[], str], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = store
        self._last = head
        self._stamp = stamp
        self._sleep = sleep
        self._crowd = 0
        self._lock = threading.RLock()

    def refresh(self) -> State:
        """The pot as it is now.

        Numbers have no gaps, so the newest is found by reading ahead in strides that double, then halve: about two
        reads for one new entry and twenty for a thousand, where a listing would send a thousand names.
        """
        with self._lock:
            found, stride = self._ahead(1), 1
            while found:
                stride *= 2
                found = self._ahead(stride)
            while stride > 1:
                stride //= 2
                self._ahead(stride)
            return self._last.state

    def _ahead(self, stride: int) -> bool:
        entry = self._read(self._last.number + stride)
        self._last = entry or self._last
        return entry is not None

    def check(self) -> None:
        """See that no number is missing, which would be won a second time.

        Raises:
            PotError: If one is.
        """
        listed = {int(name[:8]) for name in self._store.list("log") if name[:8].isdigit()}
        missing = set(range(1, max(listed, default=0))) - listed
        if missing:
            place = f"{self._store.url}/{Entry.key(min(missing))}"
            raise PotError(f"{place} is missing, and later entries are there; put it back.")

    def append(self, make: Callable[[State], Event | None]) -> State:
        """Add one event."""
        with self._lock:
            return self._append(make)

    def _append(self, make: Callable[[State], Event | None]) -> State:
        for _ in range(LOST_RACES):
            began = time.monotonic()
            state = self.refresh()
            event = make(state)
            if event is None or self._won(event, apply(state, event)):
                self._crowd = max(0, self._crowd - 1)
                return self._last.state
            # Losers come back at different times, the more spread out the more often they lose, or all but one would
            # lose again.
            self._crowd = min(self._crowd + 1, SPREAD)
            self._sleep(random.uniform(0, min((time.monotonic() - began) * 2**self._crowd, 2.0)))
        raise PotAwayError(f"the pot at {self._store.url} gave {LOST_RACES} numbers in a row to others; try again.")

    def closing(self, holder: str) -> Close | None:
        """How a holder ended, looked for from the newest entry back."""
        with self._lock:
            newest = self._last.number
        for number in range(newest, 0, -1):
            entry = self._read(number)
            event = entry.event if entry else {}
            if event.get("holder") == holder:
                if event["kind"] != "close":
                    return None
                spent, presumed = parts_of(event["spent"]), parts_of(event["presumed"])
                return Close(holder=holder, run=event["run"], spent=spent, presumed=presumed, by=event["by"])
        return None

    def _won(self, event: Event, after: State) -> bool:
        number, token = self._last.number + 1, secrets.token_hex(8)
        data = encode(number, token, event.to_json(), after, self._stamp())
        mine = Entry(number=number, token=token, event=event.to_json(), state=after)
        try:
            there = mine if self._store.create_exclusive(Entry.key(number), data) else self._read(number)
        except PotAwayError:
            there = self._read(number)  # perhaps only the reply was lost
            if there is None:
                raise
        # A client repeats by itself a request whose reply was lost, and is then told that the object is there: the
        # token tells whose it is.
        self._last = there or self._last
        return there is not None and there.token == token

    def _read(self, number: int) -> Entry | None:
        place = f"{self._store.url}/{Entry.key(number)}"
        for _ in range(UNFINISHED):
            data = self._store.read(Entry.key(number))
            if data is None or data.endswith(b"}"):
                break
            self._sleep(0.05)  # on a disk without hard links an entry may be seen half written
        return None if data is None else decode(data, place)
