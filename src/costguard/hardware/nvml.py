"""Reads once a second, on a thread of its own, what the GPUs of this process do, from NVIDIA's NVML."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from costguard.clock import Clock, SystemClock
from costguard.errors import config_error
from costguard.hardware.driver import code_of, find_cards, import_pynvml, why_closed
from costguard.hardware.readings import LOW_UTILIZATION_RATIO, GpuReading, GpuTotals, Tally
from costguard.hardware.visible import Card, Chosen, named_devices, visible_devices

__all__ = ["LOW_UTILIZATION_RATIO", "REASONS", "GpuEvent", "GpuReading", "GpuTotals", "NvmlSampler"]

JOIN_S = 5.0
"""Longest wait for a question that hangs in the driver."""

REASONS: Mapping[int, str] = {
    0x001: "idle",
    0x002: "app_clocks",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "thermal",
    0x080: "power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Why the driver holds a clock down, by bit. Source: `nvmlClocksThrottleReason*` in nvidia-ml-py 13.615."""

# nvmlReturn_t. Source: nvidia-ml-py 13.615.
_INVALID_ARGUMENT, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _GPU_IS_LOST = 2, 3, 13, 15
_VERSION_MISMATCH, _DEPRECATED = 25, 26
_NEVER = frozenset({_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _VERSION_MISMATCH, _DEPRECATED})

