"""Checks costguard's figures on one NVIDIA GPU against counts by hand, CUDA events and nvidia-smi, in some minutes.

It trains a small GPT in bf16: eager, compiled, and with activation checkpointing; then with and without CostMonitor in
turns; then with every synchronisation of the device made an error. Each row of the table it prints sets a figure of
costguard's beside one that was made without it. Run `python benchmarks/gpu_check.py [--seconds 240]`; `--device cpu`
goes through everything that a CPU can do, with times shown and not judged.

Exit codes: 0 all agrees, 1 something differs, 4 there is no GPU, 5 a figure is unknown.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from costguard import CostguardWarning, CostMonitor, load_receipt
from costguard.hardware.abilities import Device
from costguard.hardware.peaks import find_peak
from costguard.hardware.torch_device import describe
from costguard.lightning.gpu_watch import GpuWatch
from hand_counted_gpt import GPT, TINY, Size, size_for

OK, DIFFERS, NO_GPU, UNKNOWN = 0, 1, 4, 5
WARM_UP = 5
"""Steps before the clock of the hand's own runs."""
ROUNDS = 3
"""Turns with and without CostMonitor."""
RUNS = 3 + 2 * ROUNDS + 2
"""Trainings of about equal length."""
TIME_RATIO, POWER_RATIO, MEMORY_RATIO, OVERHEAD_RATIO = 0.05, 0.15, 0.05, 0.01
"""How far figures may be apart. nvidia-smi reads at other instants."""


class Timer(Callback):
    """Times the steps after the warm-up: by CUDA events on a GPU, by the host's clock on a CPU.

    Args:
        cuda: Whether it is a GPU.
        seconds: When to stop, counted from the end of the warm-up; `None` for a given number of steps.
        watch: Read from the end of the warm-up to the last step.
    """

    def __init__(self, cuda: bool, seconds: float | None, watch: GpuWatch | None = None) -> None:
        self.cuda, self.seconds, self.watch = cuda, seconds, watch
        self.steps = 0
        self.timed = 0
        self._marks: list[Any] = []
        self._until = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Mark the end of the warm-up."""
        if batch_idx == WARM_UP:
            if self.cuda:
                torch.cuda.synchronize()  # once, before anything is timed: the queue is empty
            if self.watch is not None:
                self.watch.start()
            self._mark()
            self._until = time.monotonic() + (self.seconds or 0.0)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Mark the end."""
        self.steps += 1
        late = self.seconds is not None and self.steps > WARM_UP + 2 and time.monotonic() >= self._until
        if late or self.steps == trainer.max_steps:
            self.timed = self.steps - WARM_UP
            self._mark()
            if self.watch is not None:
                self.watch.stop()  # what follows is idle
            trainer.should_stop = True

    def _mark(self) -> None:
        if not self.cuda:
            self._marks.append(time.perf_counter())
            return
        make_event: Any = torch.cuda.Event
        self._marks.append(make_event(enable_timing=True))
        self._marks[-1].record()

    @property
    def step_s(self) -> float:
        """Mean time of a step."""
        first, last = self._marks
        if not self.cuda:
            return (last - first) / self.timed
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1000 / self.timed


class NoSync(Callback):
    """Makes every synchronisation of the device an error, from the end of the warm-up to that of the last step."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Before the other callbacks of this step: this one is the first."""
        if batch_idx == WARM_UP:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, *_: Any) -> None:
        """From here on, reading a loss is allowed."""
        torch.cuda.set_sync_debug_mode("default")

    def on_exception(self, *_: Any) -> None:
        """Here, too."""
        torch.cuda.set_sync_debug_mode("default")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    ours: str
    other: str = ""
    verdict: str = "shown"


@dataclass
class Check:
    """What all trainings share: the device, the model, seconds of a training, and the table so far.

    Times are those of CUDA events and are judged if `cuda`.
    """

    device: torch.device
    size: Size
    run_s: float
    folder: str
    cuda: bool
    rows: list[Row] = field(default_factory=list)

    def add(self, what: str, ours: Any, other: Any, form: str, within: float | None) -> None:
        """Add a figure and the one that was made without costguard; they may be apart by a share of the latter."""
        if ours is None or other is None:
            known = ["unknown" if value is None else format(value, form) for value in (ours, other)]
            self.rows.append(Row(what, *known, "UNKNOWN"))
            return
        ratio = ours / other if other else float("nan")
        verdict = "shown" if within is None else "ok" if abs(ratio - 1) <= within else "DIFFERS"
        self.rows.append(Row(what, format(ours, form), f"{other:{form}}", f"{verdict:<8} {ratio:.4f}"))

    def train(self, way: str, *callbacks: Callback, steps: int = -1) -> GPT:
        """Train once."""
        gpu = self.device.type == "cuda"
        tokens = torch.randint(self.size.vocabulary, (self.size.batch, self.size.length + 1))
        batches: Any = [tokens] * (steps if steps > 0 else 100_000)
        trainer = Trainer(
            accelerator="gpu" if gpu else "cpu",
            devices=[self.device.index or 0] if gpu else 1,
            precision="bf16-mixed",
            max_steps=steps,
            max_epochs=1,
            callbacks=list(callbacks),
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            default_root_dir=self.folder,
        )
        torch.manual_seed(0)
        module = GPT(self.size, way)
        trainer.fit(module, DataLoader(batches, batch_size=None, pin_memory=gpu))
        return module


