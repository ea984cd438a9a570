"""The figures of a run while it runs: what earlier attempts left, and what this one adds, over all its ranks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from costguard.flops.step import Work
from costguard.ledger.account import RankAccount, RunAccount
from costguard.ledger.activity import MeterState
from costguard.ledger.devices import Paid
from costguard.ledger.done import NOTHING_DONE, Done, done_by, ratio, shown_convention
from costguard.ledger.files import Files
from costguard.ledger.forecast import forecast_total
from costguard.ledger.layout import Seat
from costguard.ledger.ledger import ledger_of, price_ledger
from costguard.ledger.lineage import kept_work
from costguard.ledger.page import PageReading, read_page
from costguard.ledger.spending import Spent, device_spent, spent_by
from costguard.prices import PriceBook
from costguard.records import Activity
from costguard.units import NS_PER_HOUR, NS_PER_S

_TRAIN = (int(Activity.TRAIN),)
_MINUTE_NS = 60 * NS_PER_S
_USEFUL = (int(Activity.TRAIN), int(Activity.VALIDATION))


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One reading of a live run; `None` is unknown.

    Args:
        spend: Money so far, over all attempts and paid devices.
        per_hour: Money per hour of the whole allocation now.
        device_ns: Paid device time so far.
        tokens: Tokens trained and kept, over all ranks.
        mfu: Model FLOPs utilisation of train time, over all attempts, by the receipt's convention.
        mfu_billed: The same of all device time.
        hfu: Hardware FLOPs utilisation of train time.
        vs_6nd: Model FLOPs over 6ND.
        kept_flops: Model FLOPs of training that was kept.
        flops_per_s: Model FLOPs per second of the last minute, all ranks together.
        tokens_per_s: Tokens per second of the last minute, all ranks together.
        waste: Share of device time that was neither kept training nor validation.
        forecast: Money expected at the end of the plan.
    """

    spend: Fraction | None
    per_hour: Fraction | None
    device_ns: int
    tokens: int | None
    mfu: float | None
    waste: float | None
    forecast: Fraction | None
    mfu_billed: float | None = None
    hfu: float | None = None
    vs_6nd: float | None = None
    kept_flops: int | None = None
    flops_per_s: float | None = None
    tokens_per_s: float | None = None

    def metrics(self, currency: str = "USD") -> dict[str, float]:
        """The values for a logger, by key, as 64-bit floats; what is unknown is left out.

        Args:
            currency: Currency of the money, which the keys name in place of `usd`.
        """
        per_million = self.spend * 1_000_000 / self.tokens if self.spend is not None and self.tokens else None
        per_exaflop = self.spend * 10**18 / self.kept_flops if self.spend is not None and self.kept_flops else None
        values = {
            "costguard/spend_usd": self.spend,
            "costguard/usd_per_hour": self.per_hour,
            "costguard/usd_per_million_tokens": per_million,
            "costguard/usd_per_exaflop": per_exaflop,
            "costguard/mfu_ratio": self.mfu,
            "costguard/mfu_billed_ratio": self.mfu_billed,
            "costguard/hfu_ratio": self.hfu,
            "costguard/model_flops_per_s": self.flops_per_s,
            "costguard/flops_vs_6nd_ratio": self.vs_6nd,
            "costguard/tokens_per_s": self.tokens_per_s,
            "costguard/waste_ratio": self.waste,
            "costguard/forecast_usd": self.forecast,
            "costguard/device_hours": Fraction(self.device_ns, NS_PER_HOUR),
            "costguard/tokens": self.tokens,
        }
        unit = currency.lower()
        return {key.replace("usd", unit): float(value) for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Before:
    """Sums of the earlier attempts."""

    spend: Fraction | None = None
    device_ns: int = 0
    useful_ns: int = 0
    kept_tokens: int | None = None
    done: Done = NOTHING_DONE
    kept_flops: int | None = 0
    peak_flops_per_s: float | None = None
    lost_tokens: int = 0
    lost_flops: int | None = 0
    lost_ns: int = 0

    @staticmethod
    def of(account: RunAccount, attempt: int) -> _Before:
        kept = kept_work(account.ranks, training_in=attempt)
        own = [r for r in account.ranks if r.seat.attempt == attempt]
        earlier = [r for r in account.ranks if r.seat.attempt < attempt]
        peak = account.best_peak()
        account = replace(account, ranks=earlier, gaps=[g for g in account.gaps if g.earlier.attempt < attempt])
        spend = price_ledger(ledger_of(account))
        known = [kept[r.seat].tokens for r in earlier if r.final.counters.tokens is not None]
        useful = sum(kept[r.seat].train_ns + r.final.activities_ns.get("validation", 0) for r in earlier)
        return _Before(
            spend=spend.total if spend.priced else None,
            device_ns=account.elapsed_device_ns,
            useful_ns=useful,
            kept_tokens=sum(known) if known else None,
            done=done_by((r.final.counters, r.final.train_ns) for r in earlier),
            kept_flops=_sum(kept[r.seat].flops for r in earlier if r.final.counters.batches),
            peak_flops_per_s=peak["flops_per_s"] if peak else None,
            # Going back to a checkpoint within one process throws away what this attempt has done itself.
            lost_tokens=sum((r.final.counters.tokens or 0) - kept[r.seat].tokens for r in own),
            lost_flops=_sum(_lost(r, kept[r.seat].flops) for r in own if r.final.counters.batches),
            lost_ns=sum(r.final.train_ns - kept[r.seat].train_ns for r in own),
        )


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _lost(rank: RankAccount, kept_flops: int | None) -> int | None:
    work = rank.final.counters.work
    return None if work is None or kept_flops is None else work.full - kept_flops


class LiveAttempt:
    """Adds this attempt to what was before; reads the pages of its other ranks, so it needs no collective.

    Args:
        account: The run, this attempt's first line included.
        book: Prices of this attempt.
        paid: Paid devices.
        folder: The run's folder.
        seat: This rank's seat.
        world_size: Ranks of this attempt.
        files: The file layer.
        wall_offset_ns: Wall clock minus the meter's clock.
        planned_tokens: Tokens of the plan, `None` if unknown.
    """

    def __init__(
        self,
        account: RunAccount,
        book: PriceBook,
        paid: Paid,
        folder: str,
        seat: Seat,
        world_size: int,
        files: Files,
        wall_offset_ns: int,
        planned_tokens: int | None = None,
    ) -> None:
        self._book = book
        self._paid = paid
        self._folder = folder
        self._files = files
        self._others = [Seat(seat.attempt, rank) for rank in range(world_size) if rank != seat.rank]
        self._wall_offset_ns = wall_offset_ns
        self._planned_tokens = planned_tokens
        self._before = _Before.of(account, seat.attempt)
        earlier = [r for r in account.ranks if r.seat.attempt < seat.attempt]
        gaps = [g for g in account.gaps if g.earlier.attempt < seat.attempt]
        self._earlier = replace(account, ranks=earlier, gaps=gaps)
        self._pace_from: tuple[Fraction, Fraction] | None = None
        self._minute: deque[tuple[int, int | None, int | None]] = deque()
        self.parameters: int | None = None
        self.peak_flops_per_s: float | None = None
        self.planned_steps: int | None = None

    def spent(self, state: MeterState, now_ns: int, begin_wall_ns: int = 0) -> Spent:
        """Money and device time of all attempts, exactly, since an instant.

        Args:
            state: This rank's state.
            now_ns: Now, on the meter's clock.
            begin_wall_ns: Wall clock in nanoseconds since the epoch; from the run's begin by default.
        """
        pages = self._pages()
        total = spent_by(self._earlier, begin_wall_ns, now_ns + self._wall_offset_ns)
        unseen = self._paid.total - len(pages)
        for start_ns, devices in [(state.start_ns, unseen), *((p.state.start_ns, 1) for p in pages)]:
            begin = max(start_ns + self._wall_offset_ns, begin_wall_ns)
            end = now_ns + self._wall_offset_ns
            total = total.plus(device_spent(self._book, begin, end, devices, self._paid.total))
        return total

    def spend_at(self, state: MeterState, now_ns: int, others: Sequence[PageReading] = ()) -> Fraction | None:
        """Money so far, exactly, as far as there are prices; `None` if nothing has one.

        Args:
            state: This rank's state.
            now_ns: Now, on the meter's clock.
            others: Pages of the attempt's other ranks that can be seen from here.
        """
        spent = self._before.spend
        unseen = self._paid.total - len(others)
        for start_ns, devices in [(state.start_ns, unseen), *((p.state.start_ns, 1) for p in others)]:
            wall = start_ns + self._wall_offset_ns
            for rate in self._book.device_rates(wall, now_ns + self._wall_offset_ns, self._paid.total):
                if rate.per_unit is not None:
                    spent = (spent or Fraction(0)) + rate.per_unit * (rate.end_ns - rate.start_ns) * devices
        return spent

    def other_states(self) -> list[MeterState]:
        """States of the attempt's other ranks that can be seen from here."""
        return [page.state for page in self._pages()]

    def figures(self, state: MeterState, now_ns: int) -> Figures:
        """Read everything at one instant."""
        pages = self._pages()
        readings = [(state, now_ns), *((p.state, now_ns) for p in pages)]
        seen = len(pages) == len(self._others)
        spend = self.spend_at(state, now_ns, pages)
        device_ns = self._before.device_ns + (now_ns - state.start_ns) * (self._paid.total - len(pages))
        device_ns += sum(now_ns - p.state.start_ns for p in pages)
        now = done_by((s.counters, _ns(s, at, _TRAIN)) for s, at in readings) if seen else Done()
        before, tokens = self._before, now.tokens
        kept = None if tokens is None else tokens - before.lost_tokens + (before.kept_tokens or 0)
        useful = before.useful_ns - before.lost_ns + sum(_ns(s, at, _USEFUL) for s, at in readings)
        return Figures(
            spend=spend,
            per_hour=self._per_hour(now_ns),
            device_ns=device_ns,
            tokens=kept,
            waste=1 - useful / device_ns if seen and device_ns else None,
            forecast=self._forecast(spend, kept, state.counters.step),
            kept_flops=self._kept_flops(now.work),
            **self._utilization(now, device_ns),
            **self._rates(now_ns, now),
        )

    def _kept_flops(self, work: Work | None) -> int | None:
        before, lost = self._before.kept_flops, self._before.lost_flops
        return None if work is None or before is None or lost is None else work.full - lost + before

    def _utilization(self, now: Done, device_ns: int) -> dict[str, float | None]:
        """Over all attempts and with the best peak, so that each is the receipt's figure."""
        peaks = [p for p in (self.peak_flops_per_s, self._before.peak_flops_per_s) if p is not None]
        peak, done = max(peaks, default=None), now + self._before.done
        everything, trained = (done.flops(self.parameters, in_train=part) for part in (False, True))
        shown, six = shown_convention(everything), everything["6nd"]
        full = everything["full_attention"]
        return {
            "mfu": ratio(trained[shown], done.train_ns, peak),
            "mfu_billed": ratio(everything[shown], device_ns, peak),
            "hfu": ratio(done.hardware(), done.train_ns, peak),
            "vs_6nd": full / six if full and six else None,
        }

    def _rates(self, now_ns: int, done: Done) -> dict[str, float | None]:
        """Tokens and FLOPs per second since about a minute ago, or since training began."""
        flops = done.flops(self.parameters, in_train=False)
        point = (now_ns, done.tokens, flops[shown_convention(flops)])
        self._minute.append(point)
        while len(self._minute) > 2 and now_ns - self._minute[1][0] >= _MINUTE_NS:
            self._minute.popleft()
        then = self._minute[0]
        tokens, work = (
            (b - a) / ((now_ns - then[0]) / NS_PER_S) if a is not None and b is not None and now_ns > then[0] else None
            for a, b in zip(then[1:], point[1:], strict=True)
        )
        return {"tokens_per_s": tokens, "flops_per_s": work}

    def _pages(self) -> list[PageReading]:
        pages = []
        for seat in self._others:
            try:
                page = read_page(self._files.read(os.path.join(self._folder, seat.page)))
            except OSError:
                continue
            if page:
                pages.append(page)
        return pages

    def _per_hour(self, now_ns: int) -> Fraction | None:
        wall = now_ns + self._wall_offset_ns
        rate = next(iter(self._book.device_rates(wall, wall + 1, self._paid.total))).per_unit
        return None if rate is None else rate * self._paid.total * NS_PER_HOUR

    def _forecast(self, spend: Fraction | None, tokens: int | None, step: int) -> Fraction | None:
        if self._planned_tokens and tokens is not None:
            progress = Fraction(tokens, self._planned_tokens)
        elif self.planned_steps:
            progress = Fraction(step, self.planned_steps)
        else:
            return None
        if spend is None:
            return None
        if self._pace_from is None:
            self._pace_from = (spend, progress)
        return forecast_total(spend, progress, *self._pace_from)


def _ns(state: MeterState, now_ns: int, activities: Sequence[int]) -> int:
    running = now_ns - state.since_ns if state.activity in activities else 0
    return sum(state.totals[a] for a in activities) + max(0, running)
