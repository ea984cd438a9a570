"""Closes the accounts of crashed holders, so that what they had in hand goes back to the pot."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import Decimal

from costguard.pots.amounts import Amount, argument, decimal_of
from costguard.pots.book import Book
from costguard.pots.lease import STALE, Lease, age_s, key_of, now_ns
from costguard.pots.sizing import presumed_spend
from costguard.pots.state import Close, Event, State
from costguard.pots.store import Store

Figure = Callable[[str, str], "Amount | None"]
"""Gets holder and run; returns what the holder really spent of its credit, or `None` if it does not know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """One account that was closed for a crashed holder.

    Args:
        holder: Its id.
        run: Its run.
        spent: What is booked as spent.
        presumed: What of that nobody told.
        refunded: What went back to the pot.
    """

    holder: str
    run: str
    spent: Decimal
    presumed: Decimal
    refunded: Decimal


class Sweeper:
    """Looks for holders that are silent for three leases.

    A live holder stops spending after one lease without a sign of life, and must go through the pot to go on; the
    pot's order decides between it and us. Ages are taken by the store's own clock.

    Args:
        store: Where the pot lies.
        book: Its state.
        figure: Knows what was really spent, such as from the run's journal.
        dead: Holders known to be dead, swept at once.
    """

    def __init__(self, store: Store, book: Book, figure: Figure | None, dead: Collection[str]) -> None:
        self._store, self._book, self._figure, self._dead = store, book, figure, dead

    def sweep(self) -> list[Swept]:
        """Close what is to be closed, and remove leases that nobody needs any more."""
        state = self._book.refresh()
        now = now_ns(self._store)
        done = [swept for holder in state.accounts if (swept := self._close(holder, now))]
        left = self._book.refresh().accounts
        for name in self._store.list("leases"):
            holder = name.removesuffix(".json")
            if holder not in left and self._silent(holder, state, now):
                self._store.delete(key_of(holder))
        return done

    def _close(self, holder: str, now: int | None) -> Swept | None:
        found: list[Swept] = []

        def make(state: State) -> Event | None:
            found.clear()
            account = state.accounts.get(holder)
            if account is None or not (holder in self._dead or self._silent(holder, state, now)):
                return None
            close = self._closing(holder, state)
            found.append(
                Swept(
                    holder=holder,
                    run=account.run,
                    spent=decimal_of(close.spent),
                    presumed=decimal_of(close.presumed),
                    refunded=decimal_of(max(0, account.claimed - close.spent)),
                )
            )
            return close

        self._book.append(make)
        return found[0] if found else None

    def _silent(self, holder: str, state: State, now: int | None) -> bool:
        age = age_s(self._store, holder, now)
        return age is not None and age > STALE * state.terms.lease_s

    def _closing(self, holder: str, state: State) -> Close:
        account = state.accounts[holder]
        lease = Lease.read(self._store, holder)
        told = max(account.spent, lease.spent if lease else 0)
        real = self._figure(holder, account.run) if self._figure else None
        if real is not None:
            spent, presumed = max(told, argument("Pot.sweep", "figure", real, state.terms.unit, up=True)), 0
        else:
            burn = lease.burn_per_hour if lease else None
            presumed = presumed_spend(max(0, account.claimed - told), burn, state.terms.lease_s)
            spent = told + presumed
        return Close(holder=holder, run=account.run, spent=spent, presumed=presumed, by="sweep")
