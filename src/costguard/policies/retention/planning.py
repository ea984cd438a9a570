"""What becomes of each checkpoint, by which rule, and what that saves: facts in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costguard.keep import Checkpoint, History, Rule
from costguard.policies.retention.decision import Decision, Move, Tiers
from costguard.policies.retention.paying import demote, expire, is_due_for_stripping, strip
from costguard.policies.retention.wanted import Retention


def plan(history: History, retention: Retention, now_ns: int, tiers: Tiers | None = None) -> list[Decision]:
    """Decide what becomes of each checkpoint.

    Rules hold for each run by itself, the hot disk's quota for all.
    Unfinished or foreign checkpoints, the newest complete ones, the one resumed from and pinned ones never go.
    An expiry that would be billed anyway is put off until it is free, and a move that costs more than it saves
    is not made; so is leaving the optimizer state away.

    Args:
        history: Every known checkpoint.
        retention: What the user wants.
        now_ns: Now, ns since the epoch.
        tiers: The two places and their prices.

    Returns:
        One decision for each checkpoint, in the order given.
    """
    tiers = tiers or Tiers()
    guards: dict[str, Decision] = {}
    decided: dict[str, Decision] = {}
    for run, part in history.of_each_run().items():
        guards |= _guards(part, retention.keep_hot)
        rules = _rules(part, retention.keep)
        for c in part.checkpoints:
            life_ns = retention.life_ns(c, run in history.failed)
            found = guards.get(c.id) or rules.get(c.id) or _rest(c, retention, life_ns, now_ns, tiers)
            decided[c.id] = found if retention.run in (None, run) else _spared(found)
    _fit_quota(history, retention, decided, guards, tiers)
    return [decided[c.id] for c in history.checkpoints]


def _spared(decision: Decision) -> Decision:
    """What another run's rules may do with a checkpoint: move it, and nothing that cannot be undone."""
    if decision.move not in (Move.EXPIRE, Move.STRIP):
        return decision
    return Decision(id=decision.id, move=Move.KEEP, rule="other_run", reason="it is for its own run's rules to decide")


def _guards(history: History, keep_hot: int) -> dict[str, Decision]:
    """What nothing may touch, whatever the rules say."""
    hot = [c for c in history.candidates() if c.tier != "cold"]
    newest = {c.id for c in [*hot[-keep_hot:], *history.candidates()[-keep_hot:]]}
    kept: dict[str, Decision] = {}
    for c in history.checkpoints:
        for holds, rule, reason in (
            (not c.ours, "not_ours", "it is not in our own inventory"),
            (not c.complete, "unfinished", "its save is not known to have ended"),
            (c.id in newest, "newest", "the newest complete checkpoints never leave the hot disk"),
            (c.resumed_from, "resumed_from", "this run was resumed from it"),
            (c.pinned, "pinned", "it is pinned"),
        ):
            if holds:
                kept[c.id] = Decision(id=c.id, move=Move.KEEP, rule=rule, reason=reason)
                break
    return kept


def _rules(history: History, keep: Rule | None) -> dict[str, Decision]:
    if keep is None:
        return {c.id: _without_rules(c) for c in history.checkpoints}
    kept: dict[str, Decision] = {}
    for rule in keep.parts():
        for id in rule.kept(history):
            kept.setdefault(id, Decision(id=id, move=Move.KEEP, rule=rule.label, reason=f"{rule.label} keeps it"))
    return kept


def _without_rules(c: Checkpoint) -> Decision:
    if c.released and c.tier == "hot":
        return Decision(id=c.id, move=Move.EXPIRE, rule="released", reason="its own ModelCheckpoint deletes it")
    return Decision(id=c.id, move=Move.KEEP, rule="no_rule", reason="no rule was given")


def _rest(c: Checkpoint, retention: Retention, life_ns: int | None, now_ns: int, tiers: Tiers) -> Decision:
    """What no rule keeps: it expires, is demoted, or stays where it is."""
    if life_ns is not None and now_ns - c.saved_ns >= life_ns:
        expired = expire(c, now_ns, tiers)
        put_off = expired.move is Move.KEEP and c.tier == "both" and tiers.has_cold
        return replace(expired, move=Move.DEMOTE, reason=f"its hot copy goes; {expired.reason}") if put_off else expired
    left_ns = None if life_ns is None else life_ns - (now_ns - c.saved_ns)
    if is_due_for_stripping(c, retention, now_ns, tiers):
        stripped = strip(c, left_ns, now_ns, tiers)
        # What is not stripped now and still hot moves whole.
        if stripped.move is Move.STRIP or c.tier == "cold":
            return stripped
    if c.tier == "cold":
        return Decision(id=c.id, move=Move.KEEP, rule="rest", reason="it is cold already")
    if retention.demote == "none" or not tiers.has_cold:
        released = _without_rules(c)
        if released.move is Move.EXPIRE:
            return released
        return Decision(id=c.id, move=Move.KEEP, rule="rest", reason="nothing is demoted")
    return demote(c, left_ns, tiers)


def _fit_quota(
    history: History,
    retention: Retention,
    decided: dict[str, Decision],
    guards: dict[str, Decision],
    tiers: Tiers,
) -> None:
    """Demote the oldest of what would stay hot until the rest fits."""
    if retention.hot_quota_bytes is None or not tiers.has_cold:
        return
    staying = [c for c in history.candidates() if c.tier != "cold" and decided[c.id].move is Move.KEEP]
    total = sum(c.size_bytes or 0 for c in staying)
    for c in _movable(staying, guards):
        if total <= retention.hot_quota_bytes:
            return
        total -= c.size_bytes or 0
        decided[c.id] = Decision(id=c.id, move=Move.DEMOTE, rule="hot_quota", reason="the hot disk's quota is used up")


def _movable(staying: Sequence[Checkpoint], guards: dict[str, Decision]) -> list[Checkpoint]:
    return [c for c in staying if c.id not in guards and c.size_bytes]
