"""What training knows of its own speed, as signals for the question why MFU is low."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from costguard.flops.step import StepFlops
from costguard.ledger.activity import MeterState
from costguard.ledger.done import Done, done_by
from costguard.ledger.live import Figures
from costguard.policies.utilization import UtilizationSignals
from costguard.records import Activity
from costguard.units import NS_PER_S, round_money

_STEPPING = (Activity.TRAIN, Activity.DATA_WAIT, Activity.COMPILE)
_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


def signals_of(
    states: Sequence[MeterState],
    figures: Figures,
    *,
    seen: StepFlops | None,
    dtype: str | None,
    recompiles: int,
    currency: str,
) -> UtilizationSignals:
    """Gather what is known without a look at the device.

    Args:
        states: This rank's state first, then those of the attempt's other ranks that can be seen from here.
        figures: The live figures.
        seen: The first counted batch.
        dtype: What the peak is of, such as `tf32`; what products were seen to run in if `None`.
        recompiles: Compilations after the first batch.
        currency: Of the prices.
    """
    own = states[0]
    stepping = sum(own.totals[a] for a in _STEPPING)
    train, counters = own.totals[Activity.TRAIN], own.counters
    trained = counters.batches - counters.warmup.batches
    per_hour = figures.per_hour
    return UtilizationSignals(
        step=counters.step,
        mfu_ratio=figures.mfu,
        step_s=train / trained / NS_PER_S if trained else None,
        data_wait_ratio=own.totals[Activity.DATA_WAIT] / stepping if stepping else None,
        padding_ratio=_padding(done_by((s.counters, 0) for s in states), states),
        rank_wait_ratio=_rank_wait(states),
        recompiles=recompiles,
        recompile_ratio=own.totals[Activity.COMPILE] / stepping if stepping and recompiles else None,
        recompute_ratio=_recomputed(seen),
        matmul_dtype=dtype or (_NAMES.get(seen.dtype or "") if seen else None),
        price_per_hour=None if per_hour is None else Decimal(str(round_money(Fraction(per_hour)))),
        currency=currency,
    )


def _padding(done: Done, states: Sequence[MeterState]) -> float | None:
    padding = [s.counters.padding for s in states]
    if not done.tokens or any(p is None for p in padding):
        return None
    total = sum(p for p in padding if p is not None)
    return total / (total + done.tokens)


def _rank_wait(states: Sequence[MeterState]) -> float | None:
    """At least so much of their steps ranks wait for each other: those that are done first wait inside of `train`."""
    train = [s.totals[Activity.TRAIN] for s in states]
    if len(train) < 2 or not all(train):
        return None
    return sum(t - min(train) for t in train) / sum(train)


def _recomputed(seen: StepFlops | None) -> float | None:
    if seen is None or seen.recomputed is None or not seen.work.hardware:
        return None
    return seen.recomputed / seen.work.hardware
