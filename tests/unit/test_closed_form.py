"""Model FLOPs by closed forms: published runs, whole runs against their bills, invariants, bad values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costguard.errors import ConfigError
from costguard.flops import flops_per_token, mfu, six_nd, train_flops

H100, A100, TPU_V4 = 989.5e12, 312e12, 275e12
HOUR = 3600


def _shape(layers: int, heads: int, head_dim: int, seq_len: int) -> dict[str, int]:
    return {"layers": layers, "heads": heads, "head_dim": head_dim, "seq_len": seq_len}


def _gpt(layers: int, width: int, heads: int, vocabulary: int = 51_200) -> tuple[int, dict[str, int]]:
    """A GPT as Narayanan et al. 2021 count it: 12 L h^2 weights, the head once, no biases; 2048 tokens."""
    return 12 * layers * width**2 + vocabulary * width, _shape(layers, heads, width // heads, 2048)


@dataclass(frozen=True)
class Row:
    """A published run and its MFU in percent, by convention."""

    name: str
    params: float
    tokens_per_s: float
    gpus: int
    peak: float
    percent: dict[str, float]
    shape: dict[str, int] = field(default_factory=dict)


def _megatron(
    name: str, gpt: tuple[int, dict[str, int]], batch: int, gpus: int, step_s: float, **percent: float
) -> Row:
    return Row(name, gpt[0], batch * 2048 / step_s, gpus, A100, {k.lstrip("_"): v for k, v in percent.items()}, gpt[1])


GPT_22B, GPT_175B, GPT_1T = _gpt(48, 6144, 64), _gpt(96, 12288, 96), _gpt(128, 25600, 160)
PALM = _shape(118, 48, 256, 2048)
MPT_7B = {length: _shape(32, 32, 128, length) for length in (2048, 65536)}
LLAMA_8B = _shape(32, 32, 128, 8192)

PUBLISHED = [
    Row("PaLM 540B", 540e9, 238.3e3, 6144, TPU_V4, {"6nd": 45.7, "full_attention": 46.2}, PALM),
    Row("PaLM 540.35B", 540.35e9, 238.3e3, 6144, TPU_V4, {"full_attention": 46.23}, PALM),
    _megatron("Megatron 22B", GPT_22B, 4, 8, 1.10, full_attention=41.5, _6nd=39.5),
    _megatron("Megatron 175B", GPT_175B, 64, 64, 13.75, full_attention=51.4, _6nd=50.0),
    _megatron("Megatron 1T", GPT_1T, 512, 512, 71.49, full_attention=56.3, _6nd=55.5),
    Row(
        "llm-foundry 7B at 2048",
        6_658_859_008,
        85_144,
        8,
        H100,
        {"full_attention": 46.44, "causal": 44.71, "6nd": 42.97},
        MPT_7B[2048],
    ),
    Row(
        "llm-foundry 7B at 65536",
        6_918_905_856,
        15_654,
        8,
        H100,
        {"full_attention": 28.59, "causal": 18.40, "6nd": 8.21},
        MPT_7B[65536],
    ),
    Row(
        "llm-foundry 1B at 65536",
        1_445_974_016,
        44_050,
        8,
        H100,
        {"full_attention": 26.34, "6nd": 4.83},
        _shape(24, 16, 128, 65536),
    ),
    Row(
        "llm-foundry 70B at 2048",
        64_862_437_376,
        515_636,
        512,
        H100,
        {"full_attention": 41.25},
        _shape(80, 64, 128, 2048),
    ),
    Row(
        "torchtitan Llama 3.1 8B",
        8.03e9 - 0.525e9,
        5762,
        1,
        989e12,
        {"full_attention": 33.7, "causal": 30.0},
        LLAMA_8B,
    ),
    Row(
        "torchtitan Llama 3.1 8B, fp8",
        8.03e9 - 0.525e9,
        6667,
        1,
        989e12,
        {"full_attention": 39.0, "causal": 34.7},
        LLAMA_8B,
    ),
    Row("torchtitan Llama 3.1 8B with the input embedding", 8.03e9, 5762, 1, 989e12, {"6nd": 28.1}),
    Row("torchtitan Llama 3.1 8B, fp8, with the input embedding", 8.03e9, 6667, 1, 989e12, {"6nd": 32.5}),
    Row("fms-fsdp 7B", 6.74e9, 9600, 1, H100, {"full_attention": 45.5}, _shape(32, 32, 128, 4096)),
    Row(
        "nanoGPT GPT-2 124M",
        123.65e6,
        600_000 * 491_520 / (4 * 24 * HOUR),
        8,
        A100,
        {"full_attention": 29.2},
        _shape(12, 12, 64, 1024),
    ),
    Row("Llama 1 65B at 380 tokens/s and GPU", 65.2e9, 380, 1, A100, {"6nd": 47.6}),
    Row("DeepSeek-V3 at 272.8e9 tokens/day", 37e9, 272.8e9 / (24 * HOUR), 2048, 989.4e12, {"6nd": 34.6}),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.name)
def test_a_published_run_comes_out_as_published(row: Row) -> None:
    """The MFU that a paper or a benchmark printed, from its inputs, within 0.2 points in its convention."""
    for convention, percent in row.percent.items():
        ratio = mfu(
            row.params,
            row.tokens_per_s,
            gpus=row.gpus,
            peak_flops_per_s=row.peak,
            convention=convention,
            **row.shape,
        )
        assert ratio is not None
        assert abs(100 * ratio - percent) <= 0.2, convention


TOTALS = [
    ("PaLM", 540.35e9, 780e9, 2.5272e24),
    ("GPT-3 175B", 174.6e9, 300e9, 3.14e23),
    ("OLMo 2 7B", 7.3e9, 4.05e12, 1.77e23),
    ("OLMo 2 13B", 13.7e9, 5.6e12, 4.60e23),
    ("OLMo 2 32B", 32.2e9, 6.6e12, 1.28e24),
    ("DBRX", 36e9, 12e12, 2.59e24),
    ("Llama 3.1 405B", 405.85e9, 15.6e12, 3.80e25),
]


@pytest.mark.parametrize(("name", "params", "tokens", "flops"), TOTALS)
def test_a_published_total_comes_out_as_published(name: str, params: float, tokens: float, flops: float) -> None:
    """Training compute as model cards and papers state it, within 1%."""
    assert train_flops(params, tokens) == pytest.approx(flops, rel=0.01)


BILLED = [
    # name, parameters (active), tokens, billed device-hours, peak, 6ND FLOP, implied MFU in percent
    ("Llama 1 7B", 6.7e9, 1.0e12, 82_432, A100, 4.02e22, 43.4),
    ("Llama 1 13B", 13.0e9, 1.0e12, 135_168, A100, 7.8e22, 51.4),
    ("Llama 1 33B", 32.5e9, 1.4e12, 530_432, A100, 2.73e23, 45.8),
    ("Llama 1 65B", 65.2e9, 1.4e12, 1_022_362, A100, 5.48e23, 47.7),
    ("Llama 2 7B", 6.74e9, 2e12, 184_320, A100, 8.09e22, 39.1),
    ("Llama 2 13B", 13.0e9, 2e12, 368_640, A100, 1.56e23, 37.7),
    ("Llama 2 70B", 69.0e9, 2e12, 1_720_320, A100, 8.28e23, 42.8),
    ("Llama 3 8B", 8.03e9, 15e12, 1.3e6, 989.4e12, 7.23e23, 15.6),
    ("Llama 3 70B", 70.6e9, 15e12, 6.4e6, 989.4e12, 6.35e24, 27.9),
    ("Llama 3.1 8B", 8.03e9, 15e12, 1.46e6, 989.4e12, 7.23e23, 13.9),
    ("Llama 3.1 70B", 70.6e9, 15e12, 7.0e6, 989.4e12, 6.35e24, 25.5),
    ("Llama 3.1 405B", 405.85e9, 15.6e12, 30.84e6, 989.4e12, 3.80e25, 34.6),
    ("DeepSeek-V3", 37e9, 14.8e12, 2.664e6, 989.4e12, 3.29e24, 34.6),
    ("DeepSeek-V3 of the fp8 peak", 37e9, 14.8e12, 2.664e6, 1979e12, 3.29e24, 17.3),
    ("BLOOM 176B", 176.2e9, 366e9, 1_082_990, A100, 3.87e23, 31.8),
    ("MPT-7B", 6.65e9, 1e12, 440 * 9.5 * 24, A100, 3.99e22, 35.4),
    ("PaLM", 540.35e9, 780e9, 6144 * 1200 + 3072 * 336, TPU_V4, 2.53e24, 30.4),
    ("DBRX, if all three months had been training", 36e9, 12e12, 3072 * 90 * 24, 989.4e12, 2.59e24, 11),
]


@pytest.mark.parametrize(("name", "params", "tokens", "hours", "peak", "flops", "percent"), BILLED)
def test_a_whole_run_against_its_bill(
    name: str, params: float, tokens: float, hours: float, peak: float, flops: float, percent: float
) -> None:
    """6ND and the MFU over all billed device-hours, each within 1% of what they compute to."""
    assert train_flops(params, tokens) == pytest.approx(flops, rel=0.01)
    ratio = mfu(params, tokens / (hours * HOUR), gpus=1, peak_flops_per_s=peak)
    assert ratio is not None
    assert 100 * ratio == pytest.approx(percent, rel=0.01)


def test_hardware_flops_with_full_recomputation_are_four_thirds() -> None:
    """BLOOM's 42.4% are 8ND; Megatron's 34 and 84 days of 175B and 1T on A100s likewise."""
    bloom = mfu(176.2e9, 366e9 / (1_082_990 * HOUR), gpus=1, peak_flops_per_s=A100)
    assert bloom is not None
    assert bloom * 4 / 3 == pytest.approx(0.424, rel=0.01)
    for params, tokens, gpus, flops_per_s, days in (
        (175e9, 300e9, 1024, 140e12, 33.9),
        (1e12, 450e9, 3072, 163e12, 83.2),
    ):
        took = train_flops(params, tokens) * 4 / 3 / (gpus * flops_per_s) / (24 * HOUR)
        assert took == pytest.approx(days, rel=0.01)


def test_mpt_7b_with_attention_is_three_points_higher() -> None:
    """MPT-7B's bill: 35.4% by 6ND, 38.3% with full attention."""
    speed = 1e12 / (440 * 9.5 * 24 * HOUR)
    ratio = mfu(6.65e9, speed, gpus=1, peak_flops_per_s=A100, convention="full_attention", **MPT_7B[2048])
    assert ratio == pytest.approx(0.383, rel=0.01)


