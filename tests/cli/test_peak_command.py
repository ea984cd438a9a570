"""`costguard peak`: measures this CPU for real, keeps the figure, and refuses what cannot be measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from costguard.cli.main import main
from costguard.hardware.achievable import find_achievable

BRIEF = ["peak", "--device", "cpu", "--seconds", "0.2"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "costguard"


def test_json_has_what_was_measured_and_where_it_is_kept(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    """Every figure with how it was made; what is kept can be read back."""
    assert main([*BRIEF, "--dtype", "fp32", "--json"]) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert printed.err == ""
    assert (data["schema_version"], data["dtype"], data["uuid"]) == (1, "fp32", None)
    assert 0 < data["flops_per_s"] <= data["max_flops_per_s"]
    assert data["flops_per_s"] == max(row["flops_per_s"] for row in data["shapes"])
    assert (data["peak_flops_per_s"], data["peak_ratio"]) == (None, None)
    assert len(data["shapes"]) + len(data["skipped"]) == 3
    found = find_achievable(data["device_name"], None, "fp32")
    assert found is not None
    assert (found.flops_per_s, found.how, found.date) == (data["flops_per_s"], data["how"], data["date"])
    assert [str(path) for path in cache.iterdir()] == [data["saved"]]


def test_text_shows_each_shape_and_the_method(capsys: pytest.CaptureFixture[str]) -> None:
    """The figure first; a CPU goes by fp32 unless told otherwise; no line too wide for a terminal."""
    assert main(BRIEF) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("achievable ")
    assert " fp32 on " in lines[0]
    assert any(line.startswith("512x512x512") for line in lines)
    assert any("measured: median of" in line for line in lines)
    assert any(line.startswith("kept in ") for line in lines)
    assert max(map(len, lines)) <= 200


def test_no_save_keeps_nothing(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    """And says so."""
    assert main([*BRIEF, "--no-save"]) == 0
    assert "not kept" in capsys.readouterr().out
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure is printed all the same."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main([*BRIEF, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["saved"] is None
    assert "XDG_CACHE_HOME" in printed.err


BAD = [
    (["--seconds", "0"], "--seconds 0: expected seconds"),
    (["--seconds", "nan"], "--seconds nan"),
    (["--seconds", "soon"], "--seconds soon"),
    (["--seconds", "1e9"], "--seconds 1e9"),
    (["--dtype", "int8"], "--dtype int8: expected bf16"),
    (["--dtype", "bf15"], "--dtype bf15"),
    (["--dtype", "tf32"], "has no TensorFloat-32"),
    (["--device", "cuda:99"], "--device cuda:99: torch sees"),
    (["--device", "tpu"], "--device tpu: expected cuda"),
    (["--device", "mps"], "--device mps: expected cuda"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_bad_input_is_one_sentence_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Option, value and remedy on stderr, nothing on stdout."""
    assert main([*BRIEF, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_without_torch_it_says_what_it_needs() -> None:
    """Exit code 5, no traceback."""
    code = "import sys; sys.modules['torch'] = None; from costguard.cli.main import main; sys.exit(main(['peak']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "pip install torch" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
