"""FLOPs of training from a few counts, by published closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import index
from typing import Literal, get_args

from costguard.errors import config_error
from costguard.units import NS_PER_S


def six_nd(parameters: int, tokens: int) -> int:
    """Estimate the model FLOPs of dense transformer training, forward and backward.

    Two per parameter and token forward, four backward. Attention's own products are left out, embeddings and
    frozen parameters are counted as if they were trained, so that it is too low for long sequences and too high
    for LoRA.

    Args:
        parameters: All parameters of the model, each counted once. Count, >= 0.
        tokens: Tokens that went through the model, repeats included. Count, >= 0.

    Returns:
        FLOPs (operations, not a rate), without recomputation.

    Source:
        Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; Hoffmann et al. 2022 (arXiv 2203.15556), appendix F.

    Example:
        >>> six_nd(117_376, 128)
        90144768
    """
    return 6 * parameters * tokens


def utilization(flops: int, device_ns: int, peak_flops_per_s: float) -> float:
    """The share of what devices could have done that was model FLOPs: MFU of a stretch of device time.

    Args:
        flops: Model FLOPs done, over all devices.
        device_ns: Device time in nanoseconds, summed over devices, > 0.
        peak_flops_per_s: Peak FLOP/s of one device, > 0.

    Example:
        >>> utilization(500, 10**9, 1000.0)
        0.5
    """
    return flops / (device_ns / NS_PER_S * peak_flops_per_s)


Convention = Literal["6nd", "full_attention", "causal"]
"""What counts as a model FLOP: the weights alone, attention over all pairs of tokens too, or over half of them."""

CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
LARGEST = 10**30
"""Largest count that is read: beyond it a number is a slip of the keyboard."""


@dataclass(frozen=True, slots=True)
class FlopsPerToken:
    """Model FLOPs of one token, forward and backward, by each convention.

    Args:
        six_nd: Six per parameter; attention's own products are left out.
        full_attention: With the products of queries, keys and values over the whole sequence, as PaLM, nanoGPT and
            torchtitan count; `None` where the model's shape is unknown.
        causal: With half of them, which is what a causal mask leaves, as Megatron-LM counts; `None` likewise.
    """

    six_nd: int
    full_attention: int | None = None
    causal: int | None = None

    def by_convention(self) -> dict[Convention, int | None]:
        """Give the same numbers by the names that `train_flops` takes."""
        return {"6nd": self.six_nd, "full_attention": self.full_attention, "causal": self.causal}


def flops_per_token(
    params: float,
    *,
    active_params: float | None = None,
    layers: float | None = None,
    heads: float | None = None,
    head_dim: float | None = None,
    seq_len: float | None = None,
) -> FlopsPerToken:
    """Count the model FLOPs of training on one token, forward and backward, without recomputation.

    Args:
        params: Parameters of the model, each counted once (a tied head once). Whole number, >= 1; 8.03e9 will do.
            Leave out an untied input embedding if it is not to be counted: a lookup does no arithmetic.
        active_params: Parameters that one token meets, where a mixture of experts uses a part. <= params.
        layers: Layers with attention.
        heads: Query heads of a layer (with grouped queries not the fewer heads of keys and values).
        head_dim: Size of a head.
        seq_len: Tokens of a sequence. Where one of these four is left out, only `six_nd` is known.

    Returns:
        FLOPs per token.

    Raises:
        ConfigError: If a number cannot be, such as more active parameters than there are.

    Source:
        Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; Chowdhery et al. 2022 (PaLM, arXiv 2204.02311), appendix B:
        6 N + 12 L H Q T. Causal: Dao 2023 (FlashAttention-2, arXiv 2307.08691), section 4.1, half of the products.

    Example:
        >>> flops_per_token(8_030_261_248, layers=32, heads=32, head_dim=128, seq_len=8192)
        FlopsPerToken(six_nd=48181567488, full_attention=61066469376, causal=54624018432)
    """
    return _flops_per_token("flops_per_token", params, active_params, layers, heads, head_dim, seq_len)


def train_flops(
    params: float,
    tokens: float,
    *,
    active_params: float | None = None,
    layers: float | None = None,
    heads: float | None = None,
    head_dim: float | None = None,
    seq_len: float | None = None,
    convention: Convention = "6nd",
) -> int:
    """Count the model FLOPs of training on a number of tokens, without recomputation.

    Args:
        params: As for `flops_per_token`, as are the keywords not named here.
        tokens: Tokens that go through the model, repeats included. Whole number, >= 0.
        active_params: Parameters that one token meets.
        layers: Layers with attention.
        heads: Query heads of a layer.
        head_dim: Size of a head.
        seq_len: Tokens of a sequence.
        convention: "6nd", "full_attention" or "causal"; the latter two need the model's shape.

    Returns:
        FLOPs (operations, not a rate).

    Raises:
        ConfigError: If a number cannot be, or the convention needs a shape that was not given.

    Example:
        >>> train_flops(175e9, 300e9)
        315000000000000000000000
    """
    who = "train_flops"
    per_token = _flops_per_token(who, params, active_params, layers, heads, head_dim, seq_len)
    return _chosen(who, per_token, convention) * _whole(who, "tokens", tokens, least=0)


def mfu(
    params: float,
    tokens_per_s: float,
    *,
    gpus: float,
    peak_flops_per_s: float | None,
    active_params: float | None = None,
    layers: float | None = None,
    heads: float | None = None,
    head_dim: float | None = None,
    seq_len: float | None = None,
    convention: Convention = "6nd",
) -> float | None:
    """Divide the model FLOPs that a training does in a second by those that its GPUs could do at most.

    Args:
        params: As for `flops_per_token`, as are the keywords not named here.
        tokens_per_s: Tokens per second of all GPUs together, >= 0. The layout over the GPUs makes no difference.
        gpus: GPUs that train. Whole number, >= 1.
        peak_flops_per_s: Dense peak of one GPU in the dtype of its matrix products, as of
            `costguard.hardware.peaks.find_peak`; `None` where it is unknown.
        active_params: Parameters that one token meets.
        layers: Layers with attention.
        heads: Query heads of a layer.
        head_dim: Size of a head.
        seq_len: Tokens of a sequence.
        convention: "6nd", "full_attention" or "causal"; the latter two need the model's shape.

    Returns:
        Model FLOPs utilisation, a ratio: 0.4 is 40%. Above 1 something is not what it was said to be. `None` where
        the peak is unknown.

    Raises:
        ConfigError: If a number cannot be, or the convention needs a shape that was not given.

    Source:
        Chowdhery et al. 2022 (PaLM, arXiv 2204.02311), appendix B.

    Example:
        >>> round(mfu(540e9, 238.3e3, gpus=6144, peak_flops_per_s=275e12), 4)
        0.457
    """
    who = "mfu"
    per_token = _chosen(who, _flops_per_token(who, params, active_params, layers, heads, head_dim, seq_len), convention)
    rate, count = _rate(who, "tokens_per_s", tokens_per_s), _whole(who, "gpus", gpus)
    if peak_flops_per_s is None:
        return None
    peak = _rate(who, "peak_flops_per_s", peak_flops_per_s, least=1)
    return per_token * rate / (count * peak)


def _flops_per_token(
    who: str,
    params: float,
    active_params: float | None,
    layers: float | None,
    heads: float | None,
    head_dim: float | None,
    seq_len: float | None,
) -> FlopsPerToken:
    total = _whole(who, "params", params)
    active = total if active_params is None else _whole(who, "active_params", active_params)
    if active > total:
        raise config_error(
            f"{who}(active_params={active_params!r}): expected at most params={params!r}, since a token meets no "
            "more parameters than there are."
        )
    shape = {"layers": layers, "heads": heads, "head_dim": head_dim, "seq_len": seq_len}
    given = [_whole(who, name, value) for name, value in shape.items() if value is not None]
    six = six_nd(active, 1)
    if len(given) < len(shape):
        return FlopsPerToken(six)
    # Scores and weighted values: each 2 L H Q T forward and 4 L H Q T backward.
    attention = 12 * prod(given)
    return FlopsPerToken(six, six + attention, six + attention // 2)


def _chosen(who: str, per_token: FlopsPerToken, convention: str) -> int:
    flops = {str(name): value for name, value in per_token.by_convention().items()}
    if convention not in flops:
        raise config_error(f"{who}(convention={convention!r}): expected one of {', '.join(map(repr, CONVENTIONS))}.")
    value = flops[convention]
    if value is None:
        raise config_error(
            f"{who}(convention={convention!r}): expected layers, heads, head_dim and seq_len with it, since "
            "attention's own products depend on them."
        )
    return value


def _whole(who: str, name: str, value: float, least: int = 1) -> int:
    """Read a count exactly; a float may be one, as 8.03e9 is."""
    if isinstance(value, float) and value.is_integer():
        number: int | None = int(value)
    else:
        number = None if isinstance(value, (bool, float)) or not hasattr(value, "__index__") else index(value)
    if number is None or not least <= number <= LARGEST:
        raise config_error(f"{who}({name}={value!r}): expected a whole number of at least {least}, such as 8.03e9.")
    return number


def _rate(who: str, name: str, value: float, least: float = 0) -> float:
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")
    if not least <= number <= LARGEST:
        raise config_error(f"{who}({name}={value!r}): expected a number of at least {least}, such as 989.4e12.")
    return number
