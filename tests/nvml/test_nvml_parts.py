"""The parts of the NVML sampler that need no library: thread, choice of devices, and what readings add up to."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costguard.errors import ConfigError
from costguard.hardware.nvml import REASONS, NvmlSampler
from costguard.hardware.readings import GpuReading, Tally
from costguard.hardware.visible import Card, named_devices, visible_devices

A = "GPU-00000000-0000-0000-0000-000000000000"

# -- the thread -----------------------------------------------------------------------------------------------------


class Odd:
    """A library that finds one card, and whose every other function raises or answers nonsense."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __getattr__(self, name: str) -> Any:
        known = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetUUID": A.encode()}

        def function(*args: Any, **options: Any) -> Any:
            if name not in known and isinstance(self.answer, Exception):
                raise self.answer
            return known.get(name, self.answer)

        return function


@pytest.mark.parametrize("answer", [RuntimeError("odd"), None, "text", -1, OSError(5, "odd")])
def test_nonsense_never_leaves_the_thread(answer: Any) -> None:
    """Whatever the library says: no exception (pytest makes one of a thread an error), no hang."""
    sampler = NvmlSampler(0.001, nvml=Odd(answer), environ={})
    sampler.start()
    time.sleep(0.02)
    sampler.stop()
    assert isinstance(sampler.totals(), dict)
    assert isinstance(sampler.latest(), dict)


def test_a_driver_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """`stop` gives up after a while and says so."""
    monkeypatch.setattr("costguard.hardware.nvml.JOIN_S", 0.01)
    answer = threading.Event()
    library: Any = Odd(None)
    library.nvmlDeviceGetUtilizationRates = lambda handle: answer.wait(20)
    sampler = NvmlSampler(0.001, nvml=library, environ={})
    sampler.start()
    sampler.stop()
    assert "has not answered" in (sampler.problem or "")
    answer.set()
    monkeypatch.undo()
    sampler.stop()


def test_stop_without_start_is_nothing() -> None:
    """Nor does it begin afterwards."""
    sampler = NvmlSampler(nvml=Odd(None))
    sampler.stop()
    sampler.start()
    assert sampler.totals() == {}


@pytest.mark.parametrize("every_s", [0, -1, float("nan")])
def test_the_time_between_readings_is_positive(every_s: float) -> None:
    """Else a ConfigError with an example."""
    with pytest.raises(ConfigError, match="every_s"):
        NvmlSampler(every_s)


def test_the_names_of_reasons_are_those_of_the_binding() -> None:
    """Each bit that nvidia-ml-py knows has a name here."""
    import pynvml

    bits = {v for k, v in vars(pynvml).items() if k.startswith("nvmlClocksThrottleReason") and isinstance(v, int)}
    assert {bit for bit in bits if bit.bit_count() == 1} == set(REASONS)


# -- pure parts -----------------------------------------------------------------------------------------------------

X, Y, Z = (Card(f"GPU-{c}{c}", "NVIDIA L4", bus) for c, bus in (("a", "3"), ("b", "1"), ("c", "2")))
SLICED = Card("GPU-d", "NVIDIA A100", "4", ("MIG-d1", "MIG-d2"))
ONE_SLICE = Card("GPU-e", "NVIDIA A100", "5", ("MIG-e1",))
BARE = Card("GPU-f", "NVIDIA L4", None)

VISIBLE = [
    ((X, Y), None, ("GPU-aa", "GPU-bb")),
    ((X, Y, Z), "0", ("GPU-bb",)),
    ((X, Y, Z), "1 , 2", ("GPU-cc", "GPU-aa")),
    ((X, Y, Z), "1gpu,2x", ("GPU-cc", "GPU-aa")),
    ((X, Y, Z), "0,7,1", ("GPU-bb",)),
    ((X, Y, Z), "0,0", ()),
    ((X, Y, Z), "NoDevFiles", ()),
    ((X, Y, Z), "9", ()),
    ((X, Y, Z), "GPU-bb,GPU-none,GPU-aa", ("GPU-bb",)),
    ((X, Y, Z), "GPU-", ()),
    ((X, Y, Z), "GPU-bb,GPU-b", ()),
    ((X, Y, Z), "GPU-aa,0", ("GPU-aa",)),
    ((X, BARE), "0,1", ("GPU-f", "GPU-aa")),
    ((X, BARE), "0", None),
    ((SLICED,), "MIG-d2", ("MIG-d2",)),
    ((SLICED,), "0", None),
    ((SLICED, X), "GPU-d", None),
    ((ONE_SLICE, X), "GPU-e,GPU-a", ("MIG-e1", "GPU-aa")),
    ((ONE_SLICE, X), "0", None),
    ((), "0", ()),
]


@pytest.mark.parametrize(("cards", "visible", "shown"), VISIBLE)
def test_visible_devices_are_those_of_cuda(
    cards: tuple[Card, ...], visible: str | None, shown: tuple[str, ...] | None
) -> None:
    """The whole table; `None` is not known, which is said instead of guessed."""
    chosen = visible_devices(cards, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert chosen.uuids == (shown or ())
    assert (chosen.unknown is None) is (shown is not None)


def test_numbers_are_unknown_beside_a_card_that_cannot_be_opened() -> None:
    """Whether CUDA counts it is not known; UUIDs are."""
    assert visible_devices([X], {"CUDA_VISIBLE_DEVICES": "0"}, complete=False).unknown
    assert visible_devices([X], {"CUDA_VISIBLE_DEVICES": "GPU-aa"}, complete=False).unknown is None


def test_devices_are_found_by_uuids_with_and_without_prefix() -> None:
    """Torch leaves it out; a name twice is one device."""
    assert named_devices([X, SLICED], ["aa", "GPU-aa", "d2"]).uuids == ("GPU-aa", "MIG-d2")
    assert "GPU-zz" in (named_devices([X], ["GPU-zz"]).unknown or "")


@given(st.lists(st.tuples(st.none() | st.integers(0, 10**6), st.none() | st.floats(0, 1e3)), max_size=30))
def test_energy_is_never_negative_and_never_less_than_what_the_counter_gained(
    readings: list[tuple[int | None, float | None]],
) -> None:
    """Whatever the counter does, and whatever is unknown between."""
    tally = Tally()
    for second, (counter, power) in enumerate(readings):
        tally.add(GpuReading(at_ns=second * 10**9, uuid=A, energy_mj=counter, power_w=power))
    counted = [counter for counter, _ in readings if counter is not None]
    gained = sum(max(0, later - earlier) for earlier, later in pairwise(counted)) / 1000
    assert (tally.totals(A).energy_j or 0.0) >= gained - 1e-6
    assert tally.totals(A).energy_j is not None or gained == 0


def test_a_busy_moment_begins_idleness_anew() -> None:
    """`idle_s` is the sum, `idle_for_s` the stretch up to now; an unknown moment ends a stretch, too."""
    tally = Tally()
    for second, use in enumerate([0.0, 0.01, 0.9, 0.0, 0.0, 0.0]):
        tally.add(GpuReading(at_ns=second * 10**9, uuid=A, utilization_ratio=use, other_process_count=0))
    assert (tally.totals(A).idle_s, tally.totals(A).idle_for_s) == (3.0, 2.0)
    tally.add(GpuReading(at_ns=6 * 10**9, uuid=A, utilization_ratio=0.0))
    assert (tally.totals(A).idle_s, tally.totals(A).idle_for_s) == (3.0, 0.0)
