"""Looks once an hour whether a meter grows out of the ordinary, and once a minute at what today has cost."""

from __future__ import annotations

from datetime import timezone
from fractions import Fraction

from costguard.days import day_of
from costguard.ledger.live import Figures
from costguard.lightning.run import Run
from costguard.policies.daily import DailyLine, DayMark, judge_day
from costguard.policies.growth import Bucket, Meter, judge_growth
from costguard.records import Verdict
from costguard.units import NS_PER_HOUR, NS_PER_S, plain, round_money

DAY_EVERY_NS = 60 * NS_PER_S


class GrowthWatch:
    """Rank 0's hourly buckets of money, device time and checkpoint bytes, and the daily line.

    Args:
        run: The run, its journal open.
        per_day: What a day may cost by the plan, US dollars, `None` without one; days are those of UTC.
    """

    def __init__(self, run: Run, per_day: Fraction | None = None) -> None:
        self._run = run
        money = bool(run.config.book.prices)
        self._spend = Meter(name="money", unit="usd") if money else Meter(name="device_time", unit="gpu_hours")
        self._bytes = Meter(name="checkpoint_bytes", unit="bytes")
        self._buckets: dict[str, list[Bucket]] = {self._spend.name: [], self._bytes.name: []}
        self._before: dict[str, float | None] = {}
        self._next_hour_ns = run.meter.now_ns() + NS_PER_HOUR
        in_dollars = per_day is not None and run.config.book.currency == "USD"
        self._line = DailyLine(meter="money", per_day=plain(round_money(per_day))) if in_dollars and per_day else None
        said = (run.account().fact("daily") or {}).get("said", ())
        self._said = frozenset(DayMark.from_json(mark) for mark in said)
        self._next_day_ns = 0

    def tick(self, figures: Figures) -> list[Verdict]:
        """Once a second; returns what is to be told."""
        now, found = self._run.meter.now_ns(), []
        if not self._before:
            self._before = self._counted(figures)
        if now >= self._next_hour_ns:
            # Between two batches may lie a long pause: what was counted in it is spread over its hours.
            hours = 1 + (now - self._next_hour_ns) // NS_PER_HOUR
            self._next_hour_ns = now + NS_PER_HOUR
            found += self._hour(figures, hours)
        if self._line is not None and now >= self._next_day_ns:
            self._next_day_ns = now + DAY_EVERY_NS
            found += self._day(self._line, now)
        return found

    def _counted(self, figures: Figures) -> dict[str, float | None]:
        spend = figures.spend if self._spend.unit == "usd" else Fraction(figures.device_ns, NS_PER_HOUR)
        return {
            self._spend.name: None if spend is None else float(spend),
            self._bytes.name: float(self._run.checkpoint_bytes),
        }

    def _hour(self, figures: Figures, hours: int) -> list[Verdict]:
        counted, before = self._counted(figures), self._before
        self._before = counted
        setting = f"{self._run.config.tags.get('stage', '')}/{self._run.place.world_size}"
        verdicts = []
        for meter in (self._spend, self._bytes):
            new, old = counted[meter.name], before[meter.name]
            buckets = self._buckets[meter.name]
            buckets.append(Bucket(None if new is None or old is None else (new - old) / hours, setting))
            del buckets[:-48]
            verdicts.append(judge_growth(meter, buckets))
        return [verdict for verdict in verdicts if verdict is not None]

    def _day(self, line: DailyLine, now: int) -> list[Verdict]:
        run = self._run
        assert run.live is not None, "rank 0 shows the figures"
        day = day_of(run.wall_ns(), timezone.utc)
        used = run.live.spent(run.meter.state, now, day.start_ns).amount.money
        verdict, said = judge_day(line, day, used, run.wall_ns(), self._said)
        if said != self._said:
            self._said = said
            run.writer.fact("daily", said=[mark.to_json() for mark in sorted(said, key=lambda m: (m.day, m.reason))])
        return [] if verdict is None else [verdict]
