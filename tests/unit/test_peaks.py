"""The peak of a card: exact names, dtypes, MIG slices, estimates, and what stays unknown."""

from __future__ import annotations

import re
from typing import Any

import pytest

from costguard.flops import mfu
from costguard.hardware.peaks import DTYPES, canonical_dtype, find_peak, read_rows

ROWS = read_rows()
CARDS = ROWS["card"]

BF16 = {
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H200": 989.4,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA GH200 480GB": 989.4,
    "NVIDIA H800": 989.4,
    "NVIDIA H800 PCIe": 756,
    "NVIDIA H20": 148,
    "NVIDIA B200": 2250,
    "NVIDIA GB200": 2500,
    "NVIDIA B300 SXM6 AC": 2250,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A10": 125,
    "NVIDIA A10G": 70,
    "NVIDIA L4": 121,
    "NVIDIA L40": 181,
    "NVIDIA L40S": 362,
    "NVIDIA L20": 119.5,
    "NVIDIA RTX A6000": 154.8,
    "NVIDIA RTX A4000": 76.7,
    "NVIDIA RTX A1000": 26.9,
    "NVIDIA RTX 6000 Ada Generation": 364.2,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 4090 D": 147,
    "NVIDIA GeForce RTX 3090": 71,
    "NVIDIA GeForce RTX 5090": 209.5,
}
"""What `torch.cuda.get_device_name` prints, and the dense bf16 peak in TFLOP/s."""


def _tflops(name: str, dtype: str = "bf16", **facts: Any) -> float | None:
    peak = find_peak(name, dtype, **facts)
    return None if peak.flops_per_s is None else peak.flops_per_s / 1e12


@pytest.mark.parametrize(("name", "tflops"), BF16.items())
def test_a_driver_name_has_its_own_dense_peak(name: str, tflops: float) -> None:
    """Each name that the driver prints gets the peak of its datasheet, with or without the prefix and in any case."""
    for spelt in (name, name.removeprefix("NVIDIA "), f"  {name.replace(' ', '  ')} ", name.lower()):
        peak = find_peak(spelt, "bf16")
        assert peak.flops_per_s == pytest.approx(tflops * 1e12, rel=1e-12)
        assert peak.source == f"table: {name}, bf16 dense, 2026-11"
        assert (peak.estimated, peak.reason) == (False, None)


@pytest.mark.parametrize(("old", "new"), [("Tesla T4", "T4"), ("Tesla V100-SXM2-16GB", "NVIDIA V100-SXM2-16GB")])
def test_the_prefixes_of_old_drivers_make_no_difference(old: str, new: str) -> None:
    """The words "NVIDIA" and "Tesla" come and go between driver versions."""
    assert find_peak(old, "fp16") == find_peak(new, "fp16") == find_peak(f"NVIDIA {old}", "fp16")
    assert find_peak(old, "fp16").flops_per_s is not None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA RTX A1000 Laptop GPU",
        "NVIDIA GeForce RTX 2080 Super with Max-Q Design",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA A10M",
        "NVIDIA L40S-48Q",
        "NVIDIA H20Z",
        "GRID A100-40C",
        "NVIDIA GeForce RTX 4090 D V2",
        "NVIDIA RTX 6000",
        "Quadro RTX 6000 with Max-Q Design",
        "NVIDIA",
        "NVIDIA GH100",
        "",
    ],
)
def test_a_name_that_contains_a_known_one_is_unknown(name: str) -> None:
    """No part of a name decides: a card that is not in the table has no peak, and the reason names the remedy."""
    peak = find_peak(name, "bf16")
    assert peak.flops_per_s is None
    assert peak.source == "unknown"
    assert "is not in the table" in str(peak.reason)
    assert "peak_flops_per_s=" in str(peak.reason)


def test_an_ambiguous_name_is_unknown_even_with_every_fact() -> None:
    """A bare "NVIDIA H100" stands for parts with unpublished peaks: nothing is guessed."""
    peak = find_peak("NVIDIA H100", "bf16", sm_count=132, compute_capability=(9, 0), max_clock_mhz=1980)
    assert peak.flops_per_s is None
    assert "no single card" in str(peak.reason)
    assert "peak_flops_per_s=" in str(peak.reason)
    assert find_peak("NVIDIA H100 MIG 1g.10gb", "bf16", sm_count=16).flops_per_s is None