def test_attention_counted_causally_is_half() -> None:
    """maxtext#1988: 1721.22 TFLOP a step become 1510.11, of which 422.21 and 211.11 are attention."""
    tokens, shape = 4 * 8192, _shape(32, 32, 128, 8192)
    weights = 6_738_415_616 - 32_000 * 4096
    counted = {c: train_flops(weights, tokens, convention=c, **shape) / 1e12 for c in ("full_attention", "causal")}
    assert counted["full_attention"] == pytest.approx(1721.22, abs=0.2)
    assert counted["causal"] == pytest.approx(1510.11, abs=0.2)
    assert counted["full_attention"] - counted["causal"] == pytest.approx(211.11, abs=0.01)


def test_experts_that_did_not_run_are_not_counted() -> None:
    """torchtitan#4300, qwen3-30B-A3B: 37,578,559,488 FLOP a token, 5.1 times fewer than with every expert."""
    width, layers, expert = 2048, 48, 3 * 2048 * 768
    always = 2 * width * 4096 + 2 * width * 512 + 256 + 128 * width + 2 * width
    head = 151_936 * width + width
    active, total = layers * (always + 8 * expert) + head, layers * (always + 128 * expert) + head
    shape = _shape(layers, 32, 128, 8192)
    assert flops_per_token(total, active_params=active, **shape).full_attention == 37_578_559_488
    with_table = total + 151_936 * width
    assert flops_per_token(with_table, **shape).causal == 192_856_412_160


