"""The words every room uses: activities, outcomes, verdicts and metric keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any


class Activity(IntEnum):
    """What a device was being paid for at an instant; a closed set, exactly one at a time.

    The numbers are written into memory-mapped pages: append, never renumber.
    """

    PROVISION = 0
    STARTUP = 1
    RESTORE = 2
    COMPILE = 3
    DATA_WAIT = 4
    TRAIN = 5
    VALIDATION = 6
    CHECKPOINT = 7
    DEMOTION = 8
    LOGGING = 9
    METERING = 10
    IDLE = 11
    HUNG = 12
    TEARDOWN = 13
    GAP = 14

    @property
    def label(self) -> str:
        """The activity's name as it is written in journals and reports."""
        return self.name.lower()


ACTIVITY_LABELS: tuple[str, ...] = tuple(a.label for a in Activity)


class Outcome(str, Enum):
    """What train time turned out to be worth; known only later, so a second axis beside the activity."""

    KEPT = "kept"
    REWORK = "rework"
    SKIPPED = "skipped"
    STALLED = "stalled"


class Action(str, Enum):
    """What a verdict asks for."""

    LOG = "log"
    ALERT = "alert"
    WARN = "warn"
    STOP = "stop"
    REFUSE = "refuse"


ACTIONS_IN_ORDER: tuple[Action, ...] = (Action.LOG, Action.WARN, Action.ALERT, Action.STOP, Action.REFUSE)
"""What is done first where several things are to be done: what informs comes before what ends the process."""
ENDING_ACTIONS: frozenset[Action] = frozenset({Action.STOP, Action.REFUSE})
"""Actions that end a run or keep it from starting: never delayed, never folded into a digest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """What something cost or will cost, in both things that can be limited.

    Args:
        money: Exact money, `None` if unpriced.
        device_ns: Device time in nanoseconds, >= 0.
    """

    money: Fraction | None = None
    device_ns: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Add both; the money of a sum with an unpriced part is unknown."""
        known = self.money is not None and other.money is not None
        money = self.money + other.money if known else None  # type: ignore[operator]
        return Amount(money=money, device_ns=self.device_ns + other.device_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A decision with its reason and the numbers behind it.

    Args:
        kind: What was judged, such as `budget`.
        action: What is to be done.
        reason: Short machine-readable cause.
        message: One sentence for the user.
        step: Optimizer step of the decision, if there was one.
        spend: Money spent by then as a decimal string, `None` if unpriced.
        evidence: The figures that the decision was made from.
    """

    kind: str
    action: Action
    reason: str
    message: str
    step: int | None = None
    spend: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """One value that is put into the user's logger.

    Args:
        key: Name in the logger.
        unit: Unit of the value.
        meaning: One sentence.
    """

    key: str
    unit: str
    meaning: str


METRICS: tuple[Metric, ...] = (
    Metric("costguard/spend_usd", "USD", "Spent by this run so far, over all attempts and paid devices."),
    Metric("costguard/usd_per_hour", "USD/h", "What the whole allocation costs per hour now."),
    Metric("costguard/usd_per_million_tokens", "USD", "Spend divided by millions of tokens trained and kept."),
    Metric("costguard/usd_per_exaflop", "USD", "Spend divided by 10^18 model FLOPs that were trained and kept."),
    Metric(
        "costguard/mfu_ratio", "ratio", "Model FLOPs utilisation of train time, full attention (6ND if not counted)."
    ),
    Metric("costguard/mfu_billed_ratio", "ratio", "The same of all device time that is billed."),
    Metric("costguard/hfu_ratio", "ratio", "Hardware FLOPs utilisation of train time: with recomputed activations."),
    Metric("costguard/model_flops_per_s", "FLOP/s", "Model FLOPs per second of the last minute, all ranks together."),
    Metric("costguard/flops_vs_6nd_ratio", "ratio", "Model FLOPs counted over the 6ND estimate."),
    Metric("costguard/tokens_per_s", "tokens/s", "Tokens per second of the last minute, all ranks together."),
    Metric("costguard/waste_ratio", "ratio", "Share of device time that was neither kept training nor validation."),
    Metric("costguard/forecast_usd", "USD", "Spend expected at the end of the plan at the present pace."),
    Metric("costguard/device_hours", "device-h", "Paid device-hours so far, over all attempts."),
    Metric("costguard/tokens", "tokens", "Tokens trained and kept so far, over all ranks, padding apart."),
    Metric("costguard/gpu_power_w", "W", "Power that this process's GPU draws."),
    Metric("costguard/gpu_sm_clock_mhz", "MHz", "Clock of its multiprocessors."),
    Metric("costguard/gpu_memory_used_bytes", "bytes", "Its memory in use, by anybody."),
    Metric("costguard/gpu_utilization_ratio", "ratio", "Share of the last second in which any kernel ran on it."),
    Metric("costguard/energy_kwh", "kWh", "Energy it took in this attempt."),
)
METRIC_KEYS: frozenset[str] = frozenset(m.key for m in METRICS)
