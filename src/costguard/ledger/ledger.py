"""Entries of integer quantities, and the exact money that a price book makes of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from costguard.ledger.account import RankAccount, RunAccount, Snapshot
from costguard.prices import PriceBook
from costguard.units import round_shares

DEVICE = "device"
DEVICE_NS = "device_ns"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One recorded fact: how much of something billable, when, and whose.

    Args:
        meter: What kind of thing, such as `device` or `tokens`.
        unit: Unit of the quantity; device time is in `device_ns`.
        quantity: Integer amount, >= 0.
        start_ns: Wall clock, nanoseconds since the epoch.
        end_ns: Wall clock; the quantity is spread evenly over the interval.
        attempt: Attempt whose price book holds.
        activity: Activity of device time.
        paid_devices: Devices that share a price of the whole allocation.
        tags: The run's tags then.
    """

    meter: str
    quantity: int
    start_ns: int
    end_ns: int
    unit: str = DEVICE_NS
    attempt: int = 1
    activity: str | None = None
    paid_devices: int = 1
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """All entries of a run and the price books of its attempts."""

    entries: Sequence[Entry]
    books: Mapping[int, PriceBook] = field(default_factory=dict)

    def __or__(self, other: Ledger) -> Ledger:
        return Ledger((*self.entries, *other.entries), {**self.books, **other.books})


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    """Exact money in every breakdown; `None` in place of a total where nothing has a price.

    Args:
        currency: ISO 4217 code.
        by_activity: Device money by activity; adds up to `device_total`.
        by_meter: Money by meter; adds up to `total`.
        by_tag: For each tag its values, each tag adding up to `total`; entries without it under "".
        unpriced: Quantity without a price, by meter and unit.
    """

    currency: str
    by_activity: Mapping[str, Fraction]
    by_meter: Mapping[str, Fraction]
    by_tag: Mapping[str, Mapping[str, Fraction]]
    unpriced: Mapping[tuple[str, str], int]

    @property
    def priced(self) -> bool:
        """Whether anything has a price."""
        return bool(self.by_meter)

    @property
    def total(self) -> Fraction:
        """All money."""
        return sum(self.by_meter.values(), Fraction(0))

    @property
    def device_total(self) -> Fraction:
        """Money for device time."""
        return self.by_meter.get(DEVICE, Fraction(0))


def price_ledger(ledger: Ledger, book: PriceBook | None = None) -> Spend:
    """Price every entry exactly.

    Args:
        ledger: The entries.
        book: Prices to use in place of the attempts' own, to ask what the run would have cost.

    Returns:
        Exact sums; an interval without a price is counted in `unpriced`, never as zero.
    """
    # Quantities of one rate are added as integers first: exact, and a million entries make a handful of products.
    sums: dict[_Bin, int] = defaultdict(int)
    unpriced: dict[tuple[str, str], int] = defaultdict(int)
    books = [book] if book else [ledger.books[n] for n in sorted(ledger.books) if ledger.books[n].prices]
    currency = books[-1].currency if books else "USD"
    for entry in ledger.entries:
        prices = book or ledger.books.get(entry.attempt) or PriceBook()
        # Dollars and euros are not added up: what is in another currency than the latest has no price here.
        for quantity, rate in _rated(entry, prices if prices.currency == currency else PriceBook()):
            if rate is None:
                unpriced[entry.meter, entry.unit] += quantity
            else:
                sums[_Bin(entry.meter, entry.activity, entry.tags, rate)] += quantity
    amounts = {bin_: quantity * bin_.rate for bin_, quantity in sums.items()}
    tags = sorted({key for bin_ in amounts for key, _ in bin_.tags})
    return Spend(
        currency=currency,
        by_activity=_group((b.activity or "", amount) for b, amount in amounts.items() if b.meter == DEVICE),
        by_meter=_group((b.meter, amount) for b, amount in amounts.items()),
        by_tag={tag: _group((dict(b.tags).get(tag, ""), amount) for b, amount in amounts.items()) for tag in tags},
        unpriced=dict(unpriced),
    )


class _Bin(NamedTuple):
    """Everything that has the same place in each breakdown and the same rate."""

    meter: str
    activity: str | None
    tags: tuple[tuple[str, str], ...]
    rate: Fraction


def _group(amounts: Iterable[tuple[str, Fraction]]) -> dict[str, Fraction]:
    grouped: dict[str, Fraction] = defaultdict(Fraction)
    for name, amount in amounts:
        grouped[name] += amount
    return dict(grouped)


