"""What a pot holds and how each event changes it: pure, and closed (claimed = spent + refunded + live)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from costguard.pots.amounts import parts_of, text_of

HARD = "hard"
SOFT = "soft"


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What was agreed when the pot was made, and never changes.

    Args:
        pot: Its id.
        unit: `usd` or `gpu_hours`.
        mode: `hard` where the store keeps exclusive create, else `soft`.
        limit: First limit, in parts.
        voucher: Usual size of one claim, in parts.
        lease_s: Seconds for which a holder's credit is good without a sign of life.
        soft_runs: Runs that may hold credit at once in soft mode; 0 in hard mode.
    """

    pot: str
    unit: str
    mode: str
    limit: int
    voucher: int
    lease_s: int
    soft_runs: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {
            "pot": self.pot,
            "unit": self.unit,
            "mode": self.mode,
            "limit": text_of(self.limit),
            "voucher": text_of(self.voucher),
            "lease_s": self.lease_s,
            "soft_runs": self.soft_runs,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Terms:
        """Read what `to_json` wrote."""
        return Terms(
            pot=data["pot"],
            unit=data["unit"],
            mode=data["mode"],
            limit=parts_of(data["limit"]),
            voucher=parts_of(data["voucher"]),
            lease_s=data["lease_s"],
            soft_runs=data["soft_runs"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """What one holder has claimed and, as far as it has told, spent; in parts.

    Args:
        run: The run that holds it.
        claimed: All that it claimed.
        spent: What of that it has reported as spent, never more than `claimed`.
    """

    run: str
    claimed: int = 0
    spent: int = 0

    @property
    def live(self) -> int:
        """What it may still spend."""
        return self.claimed - self.spent

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {"run": self.run, "claimed": text_of(self.claimed), "spent": text_of(self.spent)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Account:
        """Read what `to_json` wrote."""
        return Account(run=data["run"], claimed=parts_of(data["claimed"]), spent=parts_of(data["spent"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Raise:
    """The limit is raised: who, when, why, from, to; amounts in parts."""

    start: int
    to: int
    who: str
    why: str
    at: str

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {
            "kind": "raise",
            "from": text_of(self.start),
            "to": text_of(self.to),
            "who": self.who,
            "why": self.why,
            "at": self.at,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Raise:
        """Read what `to_json` wrote."""
        return Raise(
            start=parts_of(data["from"]), to=parts_of(data["to"]), who=data["who"], why=data["why"], at=data["at"]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A holder takes a voucher of `amount` parts and tells what it has spent so far; 0 parts only tell."""

    holder: str
    run: str
    amount: int
    spent: int

    def to_json(self) -> dict[str, Any]:
        """Plain data for the log."""
        return {
            "kind": "claim",
            "holder": self.holder,
            "run": self.run,
            "amount": text_of(self.amount),
            "spent": text_of(self.spent),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Close:
    """A holder ends: what it has not spent goes back to the pot.

    Args:
        holder: Whose account.
        run: Its run.
        spent: All that it spent, in parts.
        presumed: What of `spent` nobody reported, where a crashed holder is swept.
        by: `owner` or `sweep`.
    """

    holder: str
    run: str
    spent: int
    presumed: int = 0
    by: str = "owner"

    def to_json(self) -> dict[str, Any]:
        """Plain data for the log."""
        return {
            "kind": "close",
            "holder": self.holder,
            "run": self.run,
            "spent": text_of(self.spent),
            "presumed": text_of(self.presumed),
            "by": self.by,
        }


Event = Claim | Close | Raise


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """A pot after some event; amounts in parts.

    Args:
        terms: What never changes.
        limit: What may be claimed and not given back.
        claimed: All that was ever claimed.
        spent: All that was ever reported or presumed as spent.
        refunded: All that ever went back.
        presumed: What of `spent` was presumed of crashed holders.
        accounts: Holders that have not ended.
        raises: Every change of the limit, in order.
    """

    terms: Terms
    limit: int
    claimed: int = 0
    spent: int = 0
    refunded: int = 0
    presumed: int = 0
    accounts: Mapping[str, Account] = field(default_factory=dict)
    raises: tuple[Raise, ...] = ()

    @property
    def live(self) -> int:
        """Claimed, and neither spent nor given back."""
        return self.claimed - self.spent - self.refunded

    @property
    def free(self) -> int:
        """What may still be claimed; negative if holders spent more than they had."""
        return self.limit - self.claimed + self.refunded

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {
            "terms": self.terms.to_json(),
            "limit": text_of(self.limit),
            "claimed": text_of(self.claimed),
            "spent": text_of(self.spent),
            "refunded": text_of(self.refunded),
            "presumed": text_of(self.presumed),
            "accounts": {holder: account.to_json() for holder, account in self.accounts.items()},
            "raises": [each.to_json() for each in self.raises],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> State:
        """Read what `to_json` wrote."""
        return State(
            terms=Terms.from_json(data["terms"]),
            limit=parts_of(data["limit"]),
            claimed=parts_of(data["claimed"]),
            spent=parts_of(data["spent"]),
            refunded=parts_of(data["refunded"]),
            presumed=parts_of(data["presumed"]),
            accounts={holder: Account.from_json(account) for holder, account in data["accounts"].items()},
            raises=tuple(Raise.from_json(each) for each in data["raises"]),
        )


def apply(state: State, event: Event) -> State:
    """The pot after one more event.

    A holder that tells of more spend than it had claimed is booked as having claimed the difference: the money is
    gone, and a sum that hid it would be false. Then `free` may turn negative.
    """
    if isinstance(event, Raise):
        return replace(state, limit=event.to, raises=(*state.raises, event))
    before = state.accounts.get(event.holder, Account(run=event.run))
    amount = event.amount if isinstance(event, Claim) else 0
    spent = max(before.spent, event.spent)
    account = replace(before, claimed=max(before.claimed, spent) + amount, spent=spent)
    others = {holder: each for holder, each in state.accounts.items() if holder != event.holder}
    closing = isinstance(event, Close)
    return replace(
        state,
        claimed=state.claimed + account.claimed - before.claimed,
        spent=state.spent + account.spent - before.spent,
        refunded=state.refunded + (account.live if closing else 0),
        presumed=state.presumed + (event.presumed if isinstance(event, Close) else 0),
        accounts=others if closing else {**others, event.holder: account},
    )
