"""What costguard recognises of a machine, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from costguard.units import format_count

_WIDTH = 100
_LABEL = 11


def render_machine(machine: Mapping[str, Any]) -> str:
    """Write it as text of at most about 100 columns.

    Args:
        machine: See `costguard.reports.machine.describe_machine`.
    """
    blocks = [_versions(machine), *map(_gpu, machine["gpus"]), _none(machine), _problems(machine)]
    blocks += [_measured(machine), _allocation(machine), _folder(machine)]
    return "\n\n".join(text for block in blocks if (text := "\n".join(block)))


def _row(label: str, text: str) -> Iterator[str]:
    yield from wrap(
        text,
        _WIDTH,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _versions(machine: Mapping[str, Any]) -> Iterator[str]:
    named = ((name.replace("_", " "), found or "not found") for name, found in machine["versions"].items())
    yield from _row("versions", ", ".join(f"{name} {found}" for name, found in named))


def _gpu(gpu: Mapping[str, Any]) -> Iterator[str]:
    yield from _row(f"GPU {gpu['index']}", f"{gpu['name'] or 'without a name'}, {gpu['uuid']}{_shown(gpu)}")
    if gpu["mig"]:
        yield from _row("", f"{_facts(gpu)}, {_amount(gpu['power_limit_w'], ',.0f', 'W')}, in MIG mode")
        for each in gpu["slices"]:
            yield from _row("  slice", f"{each['name']}, {each['uuid']}{_shown(each)}")
            yield from _row("", _facts(each))
            yield from _peaks(each)
        if not gpu["slices"]:
            yield from _row("", "it has no slice, so nothing can compute on it; make one with `nvidia-smi mig -cgi`")
        return
    yield from _row("", f"{_facts(gpu)}, {_amount(gpu['power_limit_w'], ',.0f', 'W')}")
    yield from _peaks(gpu)


def _shown(part: Mapping[str, Any]) -> str:
    shown = {True: "", False: ", hidden by CUDA_VISIBLE_DEVICES", None: ", whether CUDA shows it is unknown"}
    return shown[part["visible"]]


def _facts(part: Mapping[str, Any]) -> str:
    memory = part["memory_total_bytes"]
    words = (
        _amount(part["sm_count"], ",", "SMs"),
        f"compute capability {part['compute_capability'] or 'unknown'}",
        _amount(None if memory is None else memory / 1e9, ",.1f", "GB"),
        f"SM clock up to {_amount(part['sm_clock_limit_mhz'], ',.0f', 'MHz')}",
    )
    return ", ".join(words)


def _amount(value: float | None, form: str, unit: str) -> str:
    return f"unknown {unit}" if value is None else f"{value:{form}} {unit}"


def _peaks(part: Mapping[str, Any]) -> Iterator[str]:
    """The known peaks, those of one source together, then what was reached, then the unknown, those of one reason."""
    known: dict[str, list[str]] = {}
    unknown: dict[str, list[str]] = {}
    for dtype, peak in part["peaks"].items():
        # Source and reason name the dtype; without it those of one source or reason can be told together.
        if peak["flops_per_s"] is None:
            unknown.setdefault(peak["reason"].replace(f" {dtype} ", " "), []).append(dtype)
        else:
            star = f"; estimated: {peak['reason']}" if peak["estimated"] else ""
            source = peak["source"].replace(f", {dtype} dense", ", dense") + star
            known.setdefault(source, []).append(f"{dtype} {_rate(peak['flops_per_s'])}")
    label = "  peak"
    for source, rates in known.items():
        yield from _row(label, f"{', '.join(rates)} ({source})")
        label = ""
    for dtype, peak in part["peaks"].items():
        if peak["achievable_flops_per_s"] is not None:
            yield from _row("  reached", _reached(dtype, peak))
    for reason, dtypes in unknown.items():
        yield from _row("  unknown", f"{', '.join(dtypes)}: {reason}")


def _reached(dtype: str, peak: Mapping[str, Any]) -> str:
    rate = peak["achievable_flops_per_s"]
    share = f", {rate / peak['flops_per_s']:.1%} of the peak" if peak["flops_per_s"] else ""
    return f"{dtype} {_rate(rate)}{share}, measured on {peak['achievable_date']}"


def _rate(flops_per_s: float) -> str:
    if flops_per_s >= 1e12:
        return f"{flops_per_s / 1e12:,.5g} TFLOP/s"
    return f"{format_count(flops_per_s)}FLOP/s"


def _none(machine: Mapping[str, Any]) -> Iterator[str]:
    if not machine["gpus"]:
        why = f" ({'; '.join(machine['problems'])})" if machine["problems"] else ""
        yield from _row("GPUs", f"none recognised{why}; on a CPU the peak is measured when training begins")


def _problems(machine: Mapping[str, Any]) -> Iterator[str]:
    for problem in machine["problems"] if machine["gpus"] else ():
        yield from _row("problem", f"{problem}.")


def _measured(machine: Mapping[str, Any]) -> Iterator[str]:
    label = "measured"
    for each in machine["measured"]:
        rate = f"{_rate(each['flops_per_s'])} {each['dtype']}"
        yield from _row(label, f"{rate} on {each['device_name']}, {each['date']}, {each['how']}")
        label = ""
    if not machine["measured"]:
        yield from _row(label, "nothing yet; `costguard peak` measures what this device reaches")


def _allocation(machine: Mapping[str, Any]) -> Iterator[str]:
    found = machine["allocation"]
    job = found["job"] or "no scheduler or launcher recognised"
    restarted = {True: ", started again", False: "", None: ", which does not say whether it was started again"}
    yield from _row("job", job + (restarted[found["restarted"]] if found["job"] else ""))
    hold = f", hold {found['hold']}" if found["hold"] else ""
    yield from _row("", f"host {found['host']}, boot {found['boot'] or 'unknown'}{hold}")
    yield from _row("devices", _devices(found))


def _devices(found: Mapping[str, Any]) -> str:
    count = found["paid_devices_of_one_rank"]
    if count is None:
        return "how many are paid for is not known without NVML; a training counts those that torch sees, or says gpus="
    by = "the scheduler gives" if found["gpus_by_scheduler"] is not None else "CUDA shows"
    gpus = found["gpus_by_scheduler"] if found["gpus_by_scheduler"] is not None else found["gpus_visible"]
    return f"{by} {gpus} GPUs; {count} paid for if one rank trains here, unless a training says gpus="


def _folder(machine: Mapping[str, Any]) -> Iterator[str]:
    found = machine["folder"]
    kind = found["filesystem"] or "an unknown file system"
    yield from _row("folder", f"{found['path']} on {kind}{', of another machine' if found['network'] else ''}")
    if found["dies_with_machine"]:
        why = found["dies_with_machine"]
        yield from _row("", f"it dies with this machine ({why}); mirror the journal with CostMonitor(dir='s3://...')")