def _rated(entry: Entry, book: PriceBook) -> Iterator[tuple[int, Fraction | None]]:
    if entry.unit != DEVICE_NS:
        yield entry.quantity, book.unit_price(entry.unit, entry.start_ns)
        return
    rates = list(book.device_rates(entry.start_ns, max(entry.end_ns, entry.start_ns + 1), entry.paid_devices))
    spans = {i: Fraction(entry.quantity * (r.end_ns - r.start_ns)) for i, r in enumerate(rates)}
    whole = sum(r.end_ns - r.start_ns for r in rates)
    shares = round_shares({i: span / whole for i, span in spans.items()}, places=0)
    for i, rate in enumerate(rates):
        yield int(shares[i]), rate.per_unit


def outcome_spend(account: RunAccount) -> dict[str, Fraction]:
    """Exact money of train time by outcome; adds up to `by_activity["train"]`.

    Args:
        account: The run.
    """
    kept = lost = Fraction(0)
    for rank in account.ranks:
        train, part = train_spend(account, rank), train_spend(account, rank, account.kept[rank.seat].train_ns)
        kept, lost = kept + part, lost + train - part
    return {"kept": kept, "rework": lost}


def train_spend(account: RunAccount, rank: RankAccount, part_ns: int | None = None) -> Fraction:
    """Exact money of one rank's train time, as far as there are prices.

    Args:
        account: The run.
        rank: One of its ranks.
        part_ns: Nanoseconds of that train time that are asked for, at its average price; all if `None`.
    """
    book, whole_ns = account.books.get(rank.seat.attempt, PriceBook()), rank.final.train_ns
    entries = [e for e in _rank_entries(rank, book) if e.activity == "train"]
    train = price_ledger(Ledger(entries, account.books)).device_total
    return train if part_ns is None or not whole_ns else train * part_ns / whole_ns


def ledger_of(account: RunAccount) -> Ledger:
    """Write an account as entries of device time, cut where its prices change.

    Args:
        account: The run.
    """
    entries: list[Entry] = []
    for rank in account.ranks:
        book = account.books.get(rank.seat.attempt, PriceBook())
        entries += _rank_entries(rank, book)
    starts = {r.seat: r for r in account.ranks}
    for gap in account.gaps:
        if gap.billed and gap.ns:
            rank = starts[gap.earlier]
            start = rank.end_wall_ns
            entries.append(_entry(rank, "gap", gap.ns * gap.devices, start, start + gap.ns))
    return Ledger(entries, account.books)


def _rank_entries(rank: RankAccount, book: PriceBook) -> Iterator[Entry]:
    first = Snapshot(rank.start_ns, {}, rank.final.counters)
    cuts = [c - rank.wall_ns + rank.start_ns for c in book.changes_ns() if rank.wall_ns < c < rank.end_wall_ns]
    points = [first, *(_activities_at(rank, first, cut) for cut in cuts), rank.final]
    for a, b in zip(points, points[1:], strict=False):
        start, end = (rank.wall_ns + p.at_ns - rank.start_ns for p in (a, b))
        for activity, ns in b.activities_ns.items():
            quantity = ns - a.activities_ns.get(activity, 0)
            if quantity:
                yield _entry(rank, activity, quantity, start, end)
        if rank.idle_devices and end > start:
            yield _entry(rank, "idle", rank.idle_devices * (end - start), start, end)


def _activities_at(rank: RankAccount, first: Snapshot, at_ns: int) -> Snapshot:
    """Figures at an instant between two snapshots: the time between them is shared out evenly over activities."""
    points = [first, *rank.snapshots]
    after = next(i for i, p in enumerate(points) if p.at_ns >= at_ns)
    a, b = points[after - 1], points[after]
    part = Fraction(at_ns - a.at_ns, b.at_ns - a.at_ns)
    grown = {name: (ns - a.activities_ns.get(name, 0)) * part for name, ns in b.activities_ns.items()}
    shares = round_shares(grown, places=0)
    return Snapshot(at_ns, {name: a.activities_ns.get(name, 0) + int(n) for name, n in shares.items()}, b.counters)


def _entry(rank: RankAccount, activity: str, quantity: int, start_ns: int, end_ns: int) -> Entry:
    return Entry(
        meter=DEVICE,
        quantity=quantity,
        start_ns=start_ns,
        end_ns=end_ns,
        attempt=rank.seat.attempt,
        activity=activity,
        paid_devices=rank.paid_devices,
        tags=tuple(sorted(rank.header.get("tags", {}).items())),
    )
