"""A holder's sign of life: what it has spent and when it was last heard of, by the store's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costguard.pots.amounts import parts_of, text_of
from costguard.pots.sealed import seal, unseal
from costguard.pots.store import Store

STALE = 3
"""Leases without a sign of life after which a holder is swept. Its credit ends after one; the rest is for delays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """What a holder writes again and again.

    Args:
        holder: Its id.
        run: Its run.
        spent: All that it spent of its credit, in parts.
        burn_per_hour: The most that it spends in an hour, in parts, `None` if unknown.
    """

    holder: str
    run: str
    spent: int
    burn_per_hour: int | None

    def write(self, store: Store) -> None:
        """Leave it on the store."""
        burn = None if self.burn_per_hour is None else text_of(self.burn_per_hour)
        fields: dict[str, Any] = {
            "holder": self.holder,
            "run": self.run,
            "spent": text_of(self.spent),
            "burn_per_hour": burn,
        }
        store.put(key_of(self.holder), seal(fields))

    @staticmethod
    def read(store: Store, holder: str) -> Lease | None:
        """The last that a holder left, `None` if there is none."""
        data = store.read(key_of(holder))
        if data is None:
            return None
        fields = unseal(data, f"{store.url}/{key_of(holder)}")
        burn = fields["burn_per_hour"]
        return Lease(
            holder=holder,
            run=fields["run"],
            spent=parts_of(fields["spent"]),
            burn_per_hour=None if burn is None else parts_of(burn),
        )


def key_of(holder: str) -> str:
    """Where a holder's lease lies."""
    return f"leases/{holder}.json"


def now_ns(store: Store) -> int | None:
    """The store's own clock, by an object written now; machines' clocks differ and are not asked."""
    store.put("now", b"")
    return store.modified_ns("now")


def age_s(store: Store, holder: str, now: int | None) -> float | None:
    """Seconds since a holder's last sign of life, `None` where that cannot be known."""
    modified = store.modified_ns(key_of(holder))
    return None if modified is None or now is None else (now - modified) / 1e9