def test_all_parameters_of_a_mixture_give_an_absurd_mfu() -> None:
    """DeepSeek-V3 with its 671e9 parameters instead of the 37e9 that a token meets: 628%."""
    ratio = mfu(671e9, 14.8e12 / (2.664e6 * HOUR), gpus=1, peak_flops_per_s=989.4e12)
    assert ratio == pytest.approx(6.28, rel=0.01)


@pytest.mark.parametrize(("length", "full", "causal"), [(2048, 6.7, 3.3), (8192, 26.7, 13.4), (131_072, 428, 214)])
def test_the_share_of_attention_grows_with_the_sequence(length: int, full: float, causal: float) -> None:
    """Llama 3 8B: what attention adds to 6ND, in percent."""
    flops = flops_per_token(8.03e9, **_shape(32, 32, 128, length))
    assert flops.full_attention is not None
    assert flops.causal is not None
    assert 100 * (flops.full_attention / flops.six_nd - 1) == pytest.approx(full, rel=0.02)
    assert 100 * (flops.causal / flops.six_nd - 1) == pytest.approx(causal, rel=0.02)


def test_the_layout_over_gpus_makes_no_difference() -> None:
    """torchtitan#1989: tokens of all GPUs over all GPUs, however the model is split."""
    by_data = sum(mfu(7e9, rate, gpus=8, peak_flops_per_s=H100) or 0 for rate in [1000.0] * 8)
    by_tensor = mfu(7e9, 8000.0, gpus=8, peak_flops_per_s=H100)
    assert by_data == pytest.approx(by_tensor)


