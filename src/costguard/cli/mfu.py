"""`costguard mfu`: model FLOPs and their share of the peak, from a few counts, without a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from textwrap import wrap
from typing import Any

from costguard.errors import ConfigError
from costguard.flops import FlopsPerToken, flops_per_token
from costguard.hardware.peaks import DTYPES, Peak, canonical_dtype, find_peak
from costguard.units import format_count

_SCHEMA_VERSION = 1
_MISSING = 5
_WIDTH = 120
_ALARM = "mfu_over_100_percent"
_LARGEST = Decimal("1e30")
_SHAPE = ("layers", "heads", "head_dim", "seq_len")
_NAMES = {"6nd": "6ND", "full_attention": "full attention", "causal": "causal"}
_FORMULAS = {
    "6nd": "6 N, of N parameters (active ones): Kaplan et al. 2020, section 2.1",
    "full_attention": "6 N + 12 L H Q T, of layers, heads, head size, sequence: Chowdhery et al. 2022, appendix B",
    "causal": "6 N + 6 L H Q T, half of the products under a causal mask: Dao 2023, section 4.1",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line."""
    parser = commands.add_parser(
        "mfu",
        help="compute model FLOPs and MFU from a few counts, without a run",
        description="Compute model FLOPs and MFU from a few counts, without a run. Numbers may be written as 8.03e9.",
    )
    add = parser.add_argument
    add("--params", required=True, metavar="N", help="parameters, each counted once (a tied head once)")
    add("--active-params", metavar="N", help="parameters that one token meets, of a mixture of experts")
    add("--layers", metavar="L", help="layers with attention; without the shape only 6ND is known")
    add("--heads", metavar="H", help="query heads of a layer")
    add("--head-dim", metavar="Q", help="size of a head")
    add("--seq-len", metavar="T", help="tokens of a sequence")
    add("--tokens-per-s", required=True, metavar="RATE", help="tokens per second of all GPUs together")
    add("--gpus", default="1", metavar="COUNT", help="GPUs that train (default 1)")
    add("--gpu", metavar="NAME", help="name as nvidia-smi prints it, such as 'NVIDIA H200'")
    add("--dtype", metavar="DTYPE", help=f"what products run in: {', '.join(DTYPES)} (tf32: fp32 where it is allowed)")
    add("--peak-flops-per-s", metavar="RATE", help="dense peak of one GPU in FLOP/s, such as 989.4e12")
    add("--json", action="store_true", help="print JSON (with a schema_version) and nothing else")
    parser.set_defaults(run=_run)


@dataclass(frozen=True, slots=True)
class _Answer:
    per_token: FlopsPerToken
    tokens_per_s: float
    gpus: int
    peak: Peak
    missing: list[str]

    def flops_per_token(self) -> dict[str, int | None]:
        return {str(name): flops for name, flops in self.per_token.by_convention().items()}

    def flops_per_s(self) -> dict[str, float | None]:
        """FLOP/s of all GPUs together."""
        return {n: None if f is None else f * self.tokens_per_s for n, f in self.flops_per_token().items()}

    def mfu(self) -> dict[str, float | None] | None:
        if self.peak.flops_per_s is None:
            return None
        most = self.gpus * self.peak.flops_per_s
        return {n: None if rate is None else rate / most for n, rate in self.flops_per_s().items()}

    def alarms(self) -> list[str]:
        return [_ALARM] if any(ratio and ratio > 1 for ratio in (self.mfu() or {}).values()) else []


def _run(arguments: argparse.Namespace) -> int:
    answer = _answer(arguments)
    if arguments.json:
        print(json.dumps(_data(answer), indent=2))
    else:
        print("\n".join(_text(answer)))
    return 0 if answer.peak.flops_per_s is not None else _MISSING


def _answer(arguments: argparse.Namespace) -> _Answer:
    counts = {
        name: _number(arguments, name, whole=True)
        for name in ("params", "active_params", *_SHAPE)
        if getattr(arguments, name) is not None
    }
    if counts.get("active_params", 0) > counts["params"]:
        raise ConfigError(
            f"mfu --active-params {arguments.active_params}: expected at most --params {arguments.params}, "
            "since a token meets no more parameters than there are."
        )
    return _Answer(
        per_token=flops_per_token(**{name: int(value) for name, value in counts.items()}),
        tokens_per_s=float(_number(arguments, "tokens_per_s")),
        gpus=int(_number(arguments, "gpus", whole=True)),
        peak=_peak(arguments),
        missing=[_option(name) for name in _SHAPE if name not in counts],
    )


