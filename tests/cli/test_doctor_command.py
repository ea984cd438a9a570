"""`costguard doctor` as a user runs it: real nvidia-ml-py on a driver library that is built here, and without any."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costguard import __version__
from costguard.hardware.abilities import Device
from costguard.hardware.achievable import Achievable, save_achievable
from costguard.hardware.inventory import Gpu, Inventory, read_inventory
from costguard.reports.machine import describe_machine
from costguard.reports.machine_text import render_machine
from nvml_stub import CARD_0, CARD_1, build_library, environment

SLICE = "MIG-00000000-0000-0000-0000-000000000000"
Doctor = Callable[..., Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a new driver."""
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def doctor(library: Path, tmp_path: Path) -> Doctor:
    """Runs the command in a folder and with a cache of its own; gives its JSON, or its text."""

    def run(*, text: bool = False, folder: Path | None = None, **told: str | int) -> Any:
        env = environment(folder or library, **told)
        env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        command = [sys.executable, "-m", "costguard", "doctor", *([] if text else ["--json"])]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout if text else json.loads(done.stdout)

    return run


def test_a_card_is_named_with_its_facts_and_every_peak(doctor: Doctor) -> None:
    """As the driver says it, each peak with its source, each unknown one with its reason."""
    data = doctor(LIMIT_MW=650500)
    (gpu,) = data["gpus"]
    peaks = gpu.pop("peaks")
    assert gpu == {
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": CARD_0,
        "visible": True,
        "sm_count": 132,
        "compute_capability": "9.0",
        "sm_clock_limit_mhz": 1980.0,
        "memory_total_bytes": 80_000_000_000,
        "power_limit_w": 650.5,
        "mig": False,
        "slices": [],
    }
    assert list(peaks) == ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]
    assert peaks["bf16"] == {
        "flops_per_s": 989.4e12,
        "source": "table: NVIDIA H100 80GB HBM3, bf16 dense, 2026-11",
        "estimated": False,
        "reason": None,
        "achievable_flops_per_s": None,
        "achievable_date": None,
    }
    assert (peaks["fp4"]["flops_per_s"], peaks["fp4"]["source"]) == (None, None)
    assert "peak_flops_per_s=" in peaks["fp4"]["reason"]


def test_versions_are_those_of_the_packages_and_the_driver(doctor: Doctor) -> None:
    """What is not installed is null, not left out."""
    data = doctor()
    assert data["schema_version"] == 1
    assert data["versions"]["costguard"] == __version__
    assert (data["versions"]["nvidia_driver"], data["versions"]["driver_cuda"]) == ("580.65.06", "13.0")
    assert set(data["versions"]) >= {"torch", "lightning", "nvidia-ml-py", "python"}


def test_two_cards_are_told_apart_and_a_hidden_one_is_said(doctor: Doctor) -> None:
    """A T4 beside an H100; CUDA shows the second only."""
    story = {"NAMES": "NVIDIA H100 80GB HBM3,Tesla T4", "CAPABILITY": "9.0,7.5", "CORES": "16896,2560"}
    data = doctor(CARDS=2, CUDA_VISIBLE_DEVICES=CARD_1, **story)
    assert [(gpu["name"], gpu["sm_count"], gpu["visible"]) for gpu in data["gpus"]] == [
        ("NVIDIA H100 80GB HBM3", 132, False),
        ("Tesla T4", 40, True),
    ]
    assert data["gpus"][1]["peaks"]["fp16"]["flops_per_s"] == 65e12
    assert data["gpus"][1]["peaks"]["bf16"]["flops_per_s"] is None
    assert (data["visible"], data["cuda_visible_devices"]) == ([CARD_1], CARD_1)
    assert data["allocation"]["gpus_visible"] == 1
    text = doctor(text=True, CARDS=2, CUDA_VISIBLE_DEVICES=CARD_1, **story)
    assert f"{CARD_0}, hidden by" in text
    assert "fp32 8.1 TFLOP/s, fp16 65 TFLOP/s, int8 130 TFLOP/s (table: Tesla T4, dense, 2026-11)" in text


def test_numbers_that_may_mean_any_card_are_unknown_with_the_remedy(doctor: Doctor) -> None:
    """CUDA orders unlike cards by speed; whom 0 shows is not guessed."""
    data = doctor(CARDS=2, NAMES="NVIDIA H200,Tesla T4", CUDA_VISIBLE_DEVICES="0")
    assert [gpu["visible"] for gpu in data["gpus"]] == [None, None]
    assert data["visible"] is data["allocation"]["paid_devices_of_one_rank"] is None
    assert any("PCI_BUS_ID" in problem for problem in data["problems"])


