"""Figures over the course of a run, for charts: at most a few hundred points, summed over ranks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from costguard.flops import six_nd, utilization
from costguard.flops.closed_form import Convention
from costguard.ledger.account import RankAccount, RunAccount
from costguard.ledger.activity import Counters
from costguard.ledger.done import done_by, shown_convention
from costguard.prices import PriceBook
from costguard.units import NS_PER_S, plain, round_money

MOST_POINTS = 400


def series_of(account: RunAccount) -> list[dict[str, Any]]:
    """Tokens, device time, spend and MFU at the instants at which the first rank wrote a line.

    Args:
        account: The run.
    """
    rows = []
    tokens_before = device_before = 0
    money_before: Fraction | None = Fraction(0)
    parameters = (account.fact("model") or {}).get("parameters")
    done = done_by((r.final.counters, r.final.train_ns) for r in account.ranks)
    shown = shown_convention(done.flops(parameters, in_train=False))
    for attempt in account.attempts:
        ranks = account.of_attempt(attempt)
        book = account.books.get(attempt, PriceBook())
        for wall_ns in _instants(ranks[0]):
            points = [_Point.at(r, wall_ns, parameters, shown) for r in ranks]
            money = _sum([p.money(book) for p in points])
            rows.append(
                (
                    tokens_before + sum(p.tokens for p in points),
                    device_before + sum(p.device_ns for p in points),
                    None if money is None or money_before is None else money_before + money,
                    sum(p.train_ns for p in points),
                    attempt,
                    sum(p.flops for p in points),
                )
            )
        tokens_before, device_before, money_before = rows[-1][:3] if rows else (0, 0, money_before)
        for gap in account.gaps:
            if gap.billed and gap.earlier.attempt == attempt:
                device_before += gap.ns * gap.devices
                rank = next(r for r in ranks if r.seat == gap.earlier)
                money_before = _sum([money_before, _held(rank, gap.ns, gap.devices, book)])
    best = account.best_peak()
    peak = best["flops_per_s"] if best else None
    known = any(r.final.counters.tokens is not None for r in account.ranks)
    return [_row(i, rows, peak, known) for i in _thin(len(rows))]


class _Point:
    """One rank's figures at an instant, between two of its snapshots by proportion."""

    def __init__(self, rank: RankAccount, elapsed_ns: int, train_ns: int, tokens: int, flops: int) -> None:
        self.rank = rank
        self.elapsed_ns = elapsed_ns
        self.device_ns = elapsed_ns * (1 + rank.idle_devices)
        self.train_ns = train_ns
        self.tokens = tokens
        self.flops = flops

    @staticmethod
    def at(rank: RankAccount, wall_ns: int, parameters: int | None, shown: Convention) -> _Point:
        at_ns = min(max(wall_ns - rank.wall_ns + rank.start_ns, rank.start_ns), rank.final.at_ns)
        before = (rank.start_ns, 0, 0, 0)
        for s in rank.snapshots:
            here = (s.at_ns, s.train_ns, s.counters.tokens or 0, _trained(s.counters, parameters, shown))
            if s.at_ns >= at_ns:
                part = (at_ns - before[0]) / (here[0] - before[0]) if here[0] > before[0] else 1.0
                train, tokens, flops = (a + round((b - a) * part) for a, b in zip(before[1:], here[1:], strict=True))
                return _Point(rank, at_ns - rank.start_ns, train, tokens, flops)
            before = here
        return _Point(rank, at_ns - rank.start_ns, *before[1:])

    def money(self, book: PriceBook) -> Fraction | None:
        return _held(self.rank, self.elapsed_ns, 1 + self.rank.idle_devices, book, self.rank.wall_ns)


def _trained(counters: Counters, parameters: int | None, shown: Convention) -> int:
    """FLOPs done in `train` so far; 0 where they are unknown."""
    if shown == "6nd":
        return six_nd(parameters or 0, (counters.tokens or 0) - counters.warmup.tokens)
    return counters.work.full - counters.warmup.work.full if counters.work is not None else 0


def _held(rank: RankAccount, ns: int, devices: int, book: PriceBook, start: int | None = None) -> Fraction | None:
    start = rank.end_wall_ns if start is None else start
    return book.device_money(start, start + ns, devices, rank.paid_devices)


def _sum(amounts: list[Fraction | None]) -> Fraction | None:
    total = Fraction(0)
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _instants(rank: RankAccount) -> list[int]:
    return [s.at_ns - rank.start_ns + rank.wall_ns for s in rank.snapshots]


def _thin(count: int) -> list[int]:
    step = max(1, -(-count // MOST_POINTS))
    return sorted({*range(0, count, step), count - 1}) if count else []


def _row(
    index: int,
    rows: list[tuple[int, int, Fraction | None, int, int, int]],
    peak: float | None,
    known: bool,
) -> dict[str, Any]:
    tokens, device_ns, money, train_ns, attempt, flops = rows[index]
    mfu = None
    # MFU of the window back to the last point of this attempt at which training had gone on.
    for earlier in reversed(rows[max(0, index - MOST_POINTS) : index]):
        if earlier[4] != attempt or train_ns - earlier[3] >= NS_PER_S:
            same = earlier[4] == attempt
            if same and peak and flops > earlier[5] and train_ns > earlier[3]:
                mfu = utilization(flops - earlier[5], train_ns - earlier[3], peak)
            break
    return {
        "tokens": tokens if known else None,
        "elapsed_device_ns": device_ns,
        "spend": None if money is None else plain(round_money(money)),
        "mfu_step": mfu,
    }
