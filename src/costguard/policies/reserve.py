"""What it costs to stop: how much has to be left so that a run can end in order before its limit is reached."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from costguard.errors import config_error
from costguard.records import Amount
from costguard.units import NS_PER_S

STEP_QUANTILE = 0.99
QUANTILE = 0.95
EXIT_PRIOR_NS = NS_PER_S
"""From the last line of Python to the end of the process: unloading torch, CUDA and the allocator; chosen."""
FIRST_SAVE_FACTOR = 2
"""A first save takes up to twice what its bytes and the measured bandwidth say; chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopPriors:
    """What is assumed of a part until it has been measured, in nanoseconds of wall time; chosen, not measured.

    Args:
        step_ns: One optimizer step.
        save_ns: Writing the final checkpoint; `save_prior_ns` makes one from its size.
        upload_ns: Until the checkpoint is safe elsewhere; 0 where it goes nowhere.
        flush_ns: Journal and loggers.
        teardown_ns: Loaders, workers, process groups.
        exit_ns: The interpreter's own exit.
    """

    step_ns: int = 2 * NS_PER_S
    save_ns: int = 30 * NS_PER_S
    upload_ns: int = 0
    flush_ns: int = 2 * NS_PER_S
    teardown_ns: int = 5 * NS_PER_S
    exit_ns: int = EXIT_PRIOR_NS