@pytest.mark.parametrize(
    ("name", "sm_count", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 14, 40.44),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 119.9),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", 16, 119.9),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", 14, 40.44),
        ("A100-SXM4-80GB MIG 7g.80gb", 98, 283.1),
    ],
)
def test_a_mig_slice_gets_the_share_of_its_sms(name: str, sm_count: int, tflops: float) -> None:
    """A slice is scaled by its SMs and marked as an estimate; without their number it is unknown."""
    peak = find_peak(name, "bf16", sm_count=sm_count)
    assert peak.flops_per_s == pytest.approx(tflops * 1e12, rel=1e-3)
    assert peak.estimated
    assert "MIG" in str(peak.reason)
    unknown = find_peak(name, "bf16")
    assert unknown.flops_per_s is None
    assert "sm_count=" in str(unknown.reason)


@pytest.mark.parametrize("name", ["A100-SXM4-80GB MIG", "A100-SXM4-80GB MIG 1g", "A100-SXM4-80GB MIG 1g.10gb x"])
def test_what_only_resembles_a_slice_is_no_slice(name: str) -> None:
    """The suffix of a slice is split off exactly or not at all."""
    assert find_peak(name, "bf16", sm_count=14).flops_per_s is None


@pytest.mark.parametrize("sm_count", [-1, 0, 109])
def test_a_slice_that_cannot_be_is_unknown(sm_count: int) -> None:
    """A slice has some SMs of its card, never more."""
    assert find_peak("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16", sm_count=sm_count).flops_per_s is None


def test_a_name_that_two_cards_share_needs_the_sm_count() -> None:
    """The RTX 3080 with 10 GB and the one with 12 GB report one name; their SMs tell them apart."""
    name = "NVIDIA GeForce RTX 3080"
    assert "sm_count=" in str(find_peak(name, "bf16").reason)
    assert _tflops(name, sm_count=68) == 59.5
    assert _tflops(name, sm_count=70) is None


def test_a_device_that_contradicts_its_name_is_unknown() -> None:
    """A card whose SM count is not the one of its name is some other part."""
    assert _tflops("NVIDIA H200", sm_count=132) == 989.4
    peak = find_peak("NVIDIA H200", "bf16", sm_count=78)
    assert peak.flops_per_s is None
    assert "78 SMs" in str(peak.reason)


@pytest.mark.parametrize(
    ("dtype", "tflops"),
    [
        ("torch.bfloat16", 989.4),
        ("bf16-mixed", 989.4),
        ("16-mixed", 989.4),
        ("float32", 67),
        ("tf32", 494.7),
        ("float8_e4m3fn", 1979),
        ("float64", 67),
        ("fp4", None),
        ("32-true", None),
        ("complex64", None),
    ],
)
def test_the_dtype_of_the_products_decides(dtype: str, tflops: float | None) -> None:
    """Torch's and Lightning's names are read where they say what products run in; "32-true" may be tf32 or fp32."""
    assert _tflops("NVIDIA H200", dtype) == tflops


@pytest.mark.parametrize(
    ("name", "dtype", "word"),
    [
        ("Tesla V100-SXM2-16GB", "bf16", "7.0"),
        ("NVIDIA A100-SXM4-80GB", "fp8", "8.9"),
        ("NVIDIA B300 SXM6 AC", "fp4", "differ"),
        ("NVIDIA L4", "fp64", "none is published"),
    ],
)
def test_a_dtype_without_a_peak_has_its_reason(name: str, dtype: str, word: str) -> None:
    """A card that is known may have no peak in a dtype: unknown, with the reason and the remedy."""
    peak = find_peak(name, dtype)
    assert peak.flops_per_s is None
    assert word in str(peak.reason)
    assert "peak_flops_per_s=" in str(peak.reason)