def _peak(arguments: argparse.Namespace) -> Peak:
    dtype = arguments.dtype
    if dtype is not None and canonical_dtype(dtype) is None:
        raise ConfigError(f"mfu --dtype {dtype}: expected what the products run in, {' or '.join(DTYPES)}.")
    if arguments.peak_flops_per_s is not None:
        return Peak(float(_number(arguments, "peak_flops_per_s")), "given: --peak-flops-per-s", False, None)
    if arguments.gpu is None or dtype is None:
        lacking = "--gpu" if arguments.gpu is None else "--dtype"
        raise ConfigError(f"mfu: expected {lacking}, or the peak itself as --peak-flops-per-s 989.4e12.")
    return find_peak(arguments.gpu, dtype)


def _number(arguments: argparse.Namespace, name: str, whole: bool = False) -> Decimal:
    """Read a number exactly as it was typed; 8.03e9 is a whole one."""
    text = getattr(arguments, name)
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    least = Decimal(1) if whole or name == "peak_flops_per_s" else Decimal(0)
    if value.is_finite() and least <= value <= _LARGEST and (not whole or value == value.to_integral_value()):
        return value
    kind = "a whole number" if whole else "a number"
    raise ConfigError(f"mfu {_option(name)} {text}: expected {kind} of at least {least}, such as 8.03e9.")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _data(answer: _Answer) -> dict[str, Any]:
    return {
        "schema_version": _SCHEMA_VERSION,
        "mfu": answer.mfu(),
        "peak_flops_per_s": answer.peak.flops_per_s,
        "peak_source": answer.peak.source if answer.peak.flops_per_s is not None else None,
        "peak_estimated": answer.peak.estimated,
        "peak_reason": answer.peak.reason,
        "flops_per_token": answer.flops_per_token(),
        "flops_per_s": answer.flops_per_s(),
        "tokens_per_s": answer.tokens_per_s,
        "gpus": answer.gpus,
        "alarms": answer.alarms(),
    }


def _text(answer: _Answer) -> Iterator[str]:
    ratios = answer.mfu()
    yield _headline(answer)
    yield ""
    yield f"{'':<15} {'FLOP per token':>15} {'FLOP/s per GPU':>15} {'MFU':>8}  formula"
    rates = answer.flops_per_s()
    for name, flops in answer.flops_per_token().items():
        rate = rates[name]
        if flops is not None and rate is not None:
            shown = _percent(ratios[name]) if ratios else "unknown"
            count, speed = format_count(float(flops)), format_count(rate / answer.gpus)
            yield f"{_NAMES[name]:<15} {count:>15} {speed:>15} {shown:>8}  {_FORMULAS[name]}"
    yield ""
    for remark in _remarks(answer):
        yield from wrap(remark, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _headline(answer: _Answer) -> str:
    ratios = answer.mfu()
    if ratios is None:
        rates = {n: r / answer.gpus for n, r in answer.flops_per_s().items() if r is not None}
        parts = [f"{format_count(rate)}FLOP/s per GPU ({_NAMES[name]})" for name, rate in _best_first(rates)]
        return " | ".join(["MFU unknown", *parts])
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    (name, ratio), *others = _best_first(known)
    parts = [f"MFU {_percent(ratio)} ({_NAMES[name]})", *(f"{_percent(r)} {_NAMES[n]}" for n, r in others)]
    star = " (estimated)" if answer.peak.estimated else ""
    return " | ".join([*parts, f"peak {_tflops(answer.peak.flops_per_s)}{star}, {answer.peak.source}"])


def _best_first(values: dict[str, float]) -> list[tuple[str, float]]:
    """Sort by what a convention counts: most first."""
    return [(name, values[name]) for name in ("full_attention", "causal", "6nd") if name in values]


def _remarks(answer: _Answer) -> Iterator[str]:
    peak, six, full = answer.peak, answer.per_token.six_nd, answer.per_token.full_attention
    gpus = "1 GPU" if answer.gpus == 1 else f"{answer.gpus:,} GPUs"
    yield f"{answer.tokens_per_s:,.10g} tokens/s on {gpus}; no recomputation is counted"
    if answer.missing:
        yield f"attention is unknown: add {', '.join(answer.missing)}"
    if full is not None and full - six > six // 10:
        share = (full - six) / six
        yield (
            f"attention adds {share:.1%} to 6ND at this length ({share / 2:.1%} under a causal mask): "
            "name the convention with the number"
        )
    if peak.flops_per_s is None:
        yield f"peak unknown: {peak.reason}, here --peak-flops-per-s 989.4e12"
    elif peak.estimated:
        yield f"peak estimated: {peak.reason}"
    if answer.alarms():
        yield (
            f"ALARM {_ALARM}: no training exceeds the peak. Is --tokens-per-s that of all GPUs and --gpus all of them, "
            "are the parameters the active ones, is the peak dense, of one GPU and in FLOP/s?"
        )


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.1%}"


def _tflops(flops_per_s: float | None) -> str:
    return "unknown" if flops_per_s is None else f"{flops_per_s / 1e12:,.5g} TFLOP/s"
