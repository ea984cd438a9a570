"""A run's journal as the samples that forecasts are made from, and scored on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from costguard.ledger.account import RankAccount, RunAccount, Snapshot
from costguard.plan.series import Sample
from costguard.prices import PriceBook


def samples_of(account: RunAccount) -> list[Sample]:
    """Go through a run again, in optimizer steps, at the instants at which the first rank wrote a line.

    The first rank's time stands for the run's, and all paid devices for it. A validation is a time of validation
    between two lines without any, so one that follows another within a line counts as the same.

    Args:
        account: The run.

    Returns:
        Samples in the order of time, over all attempts; an attempt of which the first rank left nothing is left out.
    """
    firsts = [rank for rank in account.ranks if rank.seat.rank == 0]
    before = Sample(elapsed_ns=0, done=0, spend=Fraction(0))
    samples: list[Sample] = []
    for rank in firsts:
        samples += _of_attempt(rank, account.books.get(rank.seat.attempt, PriceBook()), before)
        before = _held_on(account, rank, samples[-1] if samples else before)
    return samples


def _of_attempt(rank: RankAccount, book: PriceBook, before: Sample) -> Iterator[Sample]:
    done, ended, seen_ns, validating = before.done, before.validations, 0, False
    for at in rank.snapshots:
        resumed = next((r for r in reversed(rank.resumes) if r.at.at_ns <= at.at_ns), None)
        if resumed and at.counters.batches == resumed.at.counters.batches:
            done = resumed.step
        elif at.counters.batches:  # before, an attempt's counter says nothing of the run
            done = at.counters.step
        ns = at.activities_ns.get("validation", 0)
        ended += validating and ns == seen_ns
        validating, seen_ns = ns > seen_ns, ns
        yield _sample(rank, book, before, at, done, ended)


def _held_on(account: RunAccount, rank: RankAccount, last: Sample) -> Sample:
    """The last sample of an attempt with the gap after it, where that was paid."""
    gaps = [gap for gap in account.gaps if gap.billed and gap.earlier.attempt == rank.seat.attempt]
    own = next((gap.ns for gap in gaps if gap.earlier == rank.seat), 0)
    book, end = account.books.get(rank.seat.attempt, PriceBook()), rank.end_wall_ns
    spend = last.spend
    for gap in gaps:
        money = book.device_money(end, end + gap.ns, gap.devices, rank.paid_devices)
        spend = None if money is None or spend is None else spend + money
    activities = {**last.activities_ns, "gap": last.activities_ns.get("gap", 0) + own}
    return replace(last, elapsed_ns=last.elapsed_ns + own, spend=spend, activities_ns=activities)


def _sample(rank: RankAccount, book: PriceBook, before: Sample, at: Snapshot, done: int, validations: int) -> Sample:
    elapsed_ns = at.at_ns - rank.start_ns
    money = book.device_money(rank.wall_ns, rank.wall_ns + elapsed_ns, rank.paid_devices, rank.paid_devices)
    names = {*before.activities_ns, *at.activities_ns}
    return Sample(
        elapsed_ns=before.elapsed_ns + elapsed_ns,
        done=done,
        spend=None if money is None or before.spend is None else before.spend + money,
        activities_ns={n: before.activities_ns.get(n, 0) + at.activities_ns.get(n, 0) for n in sorted(names)},
        validations=validations,
        saves=before.saves + sum(mark.at_ns <= at.at_ns for mark in rank.marks.values()),
        attempt=rank.seat.attempt,
    )