@pytest.mark.parametrize(
    ("capability", "sms", "clock", "dtype", "tflops"),
    [
        ((7, 0), 80, 1530, "fp16", 125.3),
        ((8, 0), 108, 1410, "bf16", 311.9),
        ((8, 0), 108, 1410, "fp64", 19.5),
        ((9, 0), 132, 1980, "bf16", 984.9),
        ((9, 0), 132, 1980, "fp32", 66.9),
        ((10, 0), 148, 1965, "bf16", 2191.8),
        ((10, 3), 148, 1965, "fp8", 4383.5),
        ((12, 0), 170, 2407, "fp32", 104.7),
    ],
)
def test_an_unlisted_card_gets_a_flagged_estimate(
    capability: tuple[int, int], sms: int, clock: float, dtype: str, tflops: float
) -> None:
    """SMs x FLOP/clk/SM x clock, from compute capability 9.0 on with 0.92 of the clock for tensor cores."""
    facts = {"sm_count": sms, "compute_capability": capability, "max_clock_mhz": clock}
    peak = find_peak("NVIDIA Something New", dtype, **facts)
    assert peak.flops_per_s == pytest.approx(tflops * 1e12, rel=1e-3)
    assert peak.estimated
    assert peak.source.startswith("estimate: ")
    assert "is not in the table" in str(peak.reason)
    for lacking in facts:
        assert find_peak("NVIDIA Something New", dtype, **(facts | {lacking: None})).flops_per_s is None


@pytest.mark.parametrize(
    ("name", "capability", "sms", "dtype"),
    [
        ("NVIDIA GeForce RTX 3060", (8, 6), 28, "bf16"),
        ("NVIDIA RTX 5880 Ada Generation", (8, 9), 110, "fp8"),
        ("NVIDIA GeForce GTX 1660", (7, 5), 22, "fp16"),
        ("NVIDIA GeForce RTX 5070", (12, 0), 48, "bf16"),
        ("NVIDIA H20A", (9, 0), 78, "bf16"),
        ("NVIDIA H800 NVL", (9, 0), 132, "fp64"),
        ("NVIDIA V100X", (7, 0), 80, "bf16"),
        ("Orin", (8, 7), 16, "bf16"),
        ("NVIDIA A100 Laptop GPU", (8, 0), 108, "bf16"),
    ],
)
def test_a_capability_that_spans_two_rates_gives_no_estimate(
    name: str, capability: tuple[int, int], sms: int, dtype: str
) -> None:
    """Where cards of one compute capability differ twofold, or a power limit decides, the peak stays unknown."""
    peak = find_peak(name, dtype, sm_count=sms, compute_capability=capability, max_clock_mhz=1900)
    assert peak.flops_per_s is None
    assert "peak_flops_per_s=" in str(peak.reason)


@pytest.mark.parametrize("name", ["A100", "NVIDIA H200 141GB"])
def test_a_shortened_name_gets_the_full_ones_as_a_hint_only(name: str) -> None:
    """What is not exact is not taken, but names that begin so are shown."""
    reason = str(find_peak(name, "bf16").reason)
    assert ("did you mean NVIDIA A100-SXM4-40GB or" in reason) == (name == "A100")


@pytest.mark.parametrize("row", CARDS, ids=lambda row: row["names"][0])
def test_a_row_has_no_empty_field(row: dict[str, Any]) -> None:
    """Each card has names, SMs, clock, peaks above zero of known dtypes, a dated source and its own date."""
    assert all(value for value in row.values())
    names, peaks = row["names"], row["dense_tflops"]
    assert all(name == " ".join(name.split()) for name in names)
    assert set(peaks) <= set(DTYPES)
    assert all(value > 0 for value in peaks.values())
    assert {"bf16", "fp16"} & set(peaks)
    assert not set(peaks) & set(row.get("missing", {}))
    assert re.fullmatch(r"\d+\.\d", str(row["compute_capability"]))
    assert isinstance(row["sm_count"], int)
    assert isinstance(row["tensor_mhz"], int)
    assert re.search(r"\b20\d\d(-\d\d)?\b", str(row["source"]))
    assert re.fullmatch(r"20\d\d-\d\d", str(row["date"]))


def test_no_name_stands_for_two_rows() -> None:
    """A driver name leads to one row, or to one reason why it cannot."""
    names = [n.removeprefix("NVIDIA ").lower() for row in CARDS + ROWS["ambiguous"] for n in row["names"]]
    assert len(names) == len(set(names))


_RATES = {"7.0": 1024, "7.5": 1024, "8.0": 2048, "8.6": 1024, "8.9": 1024, "9.0": 4096, "10.0": 8192, "10.3": 8192}
_HALF = ("GeForce", "A10G", "L40", "L20")


