"""Where the peak that MFU is computed against comes from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from costguard.lightning.peak import device_peak


def trainer(device: str, precision: str = "32-true") -> Any:
    """As much of a Trainer as the peak depends on."""
    return SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)), precision=precision)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a card whose name and facts are an H200's."""
    facts = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")


def test_the_users_word_wins() -> None:
    """`peak_flops_per_s` is taken as it is, and marked so."""
    assert device_peak(trainer("cpu"), 1e12).flops_per_s == 1e12
    assert device_peak(trainer("cuda"), 1e12).peak.source == "given: peak_flops_per_s"


def test_a_cpu_is_measured() -> None:
    """On a CPU a product is timed in the training's dtype, and random numbers of the user stay as they are."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    peak = device_peak(trainer("cpu", "bf16-mixed"), None)
    assert peak.flops_per_s is not None
    assert peak.flops_per_s > 0
    assert "measured" in peak.peak.source
    assert "bfloat16" in peak.peak.source
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("precision", "matmul", "tflops"),
    [
        ("bf16-mixed", "highest", 989.4),
        ("bf16-true", "highest", 989.4),
        ("16-mixed", "highest", 989.4),
        ("32-true", "highest", 67),
        ("32-true", "high", 494.7),
        ("64-true", "highest", 67),
        ("transformer-engine", "highest", 1979),
    ],
)
@pytest.mark.usefixtures("h200")
def test_a_known_card_has_the_peak_of_the_dtype_that_products_run_in(
    precision: str, matmul: str, tflops: float
) -> None:
    """The table's dense peak, by the compute dtype; fp32 products are TF32 only where that is allowed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    try:
        peak = device_peak(trainer("cuda", precision), None)
    finally:
        torch.set_float32_matmul_precision(before)
    assert peak.flops_per_s == pytest.approx(tflops * 1e12)
    assert "NVIDIA H200" in peak.peak.source


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("where", [("cuda", "nf4"), ("mps", "32-true")])
def test_what_has_no_row_is_unknown_with_a_reason(where: tuple[str, str]) -> None:
    """No guess: the reason names the remedy."""
    peak = device_peak(trainer(*where), None)
    assert peak.flops_per_s is None
    assert peak.peak.reason is not None
    assert "peak_flops_per_s" in peak.peak.reason


@pytest.mark.parametrize(("seen", "tflops"), [("bfloat16", 989.4), ("float8_e4m3fn", 1979), ("float32", 67)])
@pytest.mark.usefixtures("h200")
def test_what_products_were_seen_to_run_in_beats_the_precision(seen: str, tflops: float) -> None:
    """A strategy or a module may compute in another dtype than the Trainer's precision says."""
    peak = device_peak(trainer("cuda", "32-true"), None, seen)
    assert peak.flops_per_s == pytest.approx(tflops * 1e12)
