"""What a GPU was seen doing: one reading, and the totals of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from costguard.units import NS_PER_S

LOW_UTILIZATION_RATIO = 0.05
"""Below it a GPU does nothing that is worth its price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU, or MIG slice, at one instant; what is not known is `None`.

    Args:
        at_ns: When, on the sampler's clock.
        uuid: Which, as NVML writes it (`GPU-...`, `MIG-...`).
        utilization_ratio: Share of NVML's own last period (up to 1 s) in which any kernel ran, however small.
        memory_used_bytes: In use by anybody; where the driver tells it apart, without what it keeps for itself.
        memory_total_bytes: All there is.
        power_w: Drawn by the board, on recent cards a mean over 1 s.
        power_limit_w: The limit in force.
        energy_mj: Counter of millijoules since the driver was loaded.
        sm_clock_mhz: Clock of the multiprocessors.
        sm_clock_limit_mhz: The highest that they have.
        throttle_reasons: What holds the clock down, such as `power_cap`, `thermal`, `idle`; empty if nothing does.
        process_count: Processes that compute on it.
        other_process_count: Those of them that are not ours. In a container NVML may number processes as the host
            does: ours then count as others.
    """

    at_ns: int
    uuid: str
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_mj: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_limit_mhz: int | None = None
    throttle_reasons: frozenset[str] | None = None
    process_count: int | None = None
    other_process_count: int | None = None

    @property
    def idle(self) -> bool | None:
        """Whether it does next to nothing and nobody else computes on it, `None` if that is not known."""
        if self.other_process_count or (self.utilization_ratio or 0.0) >= LOW_UTILIZATION_RATIO:
            return False
        return None if self.utilization_ratio is None or self.other_process_count is None else True


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTotals:
    """One GPU, or MIG slice, since sampling began; what was never known is `None`.

    Args:
        uuid: Which.
        samples: How many readings.
        elapsed_s: From the first of them to the last.
        last: The last reading, with the limits and the size of the memory.
        power_mean_w: Mean power.
        power_max_w: Highest power.
        utilization_mean_ratio: Mean utilisation.
        utilization_max_ratio: Highest utilisation.
        memory_mean_bytes: Mean memory in use.
        memory_max_bytes: Highest memory in use at a reading; a peak between two readings is not seen.
        sm_clock_mean_mhz: Mean clock of the readings in which it was not idle.
        energy_j: By the counter; by integrating power where there is none.
        energy_estimated: Whether any of it was integrated.
        counter_resets: How often the counter began anew, which is never taken for negative energy.
        idle_s: Time under 5% utilisation without processes of others.
        idle_for_s: How long that has lasted by now; 0 if the last reading is busy or unknown, or it is lost.
        throttled_ratio: Share of the readings in which the clock was held down, by reason; `idle` is none of them.
        errors: Questions that failed and were asked again.
        lost: Whether the driver lost it.
        lost_message: The sentence about that.
    """

    uuid: str
    samples: int = 0
    elapsed_s: float = 0.0
    last: GpuReading | None = None
    power_mean_w: float | None = None
    power_max_w: float | None = None
    utilization_mean_ratio: float | None = None
    utilization_max_ratio: float | None = None
    memory_mean_bytes: float | None = None
    memory_max_bytes: float | None = None
    sm_clock_mean_mhz: float | None = None
    energy_j: float | None = None
    energy_estimated: bool = False
    counter_resets: int = 0
    idle_s: float | None = None
    idle_for_s: float = 0.0
    throttled_ratio: Mapping[str, float] | None = None
    errors: int = 0
    lost: bool = False
    lost_message: str | None = None


@dataclass(slots=True)
class _Figure:
    """Mean and maximum of those values that were known."""

    count: int = 0
    total: float = 0.0
    peak: float | None = None

    def add(self, value: float | None) -> None:
        if value is not None:
            self.count += 1
            self.total += value
            self.peak = value if self.peak is None else max(self.peak, value)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class _Energy:
    """Energy by the counter, bridged by power where the counter is silent."""

    counter_mj: int | None = None
    counted_mj: int | None = None
    estimated_j: float | None = None
    bridge_j: float | None = None
    resets: int = 0

    def add(self, counter_mj: int | None, watt_seconds: float | None) -> None:
        """Take one reading of the counter, and the energy since the last one by its power."""
        if watt_seconds is not None:
            self.bridge_j = (self.bridge_j or 0.0) + watt_seconds
        if counter_mj is None:
            return
        if self.counter_mj is not None and counter_mj >= self.counter_mj:
            self.counted_mj = (self.counted_mj or 0) + counter_mj - self.counter_mj
        else:
            # A counter that is new, or began anew, says nothing of the time before.
            self.resets += self.counter_mj is not None
            if self.bridge_j is not None:
                self.estimated_j = (self.estimated_j or 0.0) + self.bridge_j
        self.counter_mj, self.bridge_j = counter_mj, None

    @property
    def estimated(self) -> bool:
        return self.estimated_j is not None or self.bridge_j is not None

    @property
    def joules(self) -> float | None:
        if self.counted_mj is None and not self.estimated:
            return None
        return (self.counted_mj or 0) / 1000 + (self.estimated_j or 0.0) + (self.bridge_j or 0.0)


@dataclass(slots=True)
class Tally:
    """Folds the readings of one device into its totals."""

    samples: int = 0
    elapsed_s: float = 0.0
    last: GpuReading | None = None
    power: _Figure = field(default_factory=_Figure)
    utilization: _Figure = field(default_factory=_Figure)
    memory: _Figure = field(default_factory=_Figure)
    clock: _Figure = field(default_factory=_Figure)
    energy: _Energy = field(default_factory=_Energy)
    reasons: Counter[str] = field(default_factory=Counter)
    explained: int = 0
    idle_s: float | None = None
    idle_for_s: float = 0.0

    def add(self, now: GpuReading) -> None:
        """Take the next reading."""
        watt_seconds = None
        if self.last is not None:
            passed_s = (now.at_ns - self.last.at_ns) / NS_PER_S
            self.elapsed_s += passed_s
            self._add_idle(self.last.idle, now.idle, passed_s)
            if self.last.power_w is not None and now.power_w is not None:
                watt_seconds = passed_s * (self.last.power_w + now.power_w) / 2
        self.energy.add(now.energy_mj, watt_seconds)
        self.power.add(now.power_w)
        self.utilization.add(now.utilization_ratio)
        self.memory.add(now.memory_used_bytes)
        self.clock.add(None if now.idle else now.sm_clock_mhz)
        if now.throttle_reasons is not None:
            self.explained += 1
            self.reasons.update(now.throttle_reasons - {"idle"})
        self.samples += 1
        self.last = now

    def _add_idle(self, before: bool | None, now: bool | None, passed_s: float) -> None:
        both = bool(before and now)
        if now is not None:
            self.idle_s = (self.idle_s or 0.0) + passed_s * both
        self.idle_for_s = self.idle_for_s + passed_s if both else 0.0

    def totals(self, uuid: str, errors: int = 0, lost_message: str | None = None) -> GpuTotals:
        """The totals so far."""
        return GpuTotals(
            uuid=uuid,
            samples=self.samples,
            elapsed_s=self.elapsed_s,
            last=self.last,
            power_mean_w=self.power.mean,
            power_max_w=self.power.peak,
            utilization_mean_ratio=self.utilization.mean,
            utilization_max_ratio=self.utilization.peak,
            memory_mean_bytes=self.memory.mean,
            memory_max_bytes=self.memory.peak,
            sm_clock_mean_mhz=self.clock.mean,
            energy_j=self.energy.joules,
            energy_estimated=self.energy.estimated,
            counter_resets=self.energy.resets,
            idle_s=self.idle_s,
            idle_for_s=0.0 if lost_message else self.idle_for_s,
            throttled_ratio={n: c / self.explained for n, c in self.reasons.items()} if self.explained else None,
            errors=errors,
            lost=lost_message is not None,
            lost_message=lost_message,
        )
