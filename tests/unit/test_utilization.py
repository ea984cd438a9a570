"""Why MFU is low: every cause, its limits, and which of them is said."""

from __future__ import annotations

import dataclasses
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costguard.policies.utilization import IDLE_AFTER_S, UtilizationSignals, is_idle, why_low
from costguard.records import Action

HELD: dict[str, Any] = {"sm_clock_mhz": 990.0, "sm_clock_limit_mhz": 1980.0}
SHORT: dict[str, Any] = {"step_s": 0.02, "data_wait_ratio": 0.0}
GB = 10**9

# What is known, the cause, the share it costs, what the sentence must have.
CAUSES: list[tuple[dict[str, Any], str, float, tuple[str, ...]]] = [
    ({"data_wait_ratio": 0.4}, "data_wait", 0.4, ("40%", "num_workers")),
    ({"padding_ratio": 0.37}, "padding", 0.37, ("37%", "pack")),
    ({"rank_wait_ratio": 0.25}, "rank_wait", 0.25, ("25%", "accumulate_grad_batches")),
    ({"recompiles": 12, "recompile_ratio": 0.3}, "recompiles", 0.3, ("12 recompiles", "30%", "dynamic=True")),
    ({"recompiles": 8}, "recompiles", 0.1, ("8 recompiles", "dynamic=True")),
    ({**HELD, "throttled_ratio": {"power_cap": 0.9}}, "clocks", 0.5, ("990 of 1,980 MHz", "90%", "power limit")),
    ({**HELD, "throttled_ratio": {"hw_slowdown": 1.0, "thermal": 1.0}}, "clocks", 0.5, ("heat", "cooling")),
    ({**HELD, "throttled_ratio": {"thermal": 0.3, "power_cap": 0.8}}, "clocks", 0.5, ("power limit",)),
    ({**HELD, "throttled_ratio": {"bit_20": 0.8, "idle": 1.0}}, "clocks", 0.5, ("bit_20",)),
    ({"recompute_ratio": 0.25, "memory_used_ratio": 0.4}, "recompute", 0.25, ("25%", "60%", "checkpoint fewer")),
    ({"matmul_dtype": "fp32", "has_bf16": True}, "fp32", 0.1, ("fp32", "bf16-mixed")),
    ({"matmul_dtype": "float32", "has_bf16": True, "bf16_speedup": 16.0}, "fp32", 1 - 1 / 16, ("16 times",)),
    ({"matmul_dtype": "tf32", "has_bf16": True, "bf16_speedup": 2.0}, "fp32", 0.5, ("tf32", "2 times")),
    ({**SHORT, "utilization_ratio": 0.3}, "small_batch", 0.7, ("0.02 s", "30%", "batch larger")),
    ({**SHORT, "power_ratio": 0.2, "utilization_ratio": 1.0}, "small_batch", 0.8, ("20% of its power",)),
    ({**SHORT, "power_ratio": 0.2, "memory_used_ratio": 0.4}, "small_batch", 0.8, ("40% of the memory",)),
    ({"memory_used_ratio": 0.18}, "memory_empty", 0.0, ("18%", "82%", "smaller card")),
    ({"memory_used_ratio": 0.25, "price_per_hour": Decimal("2.49")}, "memory_empty", 0.0, ("$1.87 of the $2.49",)),
    ({"memory_used_ratio": 0.25, "price_per_hour": Decimal(8), "currency": "EUR"}, "memory_empty", 0.0, ("€6.00",)),
    ({"memory_used_ratio": 0.1, "memory_total_bytes": 141 * GB}, "memory_empty", 0.0, ("141 GB",)),
    (
        {"reserved_bytes": 60 * GB, "allocated_bytes": 40 * GB, "memory_total_bytes": 80 * GB},
        *("fragmentation", 0.0, ("60.0 GB", "40.0 GB", "expandable_segments")),
    ),
    ({"matmul_dtype": "bfloat16", "has_fp8": True}, "fp8", 0.0, ("fp8", "transformer-engine")),
    ({"nvml_problem": "GPU figures are unknown: no driver."}, "nvml_unknown", 0.0, ("no driver.",)),
]

# Just short of a cause.
NO_CAUSES: list[dict[str, Any]] = [
    {},
    {"data_wait_ratio": 0.099},
    {"padding_ratio": 0.0},
    {"rank_wait_ratio": 0.05},
    {"recompiles": 7},
    {"recompiles": 0, "recompile_ratio": 0.5},
    {"recompiles": 100, "recompile_ratio": 0.01},
    {**HELD},
    {**HELD, "throttled_ratio": {}},
    {**HELD, "throttled_ratio": {"idle": 1.0}},
    {**HELD, "throttled_ratio": {"power_cap": 0.1}},
    {"sm_clock_mhz": 1800.0, "sm_clock_limit_mhz": 1980.0, "throttled_ratio": {"power_cap": 1.0}},
    {"sm_clock_mhz": 900.0, "throttled_ratio": {"power_cap": 1.0}},
    {"throttled_ratio": {"power_cap": 1.0}},
    {"recompute_ratio": 0.25},
    {"recompute_ratio": 0.25, "memory_used_ratio": 0.5},
    {"recompute_ratio": 0.0, "memory_used_ratio": 0.4},
    {"matmul_dtype": "fp32"},
    {"matmul_dtype": "fp32", "has_bf16": False},
    {"matmul_dtype": "fp32", "has_bf16": True, "bf16_speedup": 1.0},
    {"has_bf16": True},
    {"matmul_dtype": "bf16", "has_bf16": True},
    {"utilization_ratio": 0.1},
    {"utilization_ratio": 0.1, "step_s": 0.02},
    {**SHORT, "utilization_ratio": 0.6},
    {**SHORT, "utilization_ratio": 0.3, "step_s": 2.0},
    {**SHORT, "power_ratio": 0.49, "recompile_ratio": 0.45},
    {"memory_used_ratio": 0.3, "price_per_hour": Decimal("2.49")},
    {"price_per_hour": Decimal("2.49")},
    {"reserved_bytes": 60 * GB, "allocated_bytes": 40 * GB},
    {"reserved_bytes": 45 * GB, "allocated_bytes": 40 * GB, "memory_total_bytes": 80 * GB},
    {"reserved_bytes": 2 * GB, "allocated_bytes": 1 * GB, "memory_total_bytes": 80 * GB},
    {"matmul_dtype": "bf16", "has_fp8": False},
    {"matmul_dtype": "fp8", "has_fp8": True},
    {"mfu_ratio": 0.01},
]


