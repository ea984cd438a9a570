"""Starts, kills and counts the processes that race on a pot."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from costguard.pots.log import Entry, decode
from costguard.pots.store import Store

SCRIPT = Path(__file__).with_name("racing.py")


class Racer:
    """One process.

    Args:
        url: The pot.
        endpoint: The S3 server, or nothing.
        own: Where it writes what it did.
        seed: Its number.
    """

    def __init__(self, url: str, endpoint: str, own: Path, seed: int) -> None:
        self.own = own
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), url, endpoint, str(own), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        """Return when it has opened the pot."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]

    def go(self) -> None:
        """Let it race."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it as the system does when memory is short."""
        self.process.kill()
        self.process.communicate()

    def finish(self) -> None:
        """Wait for its end, which must be a good one."""
        _, err = self.process.communicate(timeout=320)
        assert self.process.returncode == 0, err
        assert err == ""

    @property
    def holder(self) -> str:
        """The holder of its credit; it keeps it unless it is swept."""
        return self._words("holder")[0]

    @property
    def spent(self) -> Decimal:
        """What it spent, to its last flushed line."""
        return sum(map(Decimal, self._words("spent")), Decimal(0))

    @property
    def was_away(self) -> bool:
        """Whether it saw the store away."""
        return "away" in self.own.read_text().split()

    def _words(self, first: str) -> list[str]:
        lines = [line.split() for line in self.own.read_text().splitlines()]
        return [words[1] for words in lines if words[0] == first and len(words) > 1]


@contextmanager
def racers(url: str, endpoint: str, folder: Path, number: int) -> Iterator[list[Racer]]:
    """So many processes that start at one moment, none left behind."""
    made = [Racer(url, endpoint, folder / f"racer-{n}.txt", n) for n in range(number)]
    try:
        for each in made:
            each.wait_ready()
        for each in made:
            each.go()
        yield made
    finally:
        for each in made:
            if each.process.poll() is None:
                each.process.kill()
            each.process.communicate()


def entries_of(store: Store) -> list[Entry]:
    """The whole log of a pot, its head first."""
    names = store.list("log")
    found = [store.read("pot.json"), *(store.read(f"log/{name}") for name in names)]
    return [decode(data, "entry") for data in found if data is not None]


def assert_no_voucher_won_twice(store: Store) -> list[Entry]:
    """Numbers follow each other without a gap, each entry has one author and continues the one before it.

    The sums are computed anew from the events alone, apart from the code under test.
    """
    entries = entries_of(store)
    assert [each.number for each in entries] == list(range(len(entries)))
    assert len({each.token for each in entries}) == len(entries)
    claimed: dict[str, Decimal] = {}
    spent: dict[str, Decimal] = {}
    refunded = Decimal(0)
    for each in entries[1:]:
        if each.event["kind"] == "raise":
            continue
        holder, event = each.event["holder"], each.event
        spent[holder] = Decimal(event["spent"])
        assert spent[holder] <= claimed.get(holder, 0), "spent before it was claimed"
        claimed[holder] = claimed.get(holder, Decimal(0)) + Decimal(event.get("amount", 0))
        if event["kind"] == "close":
            refunded += claimed[holder] - spent[holder]
        parts = 10**12
        assert each.state.claimed == sum(claimed.values()) * parts
        assert each.state.spent == sum(spent.values()) * parts
        assert each.state.refunded == refunded * parts
        assert each.state.live == sum(account.live for account in each.state.accounts.values())
        assert each.state.claimed == each.state.spent + each.state.refunded + each.state.live
        assert each.state.claimed - each.state.refunded <= each.state.limit
    return entries