def test_accumulation_makes_no_difference() -> None:
    """litgpt#403: the same tokens in one micro-batch or in eight are the same FLOPs."""
    assert train_flops(7e9, 8 * 4096) == 8 * train_flops(7e9, 4096)


COUNTS = st.integers(1, 10**13)
SMALL = st.integers(1, 10**4)


@st.composite
def _shapes(draw: st.DrawFn) -> dict[str, int]:
    return {name: draw(SMALL) for name in ("layers", "heads", "head_dim", "seq_len")}


@given(COUNTS, _shapes())
def test_causal_lies_between_6nd_and_full_attention(params: int, shape: dict[str, int]) -> None:
    """Half of attention's products is more than none and less than all; it is exactly the mean."""
    flops = flops_per_token(params, **shape)
    assert flops.full_attention is not None
    assert flops.causal is not None
    assert flops.six_nd < flops.causal < flops.full_attention
    assert 2 * flops.causal == flops.six_nd + flops.full_attention


@given(COUNTS, COUNTS)
def test_active_parameters_never_cost_more_than_all(a: int, b: int) -> None:
    """What a token meets is at most the whole."""
    active, total = sorted((a, b))
    assert flops_per_token(total, active_params=active).six_nd <= flops_per_token(total).six_nd


@given(
    COUNTS,
    st.lists(st.integers(0, 10**12), max_size=5),
    _shapes(),
    st.sampled_from(["6nd", "full_attention", "causal"]),
)
def test_flops_add_up_over_tokens(params: int, batches: list[int], shape: dict[str, int], convention: Any) -> None:
    """The FLOPs of some batches are those of all their tokens, to the last FLOP."""
    parts = [train_flops(params, tokens, convention=convention, **shape) for tokens in batches]
    assert sum(parts) == train_flops(params, sum(batches), convention=convention, **shape)


@given(COUNTS, st.integers(0, 10**12))
def test_6nd_is_the_same_by_either_way(params: int, tokens: int) -> None:
    """`train_flops` without a shape is `six_nd`."""
    assert train_flops(params, tokens) == six_nd(params, tokens)


