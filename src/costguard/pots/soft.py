"""The soft way to keep a pot on a store without exclusive create: each holder writes its own object, all are added.

A claim is written first and the sum read after it; where that is above the limit the claim is taken back. On a store
that shows at once what was written, the last of two racing claims sees the other. On one that shows it late both may
stand: each of the other runs may then have one voucher that was not seen, the bound that is shown to the user.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from costguard.pots.amounts import parts_of
from costguard.pots.sealed import seal, unseal
from costguard.pots.state import Account, Claim, Close, Event, Raise, State, Terms, apply
from costguard.pots.store import Store

TRIES = 6
"""Claims that see each other are all taken back: so often is it tried again, at random times."""


class SoftBook:
    """A pot's objects, one a holder.

    Args:
        store: Where they lie.
        terms: What was agreed.
        sleep: Waits so many seconds.
    """

    def __init__(self, store: Store, terms: Terms, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._terms = terms
        self._sleep = sleep

    def refresh(self) -> State:
        """The sum of what all holders wrote."""
        state = State(terms=self._terms, limit=self._terms.limit)
        for event in sorted((Raise.from_json(each) for each in self._all("raises").values()), key=lambda r: r.at):
            start = state.limit
            state = apply(state, replace(event, start=start, to=start + event.to - event.start))
        swept = self._all("swept")
        for holder, fields in self._all("holders").items():
            state = _booked(state, holder, Account.from_json(fields), swept.get(holder) or fields.get("close"))
        return state

    def append(self, make: Callable[[State], Event | None]) -> State:
        """Add one event."""
        before = self.refresh()
        for lost in range(TRIES):
            event = make(before)
            if event is None:
                return before
            after = apply(before, event)
            self._write(event, after)
            seen = self.refresh()
            if not isinstance(event, Claim) or event.amount == 0 or seen.free >= 0:
                return seen
            self._take_back(event, before)
            self._sleep(random.uniform(0, 0.05 * (lost + 1)))
            before = self.refresh()
        return before

    def closing(self, holder: str) -> Close | None:
        """How a holder ended."""
        swept = self._fields(f"swept/{holder}.json")
        own = self._fields(f"holders/{holder}.json")
        fields = swept or (own or {}).get("close")
        return _close(holder, fields) if fields else None

    def _write(self, event: Event, after: State) -> None:
        if isinstance(event, Raise):
            self._store.put(f"raises/{secrets.token_hex(8)}.json", seal(event.to_json()))
        elif isinstance(event, Claim):
            self._store.put(f"holders/{event.holder}.json", seal(after.accounts[event.holder].to_json()))
        elif event.by == "owner":
            account = Account(run=event.run, claimed=event.spent, spent=event.spent)
            own = self._fields(f"holders/{event.holder}.json")
            claimed = max(event.spent, Account.from_json(own).claimed if own else 0)
            fields = {**replace(account, claimed=claimed).to_json(), "close": event.to_json()}
            self._store.put(f"holders/{event.holder}.json", seal(fields))
        else:
            self._store.put(f"swept/{event.holder}.json", seal(event.to_json()))

    def _take_back(self, event: Claim, before: State) -> None:
        account = before.accounts.get(event.holder, Account(run=event.run))
        spent = max(account.spent, event.spent)
        kept = replace(account, spent=spent, claimed=max(account.claimed, spent))
        self._store.put(f"holders/{event.holder}.json", seal(kept.to_json()))

    def _all(self, folder: str) -> dict[str, dict[str, Any]]:
        keys = {name.removesuffix(".json"): f"{folder}/{name}" for name in self._store.list(folder)}
        return {name: fields for name, key in keys.items() if (fields := self._fields(key)) is not None}

    def _fields(self, key: str) -> dict[str, Any] | None:
        data = self._store.read(key)
        return None if data is None else unseal(data, f"{self._store.url}/{key}")


def _close(holder: str, fields: Mapping[str, Any]) -> Close:
    spent, presumed = parts_of(fields["spent"]), parts_of(fields["presumed"])
    return Close(holder=holder, run=fields["run"], spent=spent, presumed=presumed, by=fields["by"])


def _booked(state: State, holder: str, account: Account, close: Mapping[str, Any] | None) -> State:
    state = apply(state, Claim(holder=holder, run=account.run, amount=account.claimed, spent=0))
    state = apply(state, Claim(holder=holder, run=account.run, amount=0, spent=account.spent))
    return apply(state, _close(holder, close)) if close else state