_SM_CLOCK = 1
_Ask = Callable[[Any, Any], Any]
_QUESTIONS: Mapping[str, tuple[_Ask, ...]] = {
    "utilization": (lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100,),
    # The first version counts what the driver keeps for itself as used.
    "memory": (
        lambda n, h: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2),
        lambda n, h: n.nvmlDeviceGetMemoryInfo(h),
    ),
    "power": (lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000,),
    "power_limit": (lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,),
    "energy": (lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h),),
    "clock": (lambda n, h: n.nvmlDeviceGetClockInfo(h, _SM_CLOCK),),
    "clock_limit": (lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, _SM_CLOCK),),
    "reasons": (
        lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h),
        lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
    ),
    "pids": (
        lambda n, h: [process.pid for process in n.nvmlDeviceGetComputeRunningProcesses_v3(h)],
        lambda n, h: [process.pid for process in n.nvmlDeviceGetComputeRunningProcesses_v2(h)],
    ),
}
"""What is asked, each with the ways to ask it, the newest first."""
_OF_THE_CARD = frozenset({"clock", "clock_limit", "reasons"})
"""What a MIG slice shares with its card. The card's power is not among it: it is that of all its slices together."""


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something that happened to a GPU: so far, that it was lost.

    Args:
        at_ns: When, on the sampler's clock.
        uuid: To which.
        message: The sentence for the user.
    """

    at_ns: int
    uuid: str
    message: str


class _LostError(Exception):
    """The driver has lost the GPU."""


class _Device:
    """One GPU or slice under watch: its handles, and which questions it still answers."""

    def __init__(self, uuid: str, handle: Any, card: Any = None) -> None:
        self.uuid = uuid
        self.tally = Tally()
        self.errors = 0
        self.lost_message: str | None = None
        self._handle = handle
        self._card = card
        self._ways = {question: list(ways) for question, ways in _QUESTIONS.items()}

    def read(self, nvml: Any, at_ns: int, pids: Collection[int]) -> GpuReading:
        """Ask everything.

        Raises:
            _LostError: If the driver says so.
        """
        memory, reasons, found = (self._ask(nvml, question) for question in ("memory", "reasons", "pids"))
        return GpuReading(
            at_ns=at_ns,
            uuid=self.uuid,
            utilization_ratio=self._ask(nvml, "utilization"),
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            power_w=self._ask(nvml, "power"),
            power_limit_w=self._ask(nvml, "power_limit"),
            energy_mj=self._ask(nvml, "energy"),
            sm_clock_mhz=self._ask(nvml, "clock"),
            sm_clock_limit_mhz=self._ask(nvml, "clock_limit"),
            throttle_reasons=None if reasons is None else _names(reasons),
            process_count=None if found is None else len(set(found)),
            other_process_count=None if found is None else len(set(found) - set(pids)),
        )

    def _ask(self, nvml: Any, question: str) -> Any:
        ways = self._ways[question]
        handle = self._card if self._card is not None and question in _OF_THE_CARD else self._handle
        while ways:
            try:
                return ways[0](nvml, handle)
            except Exception as error:
                if code_of(error) == _GPU_IS_LOST:
                    raise _LostError from error
                if not self._never(error):
                    self.errors += 1
                    return None
                del ways[0]
        return None

    def _never(self, error: Exception) -> bool:
        """Whether asking again is in vain; an old nvidia-ml-py has no such function, a slice is no such argument."""
        if isinstance(error, AttributeError):
            return True
        return code_of(error) in _NEVER or (self._card is not None and code_of(error) == _INVALID_ARGUMENT)


class NvmlSampler:
    """Watches the GPUs of this process from one thread; nothing of it ever raises into training.

    Args:
        every_s: Seconds between two readings, > 0.
        pids: Process ids that are ours, beside this process: the other ranks of the run.
        clock: The clock.
        nvml: The module `pynvml` of nvidia-ml-py, or what looks like it; imported if not given.
        uuids: The devices to watch, with or without NVML's prefix; `None` for those that `CUDA_VISIBLE_DEVICES` shows.
        environ: Environment variables; this process's if not given.

    Raises:
        ConfigError: If `every_s` is no positive number.
    """

    def __init__(
        self,
        every_s: float = 1.0,
        pids: Collection[int] | None = None,
        clock: Clock | None = None,
        nvml: Any = None,
        *,
        uuids: Sequence[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        if not every_s > 0:
            raise config_error(f"NvmlSampler(every_s={every_s!r}): expected seconds between two readings, such as 1.0.")
        self._every_s = every_s
        self._pids = {os.getpid(), *(pids or ())}
        self._clock = clock or SystemClock()
        self._nvml = nvml
        self._uuids = uuids
        self._environ = os.environ if environ is None else environ
        self._devices: list[_Device] = []
        self._events: list[GpuEvent] = []
        self._problem: str | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def problem(self) -> str | None:
        """Why the figures of some or all GPUs are unknown, with the remedy; `None` as long as they are not."""
        return self._problem

    def start(self) -> None:
        """Begin, and return at once: waking a driver may take seconds. Twice is the same as once."""
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="costguard-nvml", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and give NVML back; twice is the same as once. What was read stays."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                self._problem = f"GPU figures end here: NVML has not answered for {JOIN_S:.0f} s."

    def latest(self) -> dict[str, GpuReading]:
        """The last reading of each GPU, by UUID; one that is lost has none."""
        with self._lock:
            watched = [device for device in self._devices if device.lost_message is None]
            return {device.uuid: device.tally.last for device in watched if device.tally.last is not None}

    def totals(self) -> dict[str, GpuTotals]:
        """What each GPU did since the start, by UUID."""
        with self._lock:
            return {d.uuid: d.tally.totals(d.uuid, d.errors, d.lost_message) for d in self._devices}

    def events(self) -> tuple[GpuEvent, ...]:
        """What happened, oldest first."""
        with self._lock:
            return tuple(self._events)

    def _run(self) -> None:
        try:
            nvml = self._nvml or import_pynvml()
            nvml.nvmlInit()
        except Exception as error:  # a library of any age may raise anything
            self._problem = f"GPU figures are unknown: {why_closed(error)}."
            return
        try:
            self._watch(nvml)
        except Exception as error:
            self._problem = f"GPU figures are unknown: {why_closed(error)}."
        finally:
            # NVML counts its users: this gives back our own use and nobody else's.
            with suppress(Exception):
                nvml.nvmlShutdown()

    def _watch(self, nvml: Any) -> None:
        devices, unknown = _open(nvml, self._uuids, self._environ)
        with self._lock:
            self._devices = devices
        if unknown is not None:
            self._problem = f"GPU figures are unknown: {unknown}."
        while any(device.lost_message is None for device in devices):
            now_ns = self._clock.now_ns()
            for device in devices:
                if device.lost_message is None:
                    self._read(nvml, device, now_ns)
            if self._stop.wait(self._every_s):
                return

    def _read(self, nvml: Any, device: _Device, now_ns: int) -> None:
        try:
            reading = device.read(nvml, now_ns, self._pids)
        except _LostError:
            reading = None
        except Exception:  # an answer that is no answer
            device.errors += 1
            return
        with self._lock:
            if reading is not None:
                device.tally.add(reading)
                return
            message = (
                f"{device.uuid} is lost: the driver cannot reach it any more, and what trains on it will fail or hang; "
                "take its node out of use and look for `Xid` in the kernel's log."
            )
            device.lost_message = message
            self._events.append(GpuEvent(now_ns, device.uuid, message))


def _names(bits: int) -> frozenset[str]:
    return frozenset(REASONS.get(1 << at, f"bit_{at}") for at in range(bits.bit_length()) if bits >> at & 1)


def _open(nvml: Any, uuids: Sequence[str] | None, environ: Mapping[str, str]) -> tuple[list[_Device], str | None]:
    """Find the devices to watch, and why some are not known."""
    found = find_cards(nvml)
    cards = [each.card for each in found.cards]
    handles: dict[str, tuple[Any, Any]] = {}
    for each in found.cards:
        handles[each.card.uuid] = (each.handle, None)
        handles.update({uuid: (handle, each.handle) for uuid, handle in each.slice_handles.items()})
    chosen = _choose(cards, uuids, environ, found.closed)
    return [_Device(uuid, *handles[uuid]) for uuid in chosen.uuids], chosen.unknown


def _choose(cards: list[Card], uuids: Sequence[str] | None, environ: Mapping[str, str], closed: str | None) -> Chosen:
    if uuids is not None:
        return named_devices(cards, uuids)
    chosen = visible_devices(cards, environ, complete=closed is None)
    return Chosen(chosen.uuids, chosen.unknown or (closed if environ.get("CUDA_VISIBLE_DEVICES") is None else None))