def recognised(check: Check, what: Device) -> None:
    """The device, and its peak by the table."""
    if not check.cuda:
        check.rows.append(Row("device", what.name, "", "shown"))
        return
    check.rows.append(Row("device", f"{what.name}, {what.uuid}, {what.sm_count} SMs", ""))
    peak = find_peak(what.name, "bf16", sm_count=what.sm_count, compute_capability=what.compute_capability)
    shown = peak.reason if peak.flops_per_s is None else f"{peak.flops_per_s / 1e12:,.1f} TFLOP/s bf16, {peak.source}"
    check.rows.append(Row("peak", str(shown), "", "UNKNOWN" if peak.flops_per_s is None else "ok"))


def utilization(check: Check, way: str, watch: GpuWatch | None = None) -> None:
    """MFU and FLOPs of one way to train, beside the hand's."""
    timer, monitor = Timer(check.cuda, check.run_s, watch), CostMonitor(usd_per_gpu_hour="1", run_id=way)
    smi = NvidiaSmi(watch.device.uuid if watch else None)
    with smi:
        module = check.train(way, timer, monitor)
    if watch is not None:
        power_and_clocks(check, watch, smi)
    assert monitor.run_dir is not None
    receipt = load_receipt(monitor.run_dir).data
    counted, mfu = receipt["flops"]["model"] or {}, receipt["mfu"]
    for convention in ("full_attention", "causal"):
        by_hand = timer.steps * check.size.flops(convention)
        check.add(f"{way}: model FLOPs, {convention}", counted.get(convention), by_hand, ",d", 0.0)
    hardware = timer.steps * (check.size.flops("full_attention") + (way == "checkpointed") * check.size.recomputed())
    check.add(f"{way}: hardware FLOPs", receipt["flops"].get("hardware"), hardware, ",d", 0.0)
    parameters = sum(p.numel() for p in module.parameters())
    by_hand = 6 * parameters * timer.steps * (check.size.length + 1) * check.size.batch
    check.add(f"{way}: 6ND of all tokens", receipt["flops"]["estimate_6nd"], by_hand, ",d", 0.0)
    peak = mfu["peak_flops_per_s"]
    # The receipt's MFU is by the convention that it names; only the same one can be compared.
    convention = receipt["flops"]["convention"]
    flops = by_hand / timer.steps if convention == "6nd" else check.size.flops(convention)
    by_events = flops / timer.step_s / peak if peak else None
    within = TIME_RATIO if check.cuda else None
    check.add(f"{way}: MFU, {convention}, step of {timer.step_s * 1000:,.1f} ms", mfu["step"], by_events, ".4%", within)


def overhead(check: Check) -> None:
    """Steps with CostMonitor over those without, in turns."""
    with_s, without_s = [], []
    for turn in range(ROUNDS if check.cuda else 1):
        for monitor, times in (([], without_s), ([CostMonitor(run_id=f"turn-{turn}")], with_s)):
            timer = Timer(check.cuda, check.run_s)
            check.train("eager", timer, *monitor)
            times.append(timer.step_s * 1000)
    ours, bare = statistics.median(with_s), statistics.median(without_s)
    check.add("step with and without CostMonitor, ms", ours, bare, ".3f", OVERHEAD_RATIO if check.cuda else None)


def no_sync(check: Check) -> None:
    """Whether a step synchronises, without CostMonitor and with it."""
    what = "steps that synchronise the device"
    if not check.cuda:
        check.rows.append(Row(what, "a CPU has nothing to synchronise", "", "NOT HERE"))
        return
    steps = WARM_UP + max(20, int(check.run_s / 0.2))
    bare, ours = (_sync_in(check, monitor, steps) for monitor in ([], [CostMonitor(run_id="no-sync")]))
    if bare is not None:
        check.rows.append(Row(what, "cannot be told", f"Lightning itself: {bare}", "UNKNOWN"))
    else:
        check.rows.append(Row(what, ours or "none", "none", "ok" if ours is None else "DIFFERS"))


