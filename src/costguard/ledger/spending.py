"""What was spent in an interval, exactly: by one run, or by all runs that share a label."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple

from costguard.ledger.account import RankAccount, RunAccount
from costguard.ledger.files import Files
from costguard.ledger.layout import FOLDER, seats_in
from costguard.ledger.places import read_folder
from costguard.prices import PriceBook
from costguard.records import Amount


class Spent(NamedTuple):
    """Spending, as far as there are prices.

    Args:
        amount: Money and device time.
        unpriced_ns: Device time in it that has no price.
    """

    amount: Amount = Amount(money=Fraction(0))
    unpriced_ns: int = 0

    def plus(self, other: Spent) -> Spent:
        """Add both."""
        return Spent(self.amount + other.amount, self.unpriced_ns + other.unpriced_ns)


def device_spent(book: PriceBook, begin_ns: int, end_ns: int, devices: int, paid: int) -> Spent:
    """What devices cost in an interval.

    Args:
        book: The prices.
        begin_ns: Wall clock, nanoseconds since the epoch.
        end_ns: Likewise; an interval that ends before it begins is empty.
        devices: Devices that are counted.
        paid: Paid devices of the whole allocation, among which a price of the allocation is divided.
    """
    money, unpriced = Fraction(0), 0
    if end_ns > begin_ns and devices:
        for rate in book.device_rates(begin_ns, end_ns, paid):
            ns = (rate.end_ns - rate.start_ns) * devices
            if rate.per_unit is None:
                unpriced += ns
            else:
                money += rate.per_unit * ns
    return Spent(Amount(money=money, device_ns=max(0, end_ns - begin_ns) * devices), unpriced)


def spent_by(account: RunAccount, begin_ns: int, end_ns: int) -> Spent:
    """What a run cost in an interval of wall time.

    Args:
        account: The run.
        begin_ns: Nanoseconds since the epoch.
        end_ns: Likewise.
    """
    total = Spent()
    ranks = {r.seat: r for r in account.ranks}
    for rank in account.ranks:
        total = total.plus(
            _part(account, rank, rank.wall_ns, rank.end_wall_ns, 1 + rank.idle_devices, begin_ns, end_ns)
        )
    for gap in account.gaps:
        if gap.billed:
            rank = ranks[gap.earlier]
            start = rank.end_wall_ns
            total = total.plus(_part(account, rank, start, start + gap.ns, gap.devices, begin_ns, end_ns))
    return total


def _part(
    account: RunAccount, rank: RankAccount, start: int, end: int, devices: int, begin_ns: int, end_ns: int
) -> Spent:
    book = account.books.get(rank.seat.attempt, PriceBook())
    return device_spent(book, max(start, begin_ns), min(end, end_ns), devices, rank.paid_devices)


class Neighbours:
    """The other runs below one folder that a budget counts together with this one.

    Args:
        root: Folder in which runs lie.
        own: This run's id.
        files: The file layer.
    """

    def __init__(self, root: str, own: str, files: Files) -> None:
        self._root = os.path.join(root, FOLDER)
        self._own = own
        self._files = files
        self._closed: dict[str, RunAccount] = {}
        self.accounts: list[RunAccount] = []

    def look(self) -> None:
        """Read them again; one whose attempts have all ended is read once more only if it has gained an attempt."""
        self.accounts = [account for name in self._names() if (account := self._account(name)) is not None]

    def spent(self, wanted: Callable[[RunAccount], bool], begin_ns: int, end_ns: int, currency: str) -> Spent:
        """What those that are wanted cost in an interval of wall time; money of another currency is unknown."""
        return _sum(
            _in_currency(account, spent_by(account, begin_ns, end_ns), currency)
            for account in self.accounts
            if wanted(account)
        )

    def _names(self) -> Iterable[str]:
        return [name for name in self._files.listing(self._root) if name != self._own]

    def _account(self, name: str) -> RunAccount | None:
        folder = os.path.join(self._root, name)
        known = self._closed.get(name)
        if known is not None and len(seats_in(self._files.listing(folder))) == len(known.ranks):
            return known
        account = read_folder(folder, self._files)
        if not account.ranks:
            return None
        if all(rank.status == "closed" for rank in account.ranks):
            self._closed[name] = account
        return account


def _in_currency(account: RunAccount, spent: Spent, currency: str) -> Spent:
    if all(book.currency == currency for book in account.books.values() if book.prices):
        return spent
    return Spent(Amount(money=Fraction(0), device_ns=spent.amount.device_ns), spent.amount.device_ns)


def _sum(parts: Iterable[Spent]) -> Spent:
    total = Spent()
    for part in parts:
        total = total.plus(part)
    return total
