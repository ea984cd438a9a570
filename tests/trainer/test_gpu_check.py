"""The check that is run on a GPU: its count by hand, its manners without a GPU, and all of it that a CPU can do."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from costguard import CostguardWarning
from costguard.hardware.abilities import Device

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        patch.setitem(sys.modules, "gpu_check", module)  # dataclasses look their module up
        spec.loader.exec_module(module)
    return module


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user does."""
    command = [sys.executable, str(SCRIPT), *arguments]
    environ = {**os.environ, **env}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("way", ["eager", "checkpointed"])
def test_the_count_by_hand_is_that_of_torch(script: ModuleType, way: str) -> None:
    """To the last FLOP, on the meta device, where torch's counter misses no operator; recomputation is apart."""
    size = script.TINY
    with torch.device("meta"):
        net = script.GPT(size, way).net
        tokens = torch.zeros(size.batch, size.length + 1, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            logits = net(tokens[:, :-1])
            functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    again = size.recomputed() if way == "checkpointed" else 0
    assert counter.get_total_flops() == size.flops("full_attention") + again


def test_the_causal_count_leaves_out_half_of_the_attention(script: ModuleType) -> None:
    """And nothing else."""
    size = script.TINY
    attention = size.flops("full_attention") - size.flops("causal")
    assert attention == 6 * size.tokens * size.length * size.width * size.layers


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_says_so_and_exits_4(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is skipped silently: no table, one sentence with the remedy."""
    assert script.main([]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "costguard doctor" in printed.err


@pytest.mark.parametrize("seconds", ["1", "600", "nan"])
def test_it_takes_at_most_six_minutes(script: ModuleType, seconds: str) -> None:
    """More, or too little to be judged, is refused."""
    with pytest.raises(SystemExit, match="2"):
        script.main(["--device", "cpu", "--seconds", seconds])


# -- what is done on a GPU only, with a GPU that is made of fakes ---------------------------------------------------


class Event:
    """An event of a device that is never behind."""

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1000


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts such events in the place of CUDA's, and notes how synchronisation is to be treated."""
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", seen.append)
    return seen


@pytest.fixture
def check(script: ModuleType, tmp_path: Path) -> Any:
    """A check that takes the CPU for a GPU."""
    return script.Check(torch.device("cpu"), script.TINY, 0.2, str(tmp_path), True)


class Syncs(Callback):
    """Reads from the device in a late step, as CostMonitor would be seen to: it warns, and training goes on."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 8 and self.how == "warns":
            warnings.warn("costguard: on_train_batch_end failed (RuntimeError)", CostguardWarning, stacklevel=1)
        elif batch_idx == 8:
            raise RuntimeError("called a synchronizing CUDA operation")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("how", "said"), [("warns", "failed (RuntimeError)"), ("raises", "synchronizing CUDA")])
def test_a_synchronisation_is_found(script: ModuleType, check: Any, modes: list[str], how: str, said: str) -> None:
    """Whether it is raised or kept from training; errors are off again afterwards."""
    found = script._sync_in(check, [Syncs(how)], 12)
    assert said in found
    assert (modes[0], modes[-1]) == ("error", "default")


@pytest.mark.filterwarnings("ignore")
def test_without_a_synchronisation_none_is_found(script: ModuleType, check: Any, modes: list[str]) -> None:
    """Bare, then with CostMonitor."""
    script.no_sync(check)
    assert [(row.ours, row.verdict) for row in check.rows] == [("none", "ok")]
    assert modes.count("error") == 2


@pytest.mark.filterwarnings("ignore")
def test_nvmls_figures_are_set_beside_nvidia_smis(
    script: ModuleType, check: Any, modes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of that name is asked while the GPU trains; idle readings of it do not count; MFU has its row."""
    program = tmp_path / "nvidia-smi"
    busy, idle, seen = "echo '505.0, 1500, 31000, 98'", "echo '90.0, 345, 500, 0'", tmp_path / "seen"
    program.write_text(f"#!/bin/sh\nif [ -e {seen} ]; then {busy}; else : > {seen}; {idle}; fi\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    check.run_s = 3.5
    script.utilization(check, "eager", Watched())
    rows = {row.what: row for row in check.rows}
    power = rows["power beside nvidia-smi, W"]
    assert (power.ours, power.other, power.verdict) == ("500.0", "505.0", "ok       0.9901")
    assert rows["memory in use, MiB"].verdict.startswith("ok")
    assert rows["SM clock beside nvidia-smi, MHz"].verdict.startswith("DIFFERS")
    assert rows["energy by counter and by power, J"].verdict.startswith("ok")
    assert rows["clock held down by"].ours == "power_cap 25%"
    assert any(what.startswith("eager: MFU") for what in rows)
    assert script.judge(check) == 1


class Watched:
    """A watch that saw a busy GPU."""

    device = Device(name="NVIDIA H200", uuid="GPU-1")

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def warnings(self) -> list[str]:
        return []

    def fact(self) -> dict[str, Any]:
        return {
            "power_mean_w": 500.0,
            "sm_clock_mean_mhz": 1900.0,
            "memory_max_bytes": 31000 * 2**20,
            "energy_j": 5000.0,
            "elapsed_s": 10.0,
            "throttled_ratio": {"power_cap": 0.25},
        }


def test_without_nvidia_smi_its_figures_are_unknown(
    script: ModuleType, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason in a row; the exit code says that something is unknown."""
    monkeypatch.setenv("PATH", str(tmp_path))
    smi = script.NvidiaSmi("GPU-1")
    with smi:
        smi._thread.join(10)
    script.power_and_clocks(check, Watched(), smi)
    assert [row.verdict.split()[0] for row in check.rows] == ["UNKNOWN", "UNKNOWN", "UNKNOWN", "ok", "shown", "UNKNOWN"]
    assert "nvidia-smi" in check.rows[-1].ours
    assert script.judge(check) == 5


# -- the whole of it ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_that_a_cpu_can_do_runs_through(tmp_path: Path) -> None:
    """Counts agree; what is unknown or needs a GPU is said in a row of its own, and no time is judged."""
    done = run("--device", "cpu", "--seconds", "20", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert done.returncode in (0, 5), done.stdout + done.stderr
    assert "DIFFERS" not in done.stdout
    for way in ("eager", "compiled", "checkpointed"):
        rows = [line for line in done.stdout.splitlines() if line.startswith(f"{way}:")]
        assert len(rows) == 5
        assert any("6ND" in row and " ok " in row for row in rows)
        assert any("MFU" in row and "shown" in row for row in rows)
    assert "step with and without CostMonitor" in done.stdout
    assert done.stdout.count("NOT HERE") == 2
