"""A pot as plain figures: what is left, who holds what, who raised the limit."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from costguard.pots.amounts import decimal_of
from costguard.pots.sizing import overshoot_bound
from costguard.pots.state import State
from costguard.units import plain

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """One holder of credit.

    Args:
        holder: Its id.
        run: Its run.
        claimed: All that it claimed.
        spent: What of that it has told as spent.
        live: The rest.
        silent_s: Seconds since its last sign of life, `None` if unknown.
        stale: Whether it is silent for so long that it is taken for dead.
    """

    holder: str
    run: str
    claimed: Decimal
    spent: Decimal
    live: Decimal
    silent_s: float | None
    stale: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised:
    """One change of the limit: from what to what, by whom, why and when (ISO 8601, UTC)."""

    start: Decimal
    to: Decimal
    who: str
    why: str
    at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PotStatus:
    """What a pot holds; every amount exact and in its unit, claimed = spent + refunded + live.

    Args:
        url: Where it lies.
        unit: `usd` or `gpu_hours`.
        mode: `hard` or `soft`.
        limit: The limit now.
        claimed: All that was ever claimed.
        spent: All that was told or presumed as spent.
        refunded: All that went back.
        live: In the hands of holders.
        free: What may still be claimed.
        presumed: What of `spent` nobody told: of crashed holders whose real spend was not known.
        stranded: `presumed`, and what holders have in hand that are taken for dead and not yet swept.
        overspent: By how much holders spent more than they could claim.
        overshoot_bound: By how much the mode lets all claims pass the limit; 0 in hard mode.
        holders: Who holds credit.
        raises: Every change of the limit, oldest first.
    """

    url: str
    unit: str
    mode: str
    limit: Decimal
    claimed: Decimal
    spent: Decimal
    refunded: Decimal
    live: Decimal
    free: Decimal
    presumed: Decimal
    stranded: Decimal
    overspent: Decimal
    overshoot_bound: Decimal
    holders: tuple[Holder, ...]
    raises: tuple[Raised, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data; amounts are decimal strings."""
        return {
            "schema_version": SCHEMA_VERSION,
            **{name: _plain(getattr(self, name)) for name in _FIGURES},
            "holders": [{name: _plain(getattr(each, name)) for name in _HOLDER} for each in self.holders],
            "raises": [
                {"from": _plain(r.start), "to": _plain(r.to), "who": r.who, "why": r.why, "at": r.at}
                for r in self.raises
            ],
        }


_FIGURES = tuple(name for name in PotStatus.__slots__ if name not in ("holders", "raises"))
_HOLDER = Holder.__slots__


def _plain(value: Any) -> Any:
    return plain(value) if isinstance(value, Decimal) else value


def status_of(url: str, state: State, silent_s: dict[str, float | None], stale_s: float) -> PotStatus:
    """Put a pot's figures together.

    Args:
        url: Where it lies.
        state: The pot.
        silent_s: Seconds since each holder's last sign of life.
        stale_s: Seconds after which a holder is taken for dead.
    """
    dead = {holder for holder in state.accounts if (silent_s.get(holder) or 0) > stale_s}
    stranded = state.presumed + sum(state.accounts[holder].live for holder in dead)
    return PotStatus(
        url=url,
        unit=state.terms.unit,
        mode=state.terms.mode,
        limit=decimal_of(state.limit),
        claimed=decimal_of(state.claimed),
        spent=decimal_of(state.spent),
        refunded=decimal_of(state.refunded),
        live=decimal_of(state.live),
        free=decimal_of(max(0, state.free)),
        presumed=decimal_of(state.presumed),
        stranded=decimal_of(stranded),
        overspent=decimal_of(max(0, -state.free)),
        overshoot_bound=decimal_of(overshoot_bound(state.terms)),
        holders=tuple(
            Holder(
                holder=holder,
                run=account.run,
                claimed=decimal_of(account.claimed),
                spent=decimal_of(account.spent),
                live=decimal_of(account.live),
                silent_s=silent_s.get(holder),
                stale=holder in dead,
            )
            for holder, account in state.accounts.items()
        ),
        raises=tuple(
            Raised(start=decimal_of(r.start), to=decimal_of(r.to), who=r.who, why=r.why, at=r.at) for r in state.raises
        ),
    )