@pytest.mark.parametrize("adds", [" MIG 1g.10gb", ""])
def test_a_sliced_card_has_the_peaks_of_its_slices(doctor: Doctor, adds: str) -> None:
    """16 of 132 SMs, marked as scaled; the card itself computes nothing. A driver that names no profile gets one."""
    data = doctor(MIG=2, SLICE_NAME=adds)
    (gpu,) = data["gpus"]
    assert (gpu["mig"], gpu["peaks"], len(gpu["slices"])) == (True, {}, 2)
    first = gpu["slices"][0]
    assert (first["name"], first["uuid"], first["sm_count"]) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", SLICE, 16)
    assert first["peaks"]["bf16"]["flops_per_s"] == pytest.approx(989.4e12 * 16 / 132)
    assert first["peaks"]["bf16"]["estimated"] is True
    text = doctor(text=True, MIG=2)
    assert "in MIG mode" in text
    assert "16 of 132 SMs; estimated: scaled to MIG 1g.10gb" in " ".join(text.split())


def test_a_card_in_mig_mode_without_slices_is_explained(doctor: Doctor) -> None:
    """Nothing can compute on it until one is made."""
    assert "nvidia-smi mig -cgi" in doctor(text=True, MIG=0)


def test_an_unknown_card_is_unknown_with_the_remedy(doctor: Doctor) -> None:
    """No peak of another card; one reason for all dtypes."""
    story = {"NAMES": "NVIDIA Tomorrow", "CAPABILITY": "13.0"}
    (gpu,) = doctor(**story)["gpus"]
    assert gpu["sm_count"] is None
    assert {peak["flops_per_s"] for peak in gpu["peaks"].values()} == {None}
    words = " ".join(doctor(text=True, **story).split())
    assert "fp8, fp4, int8: NVIDIA Tomorrow is not in the table; state it with peak_flops_per_s=" in words


def test_an_unlisted_card_of_a_known_kind_is_estimated(doctor: Doctor) -> None:
    """SMs x FLOP/clk x clock, and called an estimate."""
    (gpu,) = doctor(NAMES="NVIDIA H123")["gpus"]
    assert gpu["peaks"]["bf16"]["estimated"] is True
    assert gpu["peaks"]["bf16"]["source"].startswith("estimate: 132 SMs x 4096 FLOP/clk x 1980 MHz")


def test_what_was_measured_stands_beside_the_peak(doctor: Doctor, tmp_path: Path) -> None:
    """Of this very card, by its UUID; that of another one is only listed."""
    own = Achievable(
        flops_per_s=791.52e12,
        max_flops_per_s=800e12,
        dtype="bf16",
        device_name="NVIDIA H100 80GB HBM3",
        uuid=CARD_0,
        shape=(8192, 8192, 8192),
        date="2026-11-30",
        how="measured: by hand",
    )
    for each in (own, replace(own, uuid=CARD_1, flops_per_s=1e12)):
        save_achievable(each, tmp_path / "cache" / "costguard")
    data = doctor()
    assert data["gpus"][0]["peaks"]["bf16"]["achievable_flops_per_s"] == 791.52e12
    assert data["gpus"][0]["peaks"]["fp16"]["achievable_flops_per_s"] is None
    assert {each["uuid"] for each in data["measured"]} == {CARD_0, CARD_1}
    assert "bf16 791.52 TFLOP/s, 80.0% of the peak, measured on 2026-11-30" in doctor(text=True)


@pytest.mark.parametrize(("code", "word"), [(9, "nvidia-smi"), (18, "reboot")])
def test_a_driver_that_does_not_start_is_said_with_the_remedy(doctor: Doctor, code: int, word: str) -> None:
    """It is a report, so it succeeds."""
    data = doctor(FAIL=f"nvmlInitWithFlags={code}")
    assert (data["gpus"], data["visible"]) == ([], None)
    assert word in data["problems"][0]


