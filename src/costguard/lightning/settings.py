"""What the user said to CostMonitor, checked once and kept in order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lightning.pytorch import Trainer

from costguard.errors import config_error
from costguard.ledger.devices import check_gpus
from costguard.ledger.opening import check_run_id
from costguard.lightning.batches import CountTokens
from costguard.lightning.run import RunConfig
from costguard.policies.gap import GAP_MODES, GapMode
from costguard.policies.rows import RowCadence
from costguard.prices import PriceBook
from costguard.prices.book import price_argument
from costguard.units import NS_PER_S, Money


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The arguments of `CostMonitor`, see there; plain data that goes along into copies and other processes."""

    book: PriceBook
    gpus: int | None
    planned_tokens: int | None
    planned_usd: Money | None
    planned_hours: float | None
    tags: Mapping[str, str]
    run_id: str | None
    dir: str | None
    gap: GapMode
    count_tokens: CountTokens | None
    peak_flops_per_s: float | None
    cadence: RowCadence
    progress_bar: bool
    report_html: str | None

    @staticmethod
    def checked(
        *,
        usd_per_gpu_hour: Money | None,
        usd_per_hour: Money | None,
        prices: PriceBook | None,
        gpus: int | None,
        planned_tokens: float | None,
        planned_usd: Money | None,
        planned_hours: float | None,
        tags: Mapping[str, str] | None,
        run_id: str | None,
        dir: str | None,
        gap: GapMode,
        count_tokens: CountTokens | None,
        peak_flops_per_s: float | None,
        log_every_s: float,
        progress_bar: bool,
        report_html: str | None,
    ) -> Settings:
        """Check every argument.

        Raises:
            ConfigError: With option, value and remedy of the first that cannot be used.
        """
        _check_kinds(tags, prices, count_tokens)
        book = _book(usd_per_gpu_hour, usd_per_hour, prices)
        check_gpus("CostMonitor", gpus)
        _check_positive("planned_tokens", planned_tokens, "a count of tokens such as 20e9")
        _check_positive("planned_hours", planned_hours, "hours of the whole plan such as 72")
        if planned_usd is not None:
            price_argument("CostMonitor", "planned_usd", planned_usd)
        _check_positive("peak_flops_per_s", peak_flops_per_s, "FLOP/s of one device such as 989.4e12")
        if not log_every_s >= 0:
            raise config_error(f"CostMonitor(log_every_s={log_every_s!r}): expected seconds of at least 0, such as 1.")
        if gap not in GAP_MODES:
            raise config_error(f"CostMonitor(gap={gap!r}): expected one of {', '.join(GAP_MODES)}.")
        if run_id is not None:
            check_run_id(f"CostMonitor(run_id={run_id!r})", run_id)
        return Settings(
            book=book,
            gpus=gpus,
            planned_tokens=None if planned_tokens is None else round(planned_tokens),
            planned_usd=planned_usd,
            planned_hours=planned_hours,
            tags={str(k): str(v) for k, v in (tags or {}).items()},
            run_id=run_id,
            dir=dir,
            gap=gap,
            count_tokens=count_tokens,
            peak_flops_per_s=peak_flops_per_s,
            cadence=RowCadence(every_ns=round(log_every_s * NS_PER_S)),
            progress_bar=progress_bar,
            report_html=report_html,
        )

    def config(self, trainer: Trainer) -> RunConfig:
        """The part that is the run's; a URL in place of a folder means a mirror of a local journal."""
        place = self.dir or trainer.default_root_dir
        remote, local = "://" in place, "." if "://" in trainer.default_root_dir else trainer.default_root_dir
        return RunConfig(
            book=self.book,
            gpus=self.gpus,
            planned_tokens=self.planned_tokens,
            tags=self.tags,
            run_id=self.run_id,
            root=os.path.abspath(local if remote else place),
            mirror=place.rstrip("/") if remote else None,
            gap=self.gap,
            report_html=self.report_html,
        )


def _check_kinds(tags: object, prices: object, count_tokens: object) -> None:
    if tags is not None and not isinstance(tags, Mapping):
        raise config_error(f"CostMonitor(tags={tags!r}): expected labels such as {{'project': 'tiny-llm'}}.")
    if prices is not None and not isinstance(prices, PriceBook):
        raise config_error(f"CostMonitor(prices={prices!r}): expected a PriceBook, such as PriceBook(prices=[...]).")
    if count_tokens is not None and not callable(count_tokens):
        raise config_error(f"CostMonitor(count_tokens={count_tokens!r}): expected a function of a batch.")


def _book(usd_per_gpu_hour: Money | None, usd_per_hour: Money | None, prices: PriceBook | None) -> PriceBook:
    short = PriceBook.for_run("CostMonitor", usd_per_gpu_hour, usd_per_hour)
    if prices is not None and short.prices:
        raise config_error(
            "CostMonitor(prices=..., usd_per_...=...): two sources of one price; give the price book or the short form."
        )
    return prices or short


def _check_positive(option: str, value: float | None, expected: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise config_error(f"CostMonitor({option}={value!r}): expected {expected}.")
