"""The matmul rates that were measured on a device: how they are measured, kept, and found again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costguard.errors import ConfigError
from costguard.hardware.achievable import Achievable, cache_folder, find_achievable, save_achievable
from costguard.hardware.matmul_sweep import cpu_stopwatch, cuda_stopwatch, sweep

CPU = torch.device("cpu")
CARD = Achievable(
    flops_per_s=794.5e12,
    max_flops_per_s=810e12,
    dtype="bf16",
    device_name="NVIDIA H100 80GB HBM3",
    uuid="GPU-1",
    shape=(8192, 28672, 8192),
    date="2026-11-30",
    how="measured: median of 12 8192x28672x8192 bf16 matmuls, CUDA events, torch 2.13.0",
)

# -- kept and found -------------------------------------------------------------------------------------------------


def test_what_is_saved_is_found_on_the_very_device(tmp_path: Path) -> None:
    """By UUID and dtype; another card of the same name, another dtype, the name alone are not it."""
    path = save_achievable(CARD, tmp_path)
    assert find_achievable(CARD.device_name, "GPU-1", "bf16", folder=tmp_path) == CARD
    assert find_achievable(CARD.device_name, "GPU-2", "bf16", folder=tmp_path) is None
    assert find_achievable(CARD.device_name, "GPU-1", "fp16", folder=tmp_path) is None
    assert find_achievable(CARD.device_name, None, "bf16", folder=tmp_path) is None
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_measurement_takes_the_place_of_the_old(tmp_path: Path) -> None:
    """One file a device and dtype; a CPU goes by its name."""
    cpu = replace(CARD, uuid=None, device_name="AMD EPYC, 2 threads")
    for rate in (1e9, 2e9):
        save_achievable(replace(cpu, flops_per_s=rate), tmp_path)
    found = find_achievable("AMD EPYC, 2 threads", None, "bf16", folder=tmp_path)
    assert found is not None
    assert found.flops_per_s == 2e9
    assert len(list(tmp_path.iterdir())) == 1


def test_names_that_share_a_file_name_are_told_apart(tmp_path: Path) -> None:
    """What the file says counts, not what it is called."""
    save_achievable(replace(CARD, uuid=None, device_name="A (B)"), tmp_path)
    assert find_achievable("A-B", None, "bf16", folder=tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "1", '{"schema_version": 1}', "\x00"])
def test_a_file_that_is_none_of_ours_is_no_measurement(tmp_path: Path, text: str) -> None:
    """Nor does it raise."""
    save_achievable(CARD, tmp_path).write_text(text)
    assert find_achievable(CARD.device_name, "GPU-1", "bf16", folder=tmp_path) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema_version", 2),
        ("flops_per_s", -1),
        ("flops_per_s", "fast"),
        ("flops_per_s", float("nan")),
        ("shape", [1]),
        ("shape", None),
    ],
)
def test_a_figure_that_cannot_be_is_no_measurement(tmp_path: Path, key: str, value: Any) -> None:
    """The whole file is left alone."""
    path = save_achievable(CARD, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert find_achievable(CARD.device_name, "GPU-1", "bf16", folder=tmp_path) is None


def test_a_folder_that_takes_nothing_is_told_and_left_clean(tmp_path: Path) -> None:
    """A directory stands where the file should: the system's error, and no draft left behind."""
    path = save_achievable(CARD, tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        save_achievable(CARD, tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_cache_follows_xdg(tmp_path: Path) -> None:
    """A relative or empty variable is as if not set."""
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "costguard"
    for unset in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(unset) == Path.home() / ".cache" / "costguard"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=300), uuid=st.none() | st.text(max_size=60), rate=st.floats(1e-3, 1e30))
def test_any_name_can_be_kept(tmp_path: Path, name: str, uuid: str | None, rate: float) -> None:
    """Whatever a driver calls its device, what was kept is found, or it says that it cannot be."""
    kept = replace(CARD, device_name=name, uuid=uuid, flops_per_s=rate)
    try:
        save_achievable(kept, tmp_path)
    except ValueError:  # a lone surrogate is no text
        return
    assert find_achievable(name, uuid, "bf16", folder=tmp_path) == kept


