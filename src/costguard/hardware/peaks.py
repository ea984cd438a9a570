"""The FLOP/s that a card can do at most, by the exact name that its driver reports and the dtype of the products."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from typing import Any

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
"""Dtypes that matrix products run in; `tf32` is what fp32 products are where TensorFloat-32 is allowed."""

_SPELLINGS = {
    "fp64": ("float64", "double", "64-true"),
    "fp32": ("float32", "float"),
    "bf16": ("bfloat16", "bf16-mixed", "bf16-true"),
    "fp16": ("float16", "half", "16-mixed", "16-true"),
    "fp8": ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    "fp4": ("float4_e2m1fn_x2", "nvfp4", "mxfp4"),
}
_CANONICAL = {name: name for name in DTYPES} | {s: name for name, spelt in _SPELLINGS.items() for s in spelt}
FIRST_CAPABILITY = {"fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}
"""Compute capability with which tensor cores for a dtype came. Source: CUDA C++ programming guide 13, 17."""
_VECTOR_DTYPES = ("fp64", "fp32")  # at the highest clock, also where tensor cores are rated at a lower one
_MIG = re.compile(r"(?P<card>.+) (?P<slice>mig (?:\d+c\.)?\d+g\.\d+gb(?:[+-]\S+)?)")
_REMEDY = "state it with peak_flops_per_s="


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of one device in one dtype, or why it is unknown.

    Args:
        flops_per_s: Dense FLOP/s (no sparsity), or `None` where it is unknown.
        source: Where the number comes from, for the receipt; "unknown" where there is none.
        estimated: Whether the number was derived instead of read from a datasheet.
        reason: Why there is no number, or why it is an estimate; else `None`.
    """

    flops_per_s: float | None
    source: str
    estimated: bool
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    names: list[str]
    compute_capability: str
    sm_count: int
    tensor_mhz: int
    dense_tflops: dict[str, float]
    source: str
    date: str
    missing: dict[str, str] = field(default_factory=dict)
    estimated: str | None = None
    name_is_shared: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formula:
    compute_capability: str
    flops_per_clock_per_sm: dict[str, int]
    tensor_clock_ratio: float
    source: str
    except_sm_counts: list[int] = field(default_factory=list)
    ambiguous: str | None = None


def find_peak(
    device_name: str,
    dtype: str,
    *,
    sm_count: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    max_clock_mhz: float | None = None,
) -> Peak:
    """Find the dense peak of a device: from the table by its exact name, else by a formula, else unknown.

    Nothing is matched by a part of its name: Laptop, Max-Q, D, PCIe, NVL and SXM parts are cards of their own. A MIG
    slice gets the share of its SMs. It raises nothing: what is unknown has its reason in the result.

    Args:
        device_name: Name as the driver reports it (`torch.cuda.get_device_name`, NVML), with or without "NVIDIA ".
        dtype: What the matrix products run in: one of `DTYPES`, a torch dtype's name, or a precision of Lightning
            that says it ("bf16-mixed"; "32-true" does not, since it may be tf32).
        sm_count: Streaming multiprocessors that the driver reports, those of the slice under MIG. Needed for MIG and
            for names that several cards share; where it contradicts the table the peak is unknown.
        compute_capability: Such as (9, 0); for cards that are not in the table.
        max_clock_mhz: Highest SM clock that the driver reports, in MHz; for cards that are not in the table.

    Returns:
        The peak in FLOP/s with its source, or the reason why there is none.

    Source:
        `peaks.toml` beside this module: datasheets and whitepapers of NVIDIA, each row with its own.

    Example:
        >>> peak = find_peak("NVIDIA H200", "bf16")
        >>> peak.flops_per_s, peak.source
        (989400000000000.0, 'table: NVIDIA H200, bf16 dense, 2026-11')
        >>> find_peak("NVIDIA H100", "bf16").flops_per_s is None
        True
    """
    kind = canonical_dtype(dtype)
    if kind is None:
        return _unknown(f"{dtype!s} is none of {', '.join(DTYPES)}")
    name = _normalised(device_name)
    whole, mig = name, None
    if match := _MIG.fullmatch(name):
        whole, mig = match["card"], match["slice"]
    table = _table()
    if whole in table.ambiguous:
        return _unknown(f"{device_name.strip()} names no single card: {table.ambiguous[whole]}")
    if card := table.cards.get(whole):
        official = next(n for n in card.names if _normalised(n) == whole)
        return _from_row(card, official, kind, mig, sm_count)
    return _from_formula(device_name.strip(), whole, kind, sm_count, compute_capability, max_clock_mhz)


def canonical_dtype(dtype: str) -> str | None:
    """Read the name of a dtype: `"torch.bfloat16"` and `"bf16-mixed"` are `"bf16"`; `None` where it is none of ours.

    Example:
        >>> canonical_dtype("torch.bfloat16"), canonical_dtype("32-true")
        ('bf16', None)
    """
    return _CANONICAL.get(str(dtype).strip().lower().removeprefix("torch."))