def _sync_in(check: Check, monitor: list[Callback], steps: int) -> str | None:
    """Where a synchronisation was made, `None` if there was none."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            check.train("eager", NoSync(), *monitor, steps=steps)
        except RuntimeError as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            return f"{error} at {frame.filename}:{frame.lineno}"
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # CostMonitor keeps its failures from training, so that they are seen as warnings only.
    failed = [str(each.message) for each in said if issubclass(each.category, CostguardWarning)]
    return next((message for message in failed if " failed" in message), None)


class NvidiaSmi:
    """Asks nvidia-smi once a second, beside the training.

    Args:
        uuid: Which GPU; `None` asks nothing.
    """

    def __init__(self, uuid: str | None) -> None:
        self.uuid = uuid
        self.problem: str | None = None
        self.readings: list[list[float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> NvidiaSmi:
        if self.uuid is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self.uuid is not None:
            self._thread.join()

    def _run(self) -> None:
        fields = "power.draw,clocks.sm,memory.used,utilization.gpu"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={self.uuid}"]
        while not self._stop.wait(1.0):
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
                self.readings.append([float(cell) for cell in done.stdout.split(",")])
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                self.problem = f"nvidia-smi: {error}"
                return


def power_and_clocks(check: Check, watch: GpuWatch, smi: NvidiaSmi) -> None:
    """NVML's figures of the eager training beside nvidia-smi's of the same seconds."""
    # Only what was read under load: in the first seconds kernels are still being loaded.
    busy = [reading for reading in smi.readings if reading[3] >= 50] or smi.readings
    columns = list(zip(*busy, strict=True))[:3] if busy else []
    power, clock, memory = [statistics.mean(column) for column in columns] or [None] * 3
    fact = watch.fact()
    used = fact["memory_max_bytes"]
    check.add("power beside nvidia-smi, W", fact["power_mean_w"], power, ",.1f", POWER_RATIO)
    check.add("SM clock beside nvidia-smi, MHz", fact["sm_clock_mean_mhz"], clock, ",.0f", POWER_RATIO)
    check.add("memory in use, MiB", None if used is None else used / 2**20, memory, ",.0f", MEMORY_RATIO)
    energy, by_power = fact["energy_j"], fact["power_mean_w"] and fact["power_mean_w"] * fact["elapsed_s"]
    check.add("energy by counter and by power, J", energy, by_power, ",.0f", POWER_RATIO)
    throttled = ", ".join(f"{why} {share:.0%}" for why, share in (fact["throttled_ratio"] or {}).items())
    check.rows.append(Row("clock held down by", throttled or "nothing"))
    for problem in (smi.problem, *watch.warnings()):
        if problem:
            check.rows.append(Row("problem", problem, "", "UNKNOWN"))


def table(check: Check) -> Iterator[str]:
    """The rows as text."""
    widths = [max(len(row.what) for row in check.rows), *(24, 24)]
    yield f"{'':<{widths[0]}}  {'costguard':>{widths[1]}}  {'by hand, or another':>{widths[2]}}  verdict  ratio"
    for row in check.rows:
        if row.other:
            yield f"{row.what:<{widths[0]}}  {row.ours:>{widths[1]}}  {row.other:>{widths[2]}}  {row.verdict}"
        else:
            yield f"{row.what:<{widths[0]}}  {row.verdict:<8} {row.ours}"


def judge(check: Check) -> int:
    """The exit code."""
    verdicts = [row.verdict.split()[0] for row in check.rows if row.verdict]
    return DIFFERS if "DIFFERS" in verdicts else UNKNOWN if "UNKNOWN" in verdicts else OK


def main(argv: Sequence[str] | None = None) -> int:
    """Check one device and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or cpu for what a CPU can do")
    parser.add_argument("--seconds", type=float, default=200, help="how long to train in all, 10 to 280 (default 200)")
    arguments = parser.parse_args(argv)
    if not 10 <= arguments.seconds <= 280:
        parser.error("--seconds: expected 10 to 280, so that with compilation it stays within 6 minutes")
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"gpu_check: torch {torch.__version__} sees no GPU; `costguard doctor` says why.", file=sys.stderr)
        return NO_GPU
    if device.type == "cpu":
        torch.set_num_threads(1)  # on a machine that has other work, several would wait for each other
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning|torch")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        size = size_for(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else TINY
        check = Check(device, size, arguments.seconds / RUNS, folder, device.type == "cuda")
        run_all(check)
    print(f"{size}, bf16-mixed, torch {torch.__version__}, {time.monotonic() - began:.0f} s")
    print("\n".join(table(check)))
    return judge(check)


def run_all(check: Check) -> None:
    """Fill the table."""
    recognised(check, describe(check.device))
    watch = GpuWatch.for_device(check.device)
    if watch is None:
        why = "it is none of NVIDIA's" if check.cuda else "a CPU has no NVML"
        check.rows.append(Row("NVML beside nvidia-smi", why, "", "UNKNOWN" if check.cuda else "NOT HERE"))
    for way in ("eager", "compiled", "checkpointed"):
        utilization(check, way, watch if way == "eager" else None)
    overhead(check)
    no_sync(check)


if __name__ == "__main__":
    sys.exit(main())
