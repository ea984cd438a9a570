"""Whether the time between two attempts of a run was paid for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from costguard.units import NS_PER_S

SAME_BOOT_LIMIT_NS = 30 * 60 * NS_PER_S
"""Longest gap on the same host and boot that counts as the same allocation when nothing better is known."""

GapMode = Literal["auto", "held", "released"]
GAP_MODES: tuple[GapMode, ...] = ("auto", "held", "released")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenure:
    """Which machine one attempt held.

    Args:
        allocation: Id that names one uninterrupted hold of a machine (a scheduler's job and restart, a pod's
            uid, a launcher's run), `None` if unknown.
        host: Host name.
        boot: Boot id of the host, `None` if unknown.
    """

    allocation: str | None
    host: str
    boot: str | None


@dataclass(frozen=True, slots=True)
class GapDecision:
    """Whether a gap is billed, and why."""

    billed: bool
    reason: str


def decide_gap(earlier: Tenure, later: Tenure, *, closed: bool, gap_ns: int, mode: GapMode = "auto") -> GapDecision:
    """Decide whether the time between two attempts is billed as `gap` or shown as `released`.

    Args:
        earlier: What the earlier attempt held.
        later: What the later attempt holds.
        closed: Whether the earlier attempt ended in order; one that did gave its machine back as far as we know.
        gap_ns: Nanoseconds between them, >= 0.
        mode: `auto` decides by proof; `held` and `released` are the user's own word.

    Returns:
        The decision; unproven means not billed.
    """
    if mode != "auto":
        return GapDecision(mode == "held", f'gap="{mode}"')
    if closed:
        return GapDecision(False, "the earlier attempt ended in order")
    if earlier.allocation and earlier.allocation == later.allocation:
        return GapDecision(True, f"same allocation {earlier.allocation}")
    if earlier.allocation and later.allocation:
        return GapDecision(False, "another allocation")
    same_boot = earlier.boot is not None and (earlier.host, earlier.boot) == (later.host, later.boot)
    if same_boot and gap_ns < SAME_BOOT_LIMIT_NS:
        return GapDecision(True, "same host and boot, under 30 minutes")
    return GapDecision(False, "not provably the same machine all the time")
