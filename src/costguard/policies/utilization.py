"""Why a GPU does less than it could, in one sentence, from signals that cost next to nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

from costguard.records import Action, Verdict
from costguard.units import format_duration_s, format_money

IDLE_AFTER_S = 30 * 60.0
"""How long a GPU has to do next to nothing before it is called idle."""

# The limits below are chosen, not measured.
SHARE_RATIO = 0.1
"""A loss below this share of the time is not worth a sentence; also what one counts as whose size is unknown."""
HELD_DOWN_RATIO = 0.85
"""A mean clock below this share of its limit is held down."""
THROTTLED_RATIO = 0.2
"""Share of the readings in which a reason must stand."""
BUSY_RATIO = 0.5
"""Below this share of its time or its power a GPU waits to be given work."""
SHORT_STEP_S = 0.2
"""Up to this length of a step, launching kernels can take longer than running them."""
MEMORY_RATIO = 0.3
"""Below this share in use, memory is nearly empty."""
ROOM_RATIO = 0.5
"""Below this share in use, memory has room for activations that are now recomputed."""
FRAGMENTED_RATIO = 1.3
"""Reserved over allocated from which on it is called fragmentation."""
MANY_RECOMPILES = 8
"""Recompiles that are a cause though their time is unknown. Source: `torch._dynamo.config.recompile_limit`, 2.13."""

_HELD_BY: Mapping[str, str] = {
    "thermal": "heat (the hardware's own brake); look at the cooling of the node",
    "power_brake": "the node's power supply",
    "hw_slowdown": "the hardware's own brake, for heat or power",
    "sw_thermal": "heat; look at the cooling of the node",
    "power_cap": "the power limit; raise it (`nvidia-smi -pl`), or take this for the card's speed",
    "sync_boost": "the slowest card of its sync-boost group",
    "app_clocks": "a setting, which `nvidia-smi -rac` and `nvidia-smi -rgc` lift",
    "board_limit": "the board's limit",
    "reliability": "the limit of its voltage",
    "display_clock": "the clock of a display",
}
"""What to say of each of `hardware.nvml.REASONS`; where several stand equally often, the first explains the most."""
_FP32 = frozenset({"fp32", "float32", "tf32"})
_FP16 = frozenset({"bf16", "bfloat16", "fp16", "float16"})


@dataclass(frozen=True, kw_only=True, slots=True)
class UtilizationSignals:
    """What is known about a stretch of training; `None` is unknown and never a reason for anything.

    A float that is no finite number is unknown.

    Args:
        step: Optimizer step at its end.
        mfu_ratio: MFU in train time.
        step_s: Mean time of a step.
        sm_clock_mhz: Mean clock of the multiprocessors under load.
        sm_clock_limit_mhz: The highest that they have.
        throttled_ratio: Share of readings in which the clock was held down, by reason (`costguard.hardware.nvml`).
        utilization_ratio: Mean utilisation as NVML has it: any kernel, however small.
        power_ratio: Mean power over the power limit.
        data_wait_ratio: Share of the time in which the device waited for a batch.
        padding_ratio: Share of padding among all tokens.
        rank_wait_ratio: Share of a step in which ranks wait for each other.
        recompiles: Compilations after the warm-up.
        recompile_ratio: Share of the time that they took.
        recompute_ratio: Share of the hardware FLOPs that recompute activations, 0 without checkpointing of them.
        memory_used_ratio: Highest memory in use over all there is.
        memory_total_bytes: Memory of one device.
        reserved_bytes: Highest that torch's allocator holds.
        allocated_bytes: Highest of it that tensors are in.
        matmul_dtype: What the matmuls run in: `fp32`, `tf32`, `bf16`, `fp16`, `fp8` (or torch's names).
        bf16_speedup: Peak in bf16 over the peak in that dtype.
        has_bf16: Whether the card multiplies in bf16.
        has_fp8: Whether the card multiplies in fp8.
        price_per_hour: What all devices cost an hour.
        currency: Of that, US dollars if `None`.
        nvml_problem: Why NVML says nothing, `None` if it does.
    """

    step: int | None = None
    mfu_ratio: float | None = None
    step_s: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_limit_mhz: float | None = None
    throttled_ratio: Mapping[str, float] | None = None
    utilization_ratio: float | None = None
    power_ratio: float | None = None
    data_wait_ratio: float | None = None
    padding_ratio: float | None = None
    rank_wait_ratio: float | None = None
    recompiles: int | None = None
    recompile_ratio: float | None = None
    recompute_ratio: float | None = None
    memory_used_ratio: float | None = None
    memory_total_bytes: int | None = None
    reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    matmul_dtype: str | None = None
    bf16_speedup: float | None = None
    has_bf16: bool | None = None
    has_fp8: bool | None = None
    price_per_hour: Decimal | None = None
    currency: str | None = None
    nvml_problem: str | None = None

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                object.__setattr__(self, name, None)


@dataclass(frozen=True, slots=True)
class _Cause:
    """One cause.

    Args:
        reason: For machines.
        lost_ratio: Share of the time, or of the card's arithmetic, that it costs; 0 for what only leaves room.
        sentence: For people.
        evidence: The figures.
        action: What it asks for.
    """

    reason: str
    lost_ratio: float
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    action: Action = Action.WARN


def why_low(signals: UtilizationSignals) -> Verdict | None:
    """Say the strongest cause of low utilisation.

    Causes that cost time come first, by how much they cost; then what leaves room: nearly empty memory, fragmentation,
    fp8, in this order; last that NVML says nothing.

    Args:
        signals: What is known.

    Returns:
        A verdict of kind `mfu`, whose evidence names weaker causes under `also`; `None` if nothing known is a cause.
    """
    causes = [cause for find in _FINDERS if (cause := find(signals)) is not None]
    if not causes:
        return None
    causes.sort(key=lambda cause: -cause.lost_ratio)  # stable: equal ones keep their order
    first = causes[0]
    sentence = f"{first.sentence[0].upper()}{first.sentence[1:]}."
    if signals.mfu_ratio is not None:
        sentence = f"MFU is {_percent(signals.mfu_ratio)}: {first.sentence}."
    evidence = {**first.evidence, "lost_ratio": first.lost_ratio, "mfu_ratio": signals.mfu_ratio}
    return Verdict(
        kind="mfu",
        action=first.action,
        reason=first.reason,
        message=sentence,
        step=signals.step,
        evidence={**evidence, "also": [cause.reason for cause in causes[1:]]},
    )


def is_idle(*, idle_for_s: float | None, other_process_count: int | None) -> bool:
    """Whether a GPU is held for nothing: under 5% for 30 minutes, and no process of others computes on it.

    Args:
        idle_for_s: How long it has been under 5% by now (`GpuTotals.idle_for_s`).
        other_process_count: Processes on it that are not ours; unknown is not none.
    """
    return idle_for_s is not None and idle_for_s >= IDLE_AFTER_S and other_process_count == 0


def _percent(ratio: float) -> str:
    return f"{ratio:.0%}" if ratio >= 0.01 or ratio == 0 else f"{ratio:.2%}"


def _share(signals: UtilizationSignals, reason: str, sentence: str) -> _Cause | None:
    ratio: float | None = getattr(signals, f"{reason}_ratio")
    if ratio is None or not ratio >= SHARE_RATIO:
        return None
    return _Cause(reason, ratio, sentence.format(_percent(ratio)), {f"{reason}_ratio": ratio})


def _data_wait(s: UtilizationSignals) -> _Cause | None:
    cure = "give the DataLoader more `num_workers` and a higher `prefetch_factor`, or decode and tokenise beforehand"
    return _share(s, "data_wait", f"the GPU waits for data in {{}} of the time; {cure}")


def _padding(s: UtilizationSignals) -> _Cause | None:
    return _share(s, "padding", "{} of all tokens are padding; pack sequences, or batch them by length")


def _rank_wait(s: UtilizationSignals) -> _Cause | None:
    cure = "synchronise less often (`Trainer(accumulate_grad_batches=...)`), and give every rank as much work"
    return _share(s, "rank_wait", f"ranks wait for each other in {{}} of a step; {cure}")


def _clocks(s: UtilizationSignals) -> _Cause | None:
    if s.sm_clock_mhz is None or not s.sm_clock_limit_mhz or s.throttled_ratio is None:
        return None
    ratio = s.sm_clock_mhz / s.sm_clock_limit_mhz
    why = _held_by(s.throttled_ratio)
    if why is None or not ratio < HELD_DOWN_RATIO:
        return None
    sentence = (
        f"the SM clock is held at {s.sm_clock_mhz:,.0f} of {s.sm_clock_limit_mhz:,.0f} MHz, in "
        f"{_percent(s.throttled_ratio[why])} of the readings by {_HELD_BY.get(why, why)}"
    )
    evidence = {"sm_clock_mhz": s.sm_clock_mhz, "sm_clock_limit_mhz": s.sm_clock_limit_mhz, "held_by": why}
    return _Cause("clocks", 1 - ratio, sentence, {**evidence, "throttled_ratio": dict(s.throttled_ratio)})


def _held_by(throttled_ratio: Mapping[str, float]) -> str | None:
    """The reason that stands most often; among equals the one that explains most."""
    known = [name for name in _HELD_BY if name in throttled_ratio]
    names = [*known, *(name for name in throttled_ratio if name not in _HELD_BY and name != "idle")]
    standing = [name for name in names if throttled_ratio[name] >= THROTTLED_RATIO]
    return max(standing, key=lambda name: throttled_ratio[name], default=None)


def _recompiles(s: UtilizationSignals) -> _Cause | None:
    if not s.recompiles:
        return None
    if s.recompile_ratio is None:
        lost_ratio, took = (SHARE_RATIO if s.recompiles >= MANY_RECOMPILES else 0.0), ""
    else:
        lost_ratio, took = s.recompile_ratio, f" in {_percent(s.recompile_ratio)} of the time"
    if not lost_ratio >= SHARE_RATIO:
        return None
    sentence = (
        f"{s.recompiles:,} recompiles{took}; pad batches to a few sizes, or `torch.compile(dynamic=True)` "
        "(`TORCH_LOGS=recompiles` names the causes)"
    )
    evidence = {"recompiles": s.recompiles, "recompile_ratio": s.recompile_ratio}
    return _Cause("recompiles", lost_ratio, sentence, evidence)


def _recompute(s: UtilizationSignals) -> _Cause | None:
    if not s.recompute_ratio or s.memory_used_ratio is None or not s.memory_used_ratio < ROOM_RATIO:
        return None
    sentence = (
        f"{_percent(s.recompute_ratio)} of the arithmetic recomputes activations while "
        f"{_percent(1 - s.memory_used_ratio)} of the memory is never used; checkpoint fewer layers, or none"
    )
    evidence = {"recompute_ratio": s.recompute_ratio, "memory_used_ratio": s.memory_used_ratio}
    return _Cause("recompute", s.recompute_ratio, sentence, evidence)


def _fp32(s: UtilizationSignals) -> _Cause | None:
    if s.matmul_dtype not in _FP32 or not s.has_bf16:
        return None
    lost_ratio, gain = SHARE_RATIO, ""
    if s.bf16_speedup is not None:
        lost_ratio, gain = 1 - 1 / max(s.bf16_speedup, 1.0), f", up to {s.bf16_speedup:.3g} times as fast"
    if not lost_ratio >= SHARE_RATIO:
        return None
    sentence = f"matmuls run in {s.matmul_dtype} on a card that has bf16{gain}; try `Trainer(precision='bf16-mixed')`"
    return _Cause("fp32", lost_ratio, sentence, {"matmul_dtype": s.matmul_dtype, "bf16_speedup": s.bf16_speedup})


def _small_batch(s: UtilizationSignals) -> _Cause | None:
    """Low utilisation or power at short steps, as far as neither data nor compilation explains it."""
    known = [ratio for ratio in (s.utilization_ratio, s.power_ratio) if ratio is not None]
    if not known or s.data_wait_ratio is None or s.step_s is None or not s.step_s <= SHORT_STEP_S:
        return None
    lost_ratio = 1 - min(known) - s.data_wait_ratio - (s.recompile_ratio or 0.0)
    if not min(known) < BUSY_RATIO or not lost_ratio >= SHARE_RATIO:
        return None
    busy = "" if s.utilization_ratio is None else f" busy in {_percent(s.utilization_ratio)} of the time"
    power = "" if s.power_ratio is None else f" at {_percent(s.power_ratio)} of its power"
    room = "" if s.memory_used_ratio is None else f" ({_percent(s.memory_used_ratio)} of the memory is in use)"
    sentence = (
        f"steps of {format_duration_s(s.step_s)} keep the GPU{busy}{power}; make the batch larger{room}, or launch "
        "less (`torch.compile(mode='reduce-overhead')`)"
    )
    evidence = {"step_s": s.step_s, "utilization_ratio": s.utilization_ratio, "power_ratio": s.power_ratio}
    return _Cause("small_batch", lost_ratio, sentence, evidence)


def _memory(s: UtilizationSignals) -> _Cause | None:
    used = s.memory_used_ratio
    if used is None or not used < MEMORY_RATIO:
        return None
    of = "" if s.memory_total_bytes is None else f" ({s.memory_total_bytes / 1e9:,.0f} GB)"
    money = price = None
    if s.price_per_hour is not None:
        empty = Fraction(s.price_per_hour) * Fraction(max(0.0, 1 - used))
        money, price = (format_money(amount, s.currency or "USD") for amount in (empty, s.price_per_hour))
    share = f", {money} of the {price} an hour by share" if money else ""
    sentence = (
        f"only {_percent(used)} of the memory{of} is ever used, {_percent(1 - used)} stays empty{share}; a larger "
        "batch may use the card better, or a smaller card do as well"
    )
    return _Cause("memory_empty", 0.0, sentence, {"memory_used_ratio": used, "empty_per_hour": money})


def _fragmentation(s: UtilizationSignals) -> _Cause | None:
    if not s.reserved_bytes or not s.allocated_bytes or not s.memory_total_bytes:
        return None
    spare = s.reserved_bytes - s.allocated_bytes
    if s.reserved_bytes < FRAGMENTED_RATIO * s.allocated_bytes or spare < SHARE_RATIO * s.memory_total_bytes:
        return None
    sentence = (
        f"torch reserves {s.reserved_bytes / 1e9:,.1f} GB for {s.allocated_bytes / 1e9:,.1f} GB of tensors, so memory "
        "is fragmented; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )
    evidence = {"reserved_bytes": s.reserved_bytes, "allocated_bytes": s.allocated_bytes}
    return _Cause("fragmentation", 0.0, sentence, evidence, Action.LOG)


def _fp8(s: UtilizationSignals) -> _Cause | None:
    if s.matmul_dtype not in _FP16 or not s.has_fp8:
        return None
    sentence = (
        f"matmuls run in {s.matmul_dtype} on a card that multiplies fp8 twice as fast; large linear layers may gain "
        "from `Trainer(precision='transformer-engine')`, if the loss allows"
    )
    return _Cause("fp8", 0.0, sentence, {"matmul_dtype": s.matmul_dtype}, Action.LOG)


def _nvml(s: UtilizationSignals) -> _Cause | None:
    if s.nvml_problem is None:
        return None
    sentence = f"why it is not higher cannot be said in full: {s.nvml_problem.rstrip('.')}"
    return _Cause("nvml_unknown", 0.0, sentence, {"nvml_problem": s.nvml_problem}, Action.LOG)


_FINDERS: tuple[Callable[[UtilizationSignals], _Cause | None], ...] = (
    *(_data_wait, _padding, _clocks, _rank_wait, _recompiles, _recompute, _fp32, _small_batch),
    *(_memory, _fragmentation, _fp8, _nvml),
)
