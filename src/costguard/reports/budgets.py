"""The receipt's budgets: limits, where a stop came, and what was set aside for it against what it took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costguard.ledger.account import RankAccount, RunAccount
from costguard.policies.reserve import Reserve, score_reserve


def budget_of(account: RunAccount) -> dict[str, Any] | None:
    """The receipt's `budget`, `None` for a run without one.

    Args:
        account: The run.
    """
    said = account.fact("budget")
    stops = [
        (rank, event)
        for rank in account.ranks
        for event in rank.events
        if event["k"] == "verdict" and event["judged"] == "budget" and event["action"] == "stop"
    ]
    if said is None and not stops:
        return None
    return {
        "limits": dict((said or {}).get("limits", {})),
        "stops": [_stop(rank, event) for rank, event in stops],
    }


def _stop(rank: RankAccount, event: Mapping[str, Any]) -> dict[str, Any]:
    evidence = event.get("evidence", {})
    parts = evidence.get("reserve_parts")
    took_ns = rank.final.at_ns - event["t"]
    return {
        "attempt": rank.seat.attempt,
        "step": event["step"],
        "message": event["message"],
        "budget": evidence.get("budget"),
        "limit": evidence.get("limit"),
        "spent": evidence.get("spent"),
        "reserved_s": None if parts is None else sum(parts["parts_ns"].values()) / 1e9,
        "took_s": took_ns / 1e9,
        "parts": [] if parts is None else _parts(rank, event, Reserve.from_json(parts)),
    }


def _parts(rank: RankAccount, event: Mapping[str, Any], reserve: Reserve) -> list[dict[str, Any]]:
    """Each part, predicted and real; what is not metered apart is known only in the total."""
    saves = [e.get("written_ns") or e["blocked_ns"] for e in rank.events if e["k"] == "saved" and e["t"] >= event["t"]]
    ending = rank.final.activities_ns.get("teardown", 0) - event["ns"].get("teardown", 0)
    real = {"save": sum(saves), "teardown": ending - rank.estimated_ns, "exit": rank.estimated_ns}
    rows = score_reserve(reserve, real)
    return [
        {
            "part": row.part,
            "predicted_s": row.predicted_ns / 1e9,
            "real_s": None if row.real_ns is None else row.real_ns / 1e9,
            "measured": row.part in reserve.measured,
        }
        for row in rows
        if row.part != "total"
    ]