@given(COUNTS, st.floats(1, 1e9), st.integers(1, 10**5), st.floats(1e9, 1e18))
def test_mfu_is_linear_in_speed_and_falls_with_gpus_and_peak(params: int, speed: float, gpus: int, peak: float) -> None:
    """Twice the tokens is twice the MFU; twice the GPUs or the peak is half of it."""
    ratio = mfu(params, speed, gpus=gpus, peak_flops_per_s=peak)
    assert ratio is not None
    assert mfu(params, 2 * speed, gpus=gpus, peak_flops_per_s=peak) == pytest.approx(2 * ratio)
    assert mfu(params, speed, gpus=2 * gpus, peak_flops_per_s=peak) == pytest.approx(ratio / 2)
    assert mfu(params, speed, gpus=gpus, peak_flops_per_s=2 * peak) == pytest.approx(ratio / 2)


def test_an_unknown_peak_gives_no_mfu() -> None:
    """Unknown is not zero."""
    assert mfu(7e9, 1000, gpus=1, peak_flops_per_s=None) is None
    assert mfu(7e9, 0, gpus=1, peak_flops_per_s=1e15) == 0


def test_a_shape_that_is_not_whole_leaves_attention_unknown() -> None:
    """Without any one of the four numbers only 6ND is known."""
    for lacking in LLAMA_8B:
        flops = flops_per_token(8.03e9, **{k: v for k, v in LLAMA_8B.items() if k != lacking})
        assert (flops.six_nd, flops.full_attention, flops.causal) == (48_180_000_000, None, None)


def test_whole_numbers_of_any_kind_are_counts() -> None:
    """A float like 8.03e9 and an integer of NumPy count exactly."""
    assert flops_per_token(8.03e9) == flops_per_token(8_030_000_000) == flops_per_token(np.int64(8_030_000_000))


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), float("inf"), "7e9", None, True, 1e31, 10**31])
def test_what_is_no_count_is_one_sentence(value: Any) -> None:
    """A value that cannot be a count is refused with its name, its text and the remedy."""
    with pytest.raises(
        ConfigError, match=r"flops_per_token\(params=.*\): expected a whole number of at least 1, such as"
    ):
        flops_per_token(value)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (flops_per_token, {"active_params": 8e9}, "active_params=8000000000.0.: expected at most params=7"),
    (flops_per_token, {"layers": 0}, "layers=0"),
    (flops_per_token, {"heads": -3}, "heads=-3"),
    (flops_per_token, {"head_dim": 0.5}, "head_dim=0.5"),
    (flops_per_token, {"seq_len": "long"}, "seq_len='long'"),
    (train_flops, {"tokens": -1}, "tokens=-1.: expected a whole number of at least 0"),
    (train_flops, {"tokens": 1, "convention": "7nd"}, "convention='7nd'.: expected one of '6nd'"),
    (train_flops, {"tokens": 1, "convention": "causal", "layers": 3}, "expected layers, heads, head_dim and seq_len"),
    (mfu, {"tokens_per_s": -1, "gpus": 1, "peak_flops_per_s": None}, "tokens_per_s=-1"),
    (mfu, {"tokens_per_s": "fast", "gpus": 1, "peak_flops_per_s": None}, "tokens_per_s='fast'"),
    (mfu, {"tokens_per_s": 1, "gpus": 0, "peak_flops_per_s": None}, "gpus=0"),
    (mfu, {"tokens_per_s": 1, "gpus": 1, "peak_flops_per_s": 0}, "peak_flops_per_s=0"),
    (mfu, {"tokens_per_s": 1, "gpus": 1, "peak_flops_per_s": float("nan")}, "peak_flops_per_s=nan"),
]


@pytest.mark.parametrize(("function", "arguments", "said"), BAD)
def test_a_bad_argument_is_named(function: Any, arguments: dict[str, Any], said: str) -> None:
    """Each argument that cannot be is named in one sentence with what was expected."""
    with pytest.raises(ConfigError, match=said) as error:
        function(7_000_000_000, **arguments)
    assert str(error.value).startswith(f"{function.__name__}(")
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
