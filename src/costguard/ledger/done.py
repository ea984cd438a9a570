"""What some training did and how well it used its devices: tokens, FLOPs and MFU by convention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from costguard.flops import six_nd, utilization
from costguard.flops.closed_form import Convention
from costguard.flops.step import NO_WORK, Work
from costguard.ledger.activity import Counters

OVER_100_PERCENT = "mfu_over_100_percent"
"""The alarm: more than the peak is done by nothing, so that the peak or the count is wrong."""


class Done(NamedTuple):
    """What ranks did, in all and of it outside of `train`.

    Args:
        tokens: Tokens, `None` if unknown.
        work: FLOPs, `None` if unknown.
        warm_tokens: Tokens of warm-up batches.
        warm_work: FLOPs of warm-up batches.
        train_ns: Train time, summed over ranks.
        trained: Whether they trained at all.
    """

    tokens: int | None = None
    work: Work | None = None
    warm_tokens: int = 0
    warm_work: Work = NO_WORK
    train_ns: int = 0
    trained: bool = False

    def __add__(self, other: Done) -> Done:  # type: ignore[override]
        """Add what others did; who trained nothing has nothing unknown."""
        if not self.trained or not other.trained:
            some = self if self.trained else other
            return some._replace(train_ns=self.train_ns + other.train_ns)
        return Done(
            tokens=None if self.tokens is None or other.tokens is None else self.tokens + other.tokens,
            work=None if self.work is None or other.work is None else self.work + other.work,
            warm_tokens=self.warm_tokens + other.warm_tokens,
            warm_work=self.warm_work + other.warm_work,
            train_ns=self.train_ns + other.train_ns,
            trained=True,
        )

    def flops(self, parameters: int | None, *, in_train: bool) -> dict[Convention, int | None]:
        """Model FLOPs by convention, in `train` alone or in all."""
        work = None if self.work is None else self.work - (self.warm_work if in_train else NO_WORK)
        tokens = None if self.tokens is None else self.tokens - (self.warm_tokens if in_train else 0)
        return {
            "6nd": None if tokens is None or parameters is None else six_nd(parameters, tokens),
            "full_attention": None if work is None else work.full,
            "causal": None if work is None else work.causal,
        }

    def hardware(self) -> int | None:
        """FLOPs executed in `train`, `None` if unknown."""
        return None if self.work is None else (self.work - self.warm_work).hardware


NOTHING_DONE = Done()


def done_by(readings: Iterable[tuple[Counters, int]]) -> Done:
    """Add up what ranks did; a rank that trained no batch adds its train time only.

    Args:
        readings: Counters and train time of each rank of each attempt.
    """
    done = NOTHING_DONE
    for counters, train_ns in readings:
        warm = counters.warmup
        done += Done(counters.tokens, counters.work, warm.tokens, warm.work, train_ns, counters.batches > 0)
    return done


def shown_convention(flops: Mapping[Convention, int | None]) -> Convention:
    """The convention of the figure that stands alone: what was counted if anything was, else the 6ND estimate."""
    return "full_attention" if flops["full_attention"] is not None else "6nd"


def mfu_by_convention(
    flops: Mapping[Convention, int | None], device_ns: int, peak_flops_per_s: float | None
) -> dict[Convention, float | None]:
    """MFU of a stretch of device time by each convention.

    Args:
        flops: Model FLOPs done in it, over all devices.
        device_ns: Device time, summed over devices.
        peak_flops_per_s: Of one device, `None` if unknown.
    """
    return {name: ratio(count, device_ns, peak_flops_per_s) for name, count in flops.items()}


def ratio(flops: int | None, device_ns: int, peak_flops_per_s: float | None) -> float | None:
    """FLOPs over what the devices could have done; `None` where something is unknown, or nothing was done."""
    if not flops or device_ns <= 0 or peak_flops_per_s is None:
        return None
    return utilization(flops, device_ns, peak_flops_per_s)