def _from_row(card: _Card, official: str, dtype: str, mig: str | None, sm_count: int | None) -> Peak:
    tflops = card.dense_tflops.get(dtype)
    if tflops is None:
        return _unknown(f"{official} has no {dtype} peak: {_why_missing(card, dtype)}")
    peak = Peak(
        float(round(tflops * 1e12)),
        f"table: {official}, {dtype} dense, {card.date}",
        card.estimated is not None,
        card.estimated,
    )
    if mig is not None:
        return _slice_of(card, official, peak, mig, sm_count)
    if sm_count is None and card.name_is_shared:
        return _unknown(f"{official} needs sm_count= to tell which card it is: {card.name_is_shared}")
    if sm_count not in (None, card.sm_count):
        return _unknown(f"{official} reports {sm_count} SMs where the card of this name has {card.sm_count}")
    return peak


def _slice_of(card: _Card, official: str, whole: Peak, mig: str, sm_count: int | None) -> Peak:
    """Scale the peak of a card to what a MIG slice has of its SMs."""
    if sm_count is None:
        return _unknown(f"a MIG slice of {official} needs sm_count=, the SMs that the slice has")
    if not 0 < sm_count <= card.sm_count or whole.flops_per_s is None:
        return _unknown(f"a MIG slice of {official} cannot have {sm_count} SMs: the card has {card.sm_count}")
    reason = f"scaled to {mig.replace('mig', 'MIG', 1)}" + (f"; {whole.reason}" if whole.reason else "")
    source = f"{whole.source}, {sm_count} of {card.sm_count} SMs"
    return Peak(whole.flops_per_s * sm_count / card.sm_count, source, True, reason)


def _why_missing(card: _Card, dtype: str) -> str:
    first = FIRST_CAPABILITY.get(dtype)
    if dtype in card.missing:
        return card.missing[dtype]
    if first is not None and tuple(map(int, card.compute_capability.split("."))) < first:
        needed = ".".join(map(str, first))
        return f"its compute capability is {card.compute_capability}, and tensor cores for it came with {needed}"
    return "none is published"


def _from_formula(
    shown: str,
    name: str,
    dtype: str,
    sm_count: int | None,
    compute_capability: tuple[int, int] | None,
    max_clock_mhz: float | None,
) -> Peak:
    unlisted = f"{shown or 'a device without a name'} is not in the table{_similar(name)}"
    if {"laptop", "max-q"} & set(name.split()):
        return _unknown(f"{unlisted}; the peak of such a part depends on its power limit")
    if not (sm_count and compute_capability and max_clock_mhz) or min(sm_count, max_clock_mhz) < 0:
        return _unknown(unlisted)
    capability = ".".join(map(str, compute_capability))
    formula = _table().formulas.get(capability)
    if formula is None:
        return _unknown(f"{unlisted}, and neither is compute capability {capability}")
    rate = formula.flops_per_clock_per_sm.get(dtype)
    if rate is None or (sm_count in formula.except_sm_counts and dtype not in _VECTOR_DTYPES):
        why = f": {formula.ambiguous}" if formula.ambiguous else ""
        return _unknown(f"{unlisted}, and compute capability {capability} alone gives no {dtype} peak{why}")
    ratio = 1.0 if dtype in _VECTOR_DTYPES else formula.tensor_clock_ratio
    terms = f"{sm_count} SMs x {rate} FLOP/clk x {max_clock_mhz:g} MHz" + (f" x {ratio:g}" if ratio != 1 else "")
    source = f"estimate: {terms}, {dtype} dense, compute capability {capability}"
    return Peak(sm_count * rate * max_clock_mhz * 1e6 * ratio, source, True, unlisted)


def _similar(name: str) -> str:
    """Name the cards of the table that a shortened name may have meant."""
    names = [
        n for card in _table().cards.values() for n in card.names if re.match(rf"{re.escape(name)}\b", _normalised(n))
    ]
    return f" (did you mean {' or '.join(dict.fromkeys(names))}?)" if name and names else ""


def _unknown(why: str) -> Peak:
    return Peak(None, "unknown", False, f"{why}; {_REMEDY}")


def _normalised(name: str) -> str:
    """Trim, collapse spaces, ignore case, and drop the prefixes that drivers add or leave out."""
    return " ".join(name.split()).casefold().removeprefix("nvidia ").removeprefix("tesla ")


@dataclass(frozen=True, slots=True)
class _Table:
    cards: Mapping[str, _Card]
    ambiguous: Mapping[str, str]
    formulas: Mapping[str, _Formula]


@lru_cache(maxsize=1)
def _table() -> _Table:
    data = read_rows()
    cards = [_Card(**row) for row in data["card"]]
    return _Table(
        cards={_normalised(name): card for card in cards for name in card.names},
        ambiguous={_normalised(name): row["reason"] for row in data["ambiguous"] for name in row["names"]},
        formulas={row["compute_capability"]: _Formula(**row) for row in data["formula"]},
    )


def read_rows() -> dict[str, list[dict[str, Any]]]:
    """Read `peaks.toml` as it stands: the lists `card`, `ambiguous` and `formula`."""
    # By name, since Python 3.10 has no tomllib and newer ones need no tomli.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = files("costguard.hardware").joinpath("peaks.toml").read_text(encoding="utf-8")
    rows: dict[str, list[dict[str, Any]]] = toml.loads(text)
    return rows