def test_without_a_driver_it_says_so(doctor: Doctor, tmp_path: Path) -> None:
    """A library that cannot be loaded; the job and the folder are still reported."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    data = doctor(folder=tmp_path)
    assert data["gpus"] == []
    assert "libnvidia-ml.so.1" in data["problems"][0]
    assert data["folder"]["path"] == str(tmp_path)
    text = doctor(text=True, folder=tmp_path)
    assert "none recognised (libnvidia-ml.so.1 cannot be loaded" in text


def test_an_old_driver_leaves_facts_unknown(tmp_path: Path, doctor: Doctor) -> None:
    """No core count and no CUDA version; the peak still follows from the name."""
    old = tmp_path / "old"
    old.mkdir()
    data = doctor(folder=build_library(old, "-DFAKE_OLD"))
    (gpu,) = data["gpus"]
    assert (gpu["sm_count"], data["versions"]["driver_cuda"]) == (None, None)
    assert gpu["peaks"]["bf16"]["flops_per_s"] == 989.4e12


def test_a_hidden_machine_is_explained(doctor: Doctor) -> None:
    """An empty CUDA_VISIBLE_DEVICES is a common reason to see no GPU."""
    assert any("CUDA_VISIBLE_DEVICES=''" in problem for problem in doctor(CUDA_VISIBLE_DEVICES="")["problems"])


def test_a_card_that_cannot_be_opened_is_said(doctor: Doctor) -> None:
    """The others are shown."""
    data = doctor(CARDS=2, FAIL="nvmlDeviceGetHandleByIndex_v2#0=15")
    assert [gpu["uuid"] for gpu in data["gpus"]] == [CARD_1]
    assert any("GPU 0" in problem for problem in data["problems"])
    assert data["visible"] is None


def test_the_job_is_the_schedulers(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs are given, though CUDA shows one: four are paid for."""
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SLURM_GPUS_ON_NODE": "4"}.items():
        monkeypatch.setenv(name, value)
    found = doctor()["allocation"]
    assert (found["job"], found["hold"], found["restarted"]) == ("slurm:7", "slurm:7.2", True)
    assert (found["gpus_by_scheduler"], found["gpus_visible"], found["paid_devices_of_one_rank"]) == (4, 1, 4)
    text = doctor(text=True)
    assert "slurm:7, started again" in text
    assert "the scheduler gives 4 GPUs; 4 paid for" in text


# -- what a process of its own does not show ------------------------------------------------------------------------


def test_without_nvidia_ml_py_and_torch_it_works() -> None:
    """A laptop: exit code 0, neither is imported, and what to install is said."""
    code = (
        "import sys; sys.modules['pynvml'] = None; from costguard.cli.main import main; code = main(['doctor']); "
        "heavy = {'torch', 'lightning', 'numpy'} & set(sys.modules); sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install nvidia-ml-py" in " ".join(done.stdout.split())


def test_a_folder_that_dies_with_the_machine_is_said() -> None:
    """Memory, or a container's own layer; with the remedy."""
    machine = describe_machine(Inventory(), {}, "/dev/shm")
    assert machine["folder"]["dies_with_machine"] is not None
    assert "mirror the journal" in render_machine(machine)


def test_a_torch_without_cuda_beside_a_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual reason why a GPU is not used; without a GPU it is none."""
    monkeypatch.setattr("costguard.reports.machine._version", lambda name: "2.13.0+cpu")
    card = Gpu(device=Device(name="NVIDIA L4", uuid=CARD_0))
    machine = describe_machine(Inventory(gpus=(card,), visible=(CARD_0,)), {}, ".")
    assert any("built without CUDA" in problem for problem in machine["problems"])
    assert describe_machine(Inventory(), {}, ".")["problems"] == []


@pytest.mark.parametrize("answer", [RuntimeError("odd"), None, "text", -1, OSError(5, "odd")])
def test_nonsense_of_a_library_is_no_error(answer: Any) -> None:
    """Whatever it answers, there is an inventory, and it can be reported."""

    class Odd:
        def __getattr__(self, name: str) -> Any:
            found = {"nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": object(), "nvmlDeviceGetUUID": CARD_0}
            known: dict[str, Any] = {"nvmlInit": None, **found}

            def function(*args: Any) -> Any:
                if name not in known and isinstance(answer, Exception):
                    raise answer
                return known.get(name, answer)

            return function

    machine = describe_machine(read_inventory(Odd(), {}), {}, ".")
    json.dumps(machine)
    assert CARD_0 in render_machine(machine)


def test_no_line_is_too_wide(doctor: Doctor) -> None:
    """But for a path or a name that cannot be broken."""
    lines = doctor(text=True, CARDS=3, MIG="-1,2,-1", NAMES="NVIDIA H200,NVIDIA H100 80GB HBM3,Tesla T4").splitlines()
    assert max(len(line) for line in lines if "/" not in line) <= 100