def judge(**known: Any) -> Any:
    verdict = why_low(UtilizationSignals(**known))
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(("known", "reason", "lost", "words"), CAUSES)
def test_each_cause_is_said_in_one_sentence(
    known: dict[str, Any], reason: str, lost: float, words: tuple[str, ...]
) -> None:
    """With its number and its remedy, and what it costs as evidence."""
    verdict = judge(**known)
    assert (verdict.kind, verdict.reason) == ("mfu", reason)
    assert verdict.evidence["lost_ratio"] == pytest.approx(lost)
    assert all(word in verdict.message for word in words), verdict.message
    assert verdict.message.endswith(".")
    assert "\n" not in verdict.message
    assert ". " not in verdict.message
    json.dumps(dict(verdict.evidence))


@pytest.mark.parametrize("known", NO_CAUSES)
def test_what_is_small_or_half_known_is_no_cause(known: dict[str, Any]) -> None:
    """Silence, not a guess."""
    assert why_low(UtilizationSignals(**known)) is None


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(UtilizationSignals)])
def test_a_signal_that_is_unknown_is_never_a_cause(name: str) -> None:
    """Take any one away from everything that is bad: what remains is said without it."""
    everything: dict[str, Any] = {}
    for known, *_ in CAUSES:
        everything |= known
    everything |= {"mfu_ratio": 0.1, "step": 5}
    verdict = judge(**{**everything, name: None})
    assert verdict.evidence.get(name) is None
    assert "None" not in verdict.message
    assert "nan" not in verdict.message


def test_the_costliest_cause_is_said_and_the_others_are_named() -> None:
    """By the share that each costs; what only leaves room comes after."""
    verdict = judge(
        data_wait_ratio=0.2,
        padding_ratio=0.5,
        memory_used_ratio=0.1,
        matmul_dtype="bf16",
        has_fp8=True,
        nvml_problem="x",
    )
    assert verdict.reason == "padding"
    assert verdict.evidence["also"] == ["data_wait", "memory_empty", "fp8", "nvml_unknown"]


def test_low_utilisation_from_waiting_for_data_is_no_small_batch() -> None:
    """A GPU that waits 70% of the time is idle 70% of the time: the batch is not to blame."""
    verdict = judge(step_s=0.02, data_wait_ratio=0.7, utilization_ratio=0.3)
    assert verdict.reason == "data_wait"
    assert verdict.evidence["also"] == []


def test_the_sentence_begins_with_the_mfu_where_it_is_known() -> None:
    """And the verdict carries the step."""
    verdict = judge(mfu_ratio=0.183, step=40, padding_ratio=0.5)
    assert verdict.message.startswith("MFU is 18%: 50% of all tokens are padding")
    assert verdict.step == 40


@pytest.mark.parametrize(
    ("known", "action"),
    [
        ({"padding_ratio": 0.5}, Action.WARN),
        ({"memory_used_ratio": 0.1}, Action.WARN),
        ({"matmul_dtype": "bf16", "has_fp8": True}, Action.LOG),
        ({"nvml_problem": "x"}, Action.LOG),
    ],
)
def test_what_costs_money_warns_and_what_might_is_logged(known: dict[str, Any], action: Action) -> None:
    """It never stops anything."""
    assert judge(**known).action is action


RATIOS = [f.name for f in dataclasses.fields(UtilizationSignals) if f.name.endswith("_ratio")]
RATIOS.remove("throttled_ratio")


@given(st.fixed_dictionaries({name: st.none() | st.floats() | st.floats(0, 1) for name in RATIOS}))
def test_what_is_no_number_is_unknown(known: dict[str, float | None]) -> None:
    """Whatever the ratios: no exception, and the same verdict as without those that are not finite."""
    rest: dict[str, Any] = {"step_s": 0.01, "recompiles": 9, "matmul_dtype": "bf16", "price_per_hour": Decimal(2)}
    finite = {name: value if value is not None and math.isfinite(value) else None for name, value in known.items()}
    assert why_low(UtilizationSignals(**known, **rest)) == why_low(UtilizationSignals(**finite, **rest))


@pytest.mark.parametrize(
    ("idle_for_s", "others", "idle"),
    [
        (IDLE_AFTER_S, 0, True),
        (IDLE_AFTER_S * 9, 0, True),
        (IDLE_AFTER_S - 1, 0, False),
        (IDLE_AFTER_S, 1, False),
        (IDLE_AFTER_S, None, False),
        (None, 0, False),
        (None, None, False),
    ],
)
def test_idle_takes_both_half_an_hour_and_nobody_else(idle_for_s: float | None, others: int | None, idle: bool) -> None:
    """What is unknown makes nothing idle."""
    assert is_idle(idle_for_s=idle_for_s, other_process_count=others) is idle
