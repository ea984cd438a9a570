"""`costguard peak`: measures the matmul rate that this very device reaches, and keeps it for reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from costguard.errors import ConfigError
from costguard.hardware.achievable import MEASURED_DTYPES, Achievable, save_achievable
from costguard.units import format_count

if TYPE_CHECKING:
    from costguard.hardware.peak_measurement import MeasuredDevice

_SCHEMA_VERSION = 1
_MISSING = 5
_WIDTH = 120


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line."""
    parser = commands.add_parser(
        "peak",
        help="measure the matmul rate that this device reaches",
        description="Measure the matmul rate that this device reaches, and keep it, so that reports can show MFU "
        "against it, too. It loads the device fully for some seconds: not beside a training.",
    )
    add = parser.add_argument
    add("--device", metavar="DEVICE", help="cuda, cuda:1 or cpu (default: the first GPU, else the CPU)")
    add("--dtype", metavar="DTYPE", help=f"{', '.join(MEASURED_DTYPES)} (default: bf16 on a GPU that has it)")
    add("--seconds", default="6", metavar="S", help="how long to measure (default 6)")
    add("--json", action="store_true", help="print JSON (with a schema_version) and nothing else")
    add("--no-save", action="store_true", help="print only")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    seconds = _seconds(arguments.seconds)
    try:
        from costguard.hardware.peak_measurement import measure_peak
    except ImportError as missing:
        print(f"costguard: peak needs torch ({missing}); pip install torch.", file=sys.stderr)
        return _MISSING
    measured = measure_peak(arguments.device, arguments.dtype, seconds)
    saved = None if arguments.no_save else _save(measured.achievable)
    data = _data(measured, saved)
    print(json.dumps(data, indent=2) if arguments.json else "\n".join(_text(data)))
    return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 600:
        raise ConfigError(f"peak --seconds {text}: expected seconds of at most 600, such as 6.")
    return seconds


def _save(measured: Achievable) -> str | None:
    try:
        return str(save_achievable(measured))
    except OSError as error:
        print(f"costguard: not kept ({error}); set XDG_CACHE_HOME to a folder to write in.", file=sys.stderr)
        return None


def _data(measured: MeasuredDevice, saved: str | None) -> dict[str, Any]:
    reached, swept, peak = measured.achievable, measured.swept, measured.peak
    return {
        "schema_version": _SCHEMA_VERSION,
        "device_name": reached.device_name,
        "uuid": reached.uuid,
        "dtype": reached.dtype,
        "flops_per_s": reached.flops_per_s,
        "max_flops_per_s": reached.max_flops_per_s,
        "shape": list(reached.shape),
        "date": reached.date,
        "how": reached.how,
        "peak_flops_per_s": peak.flops_per_s,
        "peak_source": peak.source if peak.flops_per_s is not None else None,
        "peak_reason": peak.reason,
        "peak_ratio": reached.flops_per_s / peak.flops_per_s if peak.flops_per_s else None,
        "shapes": [
            {
                "shape": list(rate.shape),
                "flops_per_s": rate.flops_per_s,
                "max_flops_per_s": rate.max_flops_per_s,
                "products": rate.products,
            }
            for rate in swept.rates
        ],
        "skipped": [{"shape": list(shape), "reason": reason} for shape, reason in swept.skipped.items()],
        "saved": saved,
    }


def _text(data: dict[str, Any]) -> Iterator[str]:
    yield f"achievable {_rate(data['flops_per_s'])} {data['dtype']} on {data['device_name']}"
    yield ""
    yield f"{'shape':<20} {'median':>14} {'quickest':>14} {'products':>9}"
    for row in data["shapes"]:
        rates = f"{_rate(row['flops_per_s']):>14} {_rate(row['max_flops_per_s']):>14}"
        yield f"{_by(row['shape']):<20} {rates} {row['products']:>9,}"
    for row in data["skipped"]:
        yield f"{_by(row['shape']):<20} skipped: {row['reason']}"
    yield ""
    for remark in _remarks(data):
        yield from wrap(remark, _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _remarks(data: dict[str, Any]) -> Iterator[str]:
    if data["peak_ratio"] is not None:
        yield f"{data['peak_ratio']:.1%} of the peak {_rate(data['peak_flops_per_s'])}, {data['peak_source']}"
    else:
        yield f"peak unknown: {data['peak_reason']}"
    yield data["how"]
    yield f"kept in {data['saved']}" if data["saved"] else "not kept"


def _by(shape: Any) -> str:
    return "x".join(map(str, shape))


def _rate(flops_per_s: float) -> str:
    return f"{format_count(flops_per_s)}FLOP/s"