@dataclass(frozen=True, kw_only=True, slots=True)
class StopSamples:
    """What has been measured of each part, of this and earlier attempts, in nanoseconds of wall time.

    Args:
        step_ns: Optimizer steps, the slowest rank's where that is known.
        save_ns: Checkpoints, from the call until training could go on.
        upload_ns: From then until they were safe elsewhere.
        flush_ns: Flushes of journal and loggers.
        teardown_ns: Teardowns of earlier attempts.
        exit_ns: From the last line of earlier attempts to the end of their processes.
    """

    step_ns: Sequence[int] = ()
    save_ns: Sequence[int] = ()
    upload_ns: Sequence[int] = ()
    flush_ns: Sequence[int] = ()
    teardown_ns: Sequence[int] = ()
    exit_ns: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reserve:
    """The price of stopping, part by part.

    Args:
        parts_ns: Wall time by part: step, save, upload, flush, teardown, exit, agreement, quantum.
        measured: Parts that rest on measurements of this run; the others are assumed.
    """

    parts_ns: Mapping[str, int]
    measured: frozenset[str] = field(default_factory=frozenset)

    @property
    def ns(self) -> int:
        """Wall time in nanoseconds, all parts."""
        return sum(self.parts_ns.values())

    def device_ns(self, devices: int) -> int:
        """Device time in nanoseconds, given the paid devices."""
        return self.ns * devices

    def amount(self, devices: int, money_per_device_ns: Fraction | None) -> Amount:
        """Money and device time, given the paid devices and the dearest rate that may hold while it stops."""
        device_ns = self.device_ns(devices)
        money = None if money_per_device_ns is None else device_ns * money_per_device_ns
        return Amount(money=money, device_ns=device_ns)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {"parts_ns": dict(self.parts_ns), "measured": sorted(self.measured)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Reserve:
        """Read what `to_json` wrote."""
        return Reserve(parts_ns=dict(data["parts_ns"]), measured=frozenset(data["measured"]))


def price_of_stopping(
    samples: StopSamples,
    *,
    priors: StopPriors | None = None,
    agreement_steps: int = 0,
    agreement_ns: int = 0,
    quantum_ns: int = 0,
) -> Reserve:
    """Sum up what passes, at worst, from the last moment to decide until nothing is billed any more.

    Args:
        samples: What has been measured.
        priors: What is assumed until then.
        agreement_steps: Whole steps between two looks at the budget plus those between a decision and its step, >= 0.
        agreement_ns: Further delay of the agreement that is not steps.
        quantum_ns: What the vendor rounds up to, for example 60 s; 0 where it bills to the second or finer.

    Returns:
        The parts: the 99th percentile of a step, the 95th of all else.

    Raises:
        ConfigError: If a delay is negative.
    """
    for name, value in (("steps", agreement_steps), ("ns", agreement_ns)):
        if value < 0:
            raise config_error(f"price_of_stopping(agreement_{name}={value!r}): negative; expected 0 or more.")
    if quantum_ns < 0:
        raise config_error(f"price_of_stopping(quantum_ns={quantum_ns!r}): negative; expected 0 or more.")
    priors = priors or StopPriors()
    parts: dict[str, int] = {}
    measured: set[str] = set()
    for name in ("step", "save", "upload", "flush", "teardown", "exit"):
        seen: Sequence[int] = getattr(samples, f"{name}_ns")
        if seen:
            measured.add(name)
        high = upper_bound(seen, STEP_QUANTILE if name == "step" else QUANTILE)
        parts[name] = getattr(priors, f"{name}_ns") if high is None else high
    parts["agreement"] = agreement_steps * parts["step"] + agreement_ns
    parts["quantum"] = quantum_ns
    return Reserve(parts_ns=parts, measured=frozenset(measured))


def upper_bound(samples: Sequence[int], quantile: float) -> int | None:
    """A quantile, or while there are too few samples to have one, their maximum and something on top.

    The next of n like values is above all of them once in n + 1 times; so with fewer than 1 / (1 - quantile)
    samples, 1/n of the maximum is added: a first save may take twice as long as the one before.

    Args:
        samples: Measured values, >= 0.
        quantile: 0 to 1.

    Returns:
        The bound, `None` without samples.

    Source:
        The chance 1/(n + 1) is exact for exchangeable values; the margin of 1/n is chosen, not measured.
    """
    if not samples:
        return None
    ordered, n = sorted(samples), len(samples)
    if n < round(1 / (1 - quantile)):
        return math.ceil(ordered[-1] * (1 + Fraction(1, n)))
    return ordered[min(n - 1, math.ceil(quantile * n) - 1)]


def save_prior_ns(checkpoint_bytes: int, bytes_per_s: float | None) -> int | None:
    """What a first save may take, from its size and a measured bandwidth.

    Args:
        checkpoint_bytes: Size of the checkpoint, >= 0.
        bytes_per_s: Measured bandwidth of the disk or store, `None` if unknown.

    Returns:
        Nanoseconds, `None` if the bandwidth is unknown or not positive.
    """
    if bytes_per_s is None or not math.isfinite(bytes_per_s) or bytes_per_s <= 0:
        return None
    return math.ceil(FIRST_SAVE_FACTOR * checkpoint_bytes / bytes_per_s * NS_PER_S)


@dataclass(frozen=True, slots=True)
class PartScore:
    """One part of a reserve, predicted and real, in nanoseconds; real is `None` where it was not measured."""

    part: str
    predicted_ns: int
    real_ns: int | None

    @property
    def covered(self) -> bool | None:
        """Whether the prediction was enough."""
        return None if self.real_ns is None else self.real_ns <= self.predicted_ns


def score_reserve(predicted: Reserve, real_ns: Mapping[str, int]) -> tuple[PartScore, ...]:
    """Compare a reserve with what stopping took, for the receipt.

    Args:
        predicted: The reserve that the run stopped by.
        real_ns: Wall time by part, as far as it was measured.

    Returns:
        A row for each part; last `total`, whose real time is known only where each part's is.
    """
    names = [*predicted.parts_ns, *(name for name in real_ns if name not in predicted.parts_ns)]
    rows = [PartScore(name, predicted.parts_ns.get(name, 0), real_ns.get(name)) for name in names]
    known = [row.real_ns for row in rows if row.real_ns is not None]
    total = sum(known) if len(known) == len(rows) else None
    return (*rows, PartScore("total", predicted.ns, total))
