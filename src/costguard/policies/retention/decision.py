"""What becomes of one checkpoint, and the two places that it may be in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from costguard.prices.storage import StorageClass


class Move(str, Enum):
    """What is to be done with a checkpoint."""

    KEEP = "keep"
    DEMOTE = "demote"
    EXPIRE = "expire"
    STRIP = "strip"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiers:
    """The two places that a checkpoint may be in, by their prices; `None` where a price is unknown.

    Args:
        hot: Class of the hot disk.
        cold: Class of the cold store.
        has_cold: Whether there is a cold store at all.
        part_bytes: Bytes of one writing request.
    """

    hot: StorageClass | None = None
    cold: StorageClass | None = None
    has_cold: bool = True
    part_bytes: int = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What becomes of one checkpoint.

    Args:
        id: The checkpoint's.
        move: What is to be done.
        rule: The rule or guard that says so.
        reason: One sentence for the user.
        usd_saved_per_month: Exact dollars a month that the move saves, `None` if unknown.
        usd_fee: Exact dollars that the move costs once, `None` if unknown.
        free_at_ns: When an expiry that is put off becomes free, ns since the epoch.
    """

    id: str
    move: Move
    rule: str
    reason: str
    usd_saved_per_month: Fraction | None = None
    usd_fee: Fraction | None = None
    free_at_ns: int | None = None