@pytest.mark.parametrize("row", [row for row in CARDS if "NVIDIA H20" not in row["names"]], ids=lambda r: r["names"][0])
def test_sms_times_rate_times_clock_reproduces_the_datasheet(row: dict[str, Any]) -> None:
    """Each 16-bit peak is within 1.3% of SMs x FLOP/clk/SM x tensor clock: no slip of a digit, nothing sparse."""
    name, peaks = str(row["names"][0]), row["dense_tflops"]
    half = "GeForce" in name or name.removeprefix("NVIDIA ") in _HALF
    rate = _RATES.get(str(row["compute_capability"]), 1024) // (2 if half else 1)
    computed = row["sm_count"] * rate * row["tensor_mhz"] * 1e6 / 1e12
    assert computed == pytest.approx(peaks.get("bf16", peaks["fp16"]), rel=0.013)


@pytest.mark.parametrize("row", CARDS, ids=lambda row: row["names"][0])
def test_narrower_dtypes_are_never_slower(row: dict[str, Any]) -> None:
    """The peaks of a card go up with fewer bits: tf32, bf16, fp8, fp4."""
    peaks = row["dense_tflops"]
    known = [peaks[d] for d in ("tf32", "bf16", "fp8", "fp4") if d in peaks]
    assert known == sorted(known)


# Bug reports of other meters about the denominator.


def test_an_h200_has_a_peak() -> None:
    """pytorch-lightning#20660, composer#3889: the driver says just "NVIDIA H200"."""
    assert _tflops("NVIDIA H200") == 989.4


def test_the_peak_is_dense_and_not_sparse() -> None:
    """pytorch-lightning#21677, torchtitan#1393, Megatron-LM#1565: 420 TFLOP/s on an H200 are 42.5%, not 21.2%."""
    peak = find_peak("NVIDIA H200", "bf16").flops_per_s
    assert mfu(70e9, 1000, gpus=1, peak_flops_per_s=peak) == pytest.approx(0.4245, abs=5e-5)


def test_bf16_training_is_not_held_against_the_tf32_peak() -> None:
    """torchtitan#668: the dtype of the products counts, not that of the reduction."""
    assert (_tflops("NVIDIA A100-SXM4-80GB"), _tflops("NVIDIA A100-SXM4-80GB", "tf32")) == (312, 156)


def test_a_b300_is_not_held_against_an_a100() -> None:
    """OLMo-core#817: 329.8 TFLOP/s on a B300 are 14.66%, never the 105.7% of an unknown card taken for an A100."""
    peak = find_peak("NVIDIA B300 SXM6 AC", "bf16").flops_per_s
    assert peak is not None
    assert 329.8e12 / peak == pytest.approx(0.1466, abs=5e-5)
    assert find_peak("AMD Instinct MI355X", "bf16").flops_per_s is None


def test_a_t4_in_bf16_is_unknown_and_not_a_crash() -> None:
    """litgpt#205: a KeyError ended the training."""
    peak = find_peak("Tesla T4", "bf16-true")
    assert peak.flops_per_s is None
    assert "no bf16 peak" in str(peak.reason)


def test_a_chip_name_inside_a_card_name_counts_for_nothing() -> None:
    """Torchtitan with lspci: the GH100 of an H20 made it an H100; Lightning: an RTX A4000 an A40, an A1000 an A100."""
    assert _tflops("NVIDIA Corporation GH100 [H20]") is None
    assert (_tflops("NVIDIA H20"), _tflops("NVIDIA RTX A4000"), _tflops("NVIDIA RTX A1000")) == (148, 76.7, 26.9)
    assert (_tflops("NVIDIA L40"), _tflops("NVIDIA L40S"), _tflops("NVIDIA L4")) == (181, 362, 121)


def test_the_peak_is_that_of_the_card_at_hand() -> None:
    """trl#7197, nanochat#60: an H100's peak whatever the card."""
    assert len({_tflops(name) for name in ("NVIDIA L4", "NVIDIA A10", "NVIDIA H200", "NVIDIA B200")}) == 4


def test_every_spelling_of_a_dtype_is_one_of_ours() -> None:
    """What is read as a dtype is one that the table knows."""
    assert all(canonical_dtype(dtype) == dtype for dtype in DTYPES)
    assert canonical_dtype("float16") == canonical_dtype("torch.half") == "fp16"
