"""`costguard mfu`: figures, provenance, what is unknown, alarms and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from costguard.cli.main import main

LLAMA = ["--params", "8.03e9", "--layers", "32", "--heads", "32", "--head-dim", "128", "--seq-len", "8192"]
SPEED = ["--tokens-per-s", "46096", "--gpus", "8"]
H100 = ["--gpu", "NVIDIA H100 80GB HBM3", "--dtype", "bf16"]


def _json(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 0) -> dict[str, Any]:
    assert main(["mfu", *arguments, "--json"]) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    data: dict[str, Any] = json.loads(printed.out)
    return data


def test_json_has_the_promised_keys_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """FLOPs and MFU by each convention, exact where they are counts, with the source of the peak."""
    data = _json(capsys, [*LLAMA, *SPEED, *H100])
    assert data["schema_version"] == 1
    assert data["flops_per_token"] == {
        "6nd": 48_180_000_000,
        "full_attention": 61_064_901_888,
        "causal": 54_622_450_944,
    }
    assert data["flops_per_s"] == {n: f * 46096 for n, f in data["flops_per_token"].items()}
    assert data["peak_flops_per_s"] == 989.4e12
    assert data["peak_source"] == "table: NVIDIA H100 80GB HBM3, bf16 dense, 2026-11"
    assert data["mfu"] == {n: pytest.approx(f / (8 * 989.4e12)) for n, f in data["flops_per_s"].items()}
    assert (data["peak_estimated"], data["peak_reason"], data["alarms"]) == (False, None, [])


def test_text_shows_each_convention_and_where_the_peak_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    """One line with every convention and the peak's provenance, then the formulas; no line too wide for a terminal."""
    assert main(["mfu", *LLAMA, *SPEED, *H100]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == (
        "MFU 35.6% (full attention) | 31.8% causal | 28.1% 6ND | "
        "peak 989.4 TFLOP/s, table: NVIDIA H100 80GB HBM3, bf16 dense, 2026-11"
    )
    assert "6 N + 12 L H Q T" in text
    assert "attention adds 26.7% to 6ND" in text
    assert "ALARM" not in text
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize("lacking", ["--layers", "--heads", "--head-dim", "--seq-len"])
def test_without_the_whole_shape_only_6nd_is_known(lacking: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers, heads, head size and sequence length may be left out: attention is unknown, not zero."""
    at = LLAMA.index(lacking)
    arguments = [*LLAMA[:at], *LLAMA[at + 2 :], *SPEED, *H100]
    data = _json(capsys, arguments)
    for key in ("mfu", "flops_per_token", "flops_per_s"):
        assert data[key]["6nd"] is not None
        assert data[key]["full_attention"] is data[key]["causal"] is None
    assert main(["mfu", *arguments]) == 0
    text = capsys.readouterr().out
    assert text.startswith("MFU 28.1% (6ND) | peak")
    assert f"attention is unknown: add {lacking}" in text


@pytest.mark.parametrize(("gpu", "dtype"), [("Radeon VII", "bf16"), ("NVIDIA H100", "bf16"), ("Tesla T4", "bf16")])
def test_an_unknown_peak_still_prints_flops_and_exits_5(
    gpu: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown card, an ambiguous one, or a dtype without a peak: FLOP/s are shown, MFU and peak are null."""
    arguments = [*LLAMA, *SPEED, "--gpu", gpu, "--dtype", dtype]
    data = _json(capsys, arguments, code=5)
    assert data["mfu"] is data["peak_flops_per_s"] is data["peak_source"] is None
    assert data["flops_per_s"]["causal"] == 54_622_450_944 * 46096
    assert gpu in data["peak_reason"]
    assert main(["mfu", *arguments]) == 5
    text = capsys.readouterr().out
    assert text.startswith("MFU unknown | 352 TFLOP/s per GPU (full attention)")
    assert "--peak-flops-per-s 989.4e12" in text


def test_a_given_peak_wins(capsys: pytest.CaptureFixture[str]) -> None:
    """`--peak-flops-per-s` needs no card, and overrides the table."""
    given = ["--peak-flops-per-s", "5e14"]
    for card in ([], ["--gpu", "NVIDIA H100"], H100):
        data = _json(capsys, [*LLAMA, *SPEED, *card, *given])
        assert (data["peak_flops_per_s"], data["peak_source"]) == (5e14, "given: --peak-flops-per-s")
        assert data["mfu"]["6nd"] == pytest.approx(48.18e9 * 46096 / 8 / 5e14)


def test_an_estimated_peak_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """A peak that no datasheet states is called an estimate, with the reason."""
    arguments = [*LLAMA, *SPEED, "--gpu", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "--dtype", "bf16"]
    assert _json(capsys, arguments)["peak_estimated"] is True
    assert main(["mfu", *arguments]) == 0
    text = capsys.readouterr().out
    assert "TFLOP/s (estimated), table" in text
    assert "peak estimated: derived from" in text


def test_over_100_percent_raises_a_named_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    """An MFU that cannot be is shown with an alarm that says what to check (Primus#772: 563%)."""
    arguments = [*LLAMA, "--tokens-per-s", "46096", "--gpus", "1", *H100]
    data = _json(capsys, arguments)
    assert data["alarms"] == ["mfu_over_100_percent"]
    assert data["mfu"]["6nd"] > 1
    assert main(["mfu", *arguments]) == 0
    assert "ALARM mfu_over_100_percent" in capsys.readouterr().out


def test_only_active_parameters_count(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3's bill: 34.6% by its active parameters, 628% and an alarm by all."""
    run = ["--params", "671e9", "--tokens-per-s", str(14.8e12 / (2.664e6 * 3600)), "--gpu", "H800", "--dtype", "bf16"]
    assert _json(capsys, [*run, "--active-params", "37e9"])["mfu"]["6nd"] == pytest.approx(0.346, abs=5e-4)
    assert _json(capsys, run)["alarms"] == ["mfu_over_100_percent"]


BAD = [
    (["--params", "many"], "--params many: expected a whole number of at least 1"),
    (["--params", "0"], "--params 0"),
    (["--params", "1e999999"], "--params 1e999999"),
    (["--params", "inf"], "--params inf"),
    (["--params", ""], "--params : expected"),
    (["--layers", "2.5"], "--layers 2.5"),
    (["--heads", "-1"], "--heads -1"),
    (["--head-dim", "nan"], "--head-dim nan"),
    (["--seq-len", "8k"], "--seq-len 8k"),
    (["--gpus", "0"], "--gpus 0"),
    (["--tokens-per-s", "-5"], "--tokens-per-s -5: expected a number of at least 0"),
    (["--active-params", "9e9"], "--active-params 9e9: expected at most --params 8.03e9"),
    (["--dtype", "bf15"], "--dtype bf15: expected what the products run in"),
    (["--dtype", "32-true"], "--dtype 32-true"),
    (["--peak-flops-per-s", "0"], "--peak-flops-per-s 0"),
    (["--peak-flops-per-s", "fast"], "--peak-flops-per-s fast"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_bad_input_is_one_sentence_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that cannot be: option, value and remedy in one sentence on stderr, nothing on stdout."""
    assert main(["mfu", *LLAMA, *SPEED, *H100, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert len(printed.err.strip().splitlines()) == 1


@pytest.mark.parametrize(("card", "lacking"), [([], "--gpu"), (H100[:2], "--dtype"), (H100[2:], "--gpu")])
def test_without_a_peak_the_card_and_dtype_are_asked_for(
    card: list[str], lacking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a card nor a dtype is assumed."""
    assert main(["mfu", *LLAMA, *SPEED, *card]) == 2
    assert f"expected {lacking}, or the peak itself" in capsys.readouterr().err


def test_it_starts_without_torch() -> None:
    """A laptop computes MFU without torch, lightning, numpy or pynvml."""
    code = (
        "import sys; from costguard.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'lightning', 'pytorch_lightning', 'numpy', 'pynvml'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, "mfu", *LLAMA, *SPEED, *H100], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"MFU 35.6%")