def test_it_is_read_without_torch(tmp_path: Path) -> None:
    """A report needs neither torch nor NVML."""
    code = (
        "import sys; from pathlib import Path; from costguard.hardware.achievable import find_achievable; "
        "found = find_achievable('NVIDIA H100 80GB HBM3', 'GPU-1', 'bf16', folder=Path(sys.argv[1])); "
        "heavy = {'torch', 'numpy', 'pynvml'} & set(sys.modules); sys.exit(str(heavy) if heavy or not found else 0)"
    )
    save_achievable(CARD, tmp_path)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


# -- measured -------------------------------------------------------------------------------------------------------


def taking(seconds: float) -> Callable[[Callable[[], object], int], list[float]]:
    """A stopwatch by which each product takes so long; one runs nevertheless."""

    def burst(multiply: Callable[[], object], count: int) -> list[float]:
        multiply()
        return [seconds] * count

    return burst


def test_the_rate_is_flops_over_the_median_time() -> None:
    """2 M N K each; the quickest is kept apart."""
    swept = sweep(CPU, "fp32", 1e-9, shapes=[(8, 4, 2)], stopwatch=lambda multiply, count: [1.0, 0.5, 1.0])
    assert (swept.best.flops_per_s, swept.best.max_flops_per_s, swept.best.products) == (128.0, 256.0, 3)


def test_the_best_shape_is_that_with_the_highest_median() -> None:
    """Each shape has its own rate."""
    swept = sweep(CPU, "fp32", 0.02, shapes=[(2, 2, 2), (4, 4, 4)], stopwatch=taking(1e-6))
    assert [rate.flops_per_s for rate in swept.rates] == [pytest.approx(16e6), pytest.approx(128e6)]
    assert swept.best.shape == (4, 4, 4)


def test_a_product_that_would_take_too_long_is_left_out() -> None:
    """Judged by the shape before it, and said."""
    swept = sweep(CPU, "fp32", 0.02, shapes=[(2, 2, 2), (512, 512, 512)], stopwatch=taking(1.0))
    assert list(swept.skipped) == [(512, 512, 512)]
    assert "longer" in swept.skipped[(512, 512, 512)]


def test_a_shape_that_fails_is_left_out_with_the_reason() -> None:
    """As where memory does not suffice; the others count."""

    def small_memory(multiply: Callable[[], object], count: int) -> list[float]:
        if multiply.__closure__ and any(
            isinstance(cell.cell_contents, torch.Tensor) and cell.cell_contents.numel() > 4
            for cell in multiply.__closure__
        ):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB")
        return [1e-9] * count

    swept = sweep(CPU, "fp32", 0.01, shapes=[(2, 2, 2), (4, 4, 4)], stopwatch=small_memory)
    assert swept.best.shape == (2, 2, 2)
    assert swept.skipped == {(4, 4, 4): "CUDA out of memory. Tried to allocate 6.00 GiB"}


def test_a_dtype_that_nothing_can_be_multiplied_in_is_an_error() -> None:
    """With the library's reason and the remedy."""

    def not_implemented(multiply: Callable[[], object], count: int) -> list[float]:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    with pytest.raises(ConfigError, match=r"Half.*choose another"):
        sweep(CPU, "fp16", 0.01, stopwatch=not_implemented)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_a_cpu_is_really_measured(dtype: str) -> None:
    """Real products, real time; the user's random numbers and precision of products stay as they are."""
    torch.manual_seed(0)
    before, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    swept = sweep(CPU, dtype, 0.05, shapes=[(64, 64, 64), (96, 96, 96)])
    assert 0 < swept.best.flops_per_s <= max(rate.max_flops_per_s for rate in swept.rates)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_float32_matmul_precision() == precision


def test_a_cpus_times_are_one_a_call() -> None:
    """Each at least a nanosecond."""
    calls: list[int] = []
    assert len(cpu_stopwatch(lambda: calls.append(1), 5)) == len(calls) == 5


def test_a_gpus_times_are_between_events_and_waited_for_once() -> None:
    """All products of a burst are queued before anything is waited for, so that none starts from an empty queue."""
    log: list[str] = []

    class Mark:
        made = 0

        def __init__(self) -> None:
            Mark.made += 1
            self.number = Mark.made

        def record(self) -> None:
            log.append("mark")

        def elapsed_time(self, later: Mark) -> float:
            assert log[-1] == "wait"
            return float(later.number - self.number)

    times = cuda_stopwatch(Mark, lambda: log.append("wait"))(lambda: log.append("product"), 3)
    assert times == [0.001] * 3
    assert log == ["mark", "product", "mark", "product", "mark", "product", "mark", "wait"]
