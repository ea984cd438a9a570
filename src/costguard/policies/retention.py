"""What becomes of each checkpoint, by which rule, and what that saves: facts in, decisions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime, timezone
from enum import Enum
from fractions import Fraction
from typing import Any, Final, Literal

from costguard.errors import CostguardError, config_error
from costguard.keep import Checkpoint, History, Rule, parse
from costguard.prices.storage import DAY_NS, DAYS_PER_MONTH, StorageClass
from costguard.units import format_money

VERSION: Final = 1
"""Of what `Retention.to_json` writes."""


class Move(str, Enum):
    """What is to be done with a checkpoint."""

    KEEP = "keep"
    DEMOTE = "demote"
    EXPIRE = "expire"
    STRIP = "strip"


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """What a user wants of the checkpoints of a run.

    Args:
        keep: What stays; without a rule all does, but for what the user's own `ModelCheckpoint` deletes.
        demote: `rest` moves to the cold tier what no rule keeps; `none` leaves it where it is, or deletes it if
            `ModelCheckpoint` has let it go.
        expire_after_ns: Nanoseconds after the save at which what no rule keeps is deleted everywhere; never if `None`.
        failed_expire_after_ns: The same for a run that failed, `None` for no difference.
        tagged_expire_after_ns: The same by tag of the run, `name` or `name=value`; the shortest that fits holds.
        strip_after_ns: Nanoseconds after the save at which what no rule keeps is kept without its optimizer state, in
            the cold tier; never if `None`.
        hot_quota_bytes: Bytes on the hot disk above which also what a rule keeps is demoted, the oldest first.
        min_free: Bytes of the hot disk that stay free by the same means, or below 1 their share of it; see `on_disk`.
        keep_hot: So many of the newest complete checkpoints never leave the hot disk, >= 1.

    Raises:
        ConfigError: If a value cannot be used.
    """

    keep: Rule | None = None
    demote: Literal["rest", "none"] = "rest"
    expire_after_ns: int | None = None
    failed_expire_after_ns: int | None = None
    tagged_expire_after_ns: Mapping[str, int] = field(default_factory=dict)
    strip_after_ns: int | None = None
    hot_quota_bytes: int | None = None
    min_free: int | float | None = None
    keep_hot: int = 1

    def __post_init__(self) -> None:
        if self.demote not in ("rest", "none"):
            raise config_error(f"Retention(demote={self.demote!r}): expected 'rest' or 'none'.")
        for option in ("expire_after_ns", "failed_expire_after_ns", "strip_after_ns", "hot_quota_bytes", "min_free"):
            value = getattr(self, option)
            if value is not None and value < 0:
                raise config_error(f"Retention({option}={value!r}): expected at least 0.")
        if any(life < 0 for life in self.tagged_expire_after_ns.values()):
            raise config_error(
                f"Retention(tagged_expire_after_ns={self.tagged_expire_after_ns!r}): expected at least 0."
            )
        if self.keep_hot < 1:
            raise config_error(f"Retention(keep_hot={self.keep_hot!r}): expected at least 1.")

    def on_disk(self, history: History, free_bytes: int, total_bytes: int) -> Retention:
        """The same on a hot disk as full as it is: what is to stay free becomes a quota.

        Args:
            history: Every known checkpoint.
            free_bytes: Bytes of the hot disk that are free now.
            total_bytes: All its bytes.
        """
        floor = self.min_free or 0
        quota = quota_within(
            round(floor * total_bytes) if floor < 1 else int(floor),
            free_bytes=free_bytes,
            hot_bytes=sum(c.size_bytes or 0 for c in history.checkpoints if c.tier != "cold"),
            hot_quota_bytes=self.hot_quota_bytes,
        )
        return replace(self, hot_quota_bytes=quota)

    def life_ns(self, c: Checkpoint, failed: bool) -> int | None:
        """How long after its save what no rule keeps lives, for ever if `None`.

        Args:
            c: The checkpoint.
            failed: Whether its run ended in failure.
        """
        of_failed = failed and self.failed_expire_after_ns is not None
        lives = [self.failed_expire_after_ns if of_failed else self.expire_after_ns]
        for tag, life_ns in self.tagged_expire_after_ns.items():
            name, equals, value = tag.partition("=")
            if name in c.tags and (not equals or c.tags[name] == value):
                lives.append(life_ns)
        return min((life for life in lives if life is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back, the rules as the text that `costguard.keep.parse` reads.

        Raises:
            ConfigError: If a rule is one of the user's own, which no text can say.
        """
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["tagged_expire_after_ns"] = dict(self.tagged_expire_after_ns)
        if self.keep is not None:
            data["keep"] = self.keep.label
            if list(parse(self.keep.label).parts()) != list(self.keep.parts()):
                raise config_error(f"Retention(keep={self.keep.label}): a rule of one's own cannot be written down.")
        return {"v": VERSION, **data}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Retention:
        """Read what `to_json` wrote.

        Raises:
            CostguardError: If it is damaged or of a newer costguard.
        """
        try:
            given = dict(data)
            if given.pop("v") != VERSION or not set(given) <= {f.name for f in fields(Retention)}:
                raise CostguardError("the rules written down are of a newer costguard; use that, or give rules anew.")
            keep = given.pop("keep", None)
            return Retention(keep=None if keep is None else parse(keep), **given)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise CostguardError(f"the rules written down cannot be read ({error}); give rules anew.") from error


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
            decided[c.id] = guards.get(c.id) or rules.get(c.id) or _rest(c, retention, life_ns, now_ns, tiers)
    _fit_quota(history, retention, decided, guards, tiers)
    return [decided[c.id] for c in history.checkpoints]


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
        return _expire(c, now_ns, tiers)
    left_ns = None if life_ns is None else life_ns - (now_ns - c.saved_ns)
    if _is_due_for_stripping(c, retention, now_ns, tiers):
        stripped = _strip(c, left_ns, now_ns, tiers)
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
    return _demote(c, left_ns, tiers)


def _expire(c: Checkpoint, now_ns: int, tiers: Tiers) -> Decision:
    expired = Decision(id=c.id, move=Move.EXPIRE, rule="expire_after", reason="no rule keeps it and its time is over")
    if c.cold_since_ns is None or tiers.cold is None or c.size_bytes is None:
        return expired
    fee = tiers.cold.early_usd(c.size_bytes, now_ns - c.cold_since_ns)
    if fee == 0:
        return replace(expired, usd_fee=fee, usd_saved_per_month=tiers.cold.month_usd(c.size_bytes))
    free_at_ns = tiers.cold.free_at_ns(c.cold_since_ns)
    reason = f"put off: deleted on {_day(free_at_ns)} it is free, now it costs {format_money(fee)}"
    return Decision(id=c.id, move=Move.KEEP, rule="deferred", reason=reason, usd_fee=fee, free_at_ns=free_at_ns)


def _day(at_ns: int) -> date:
    """The first day (UTC) that begins at an instant or after it."""
    return datetime.fromtimestamp(-(-at_ns // DAY_NS) * DAY_NS // 10**9, timezone.utc).date()


def _is_due_for_stripping(c: Checkpoint, retention: Retention, now_ns: int, tiers: Tiers) -> bool:
    if retention.strip_after_ns is None or c.stripped or not c.strippable:
        return False
    moves = tiers.has_cold and retention.demote == "rest"
    return moves and now_ns - c.saved_ns >= retention.strip_after_ns


def _strip(c: Checkpoint, left_ns: int | None, now_ns: int, tiers: Tiers) -> Decision:
    """Leave its optimizer state away, unless the fees alone are more than all that its storage costs until its end.

    How small it gets is not known before it is done, so nothing is assumed of it.
    """
    stripped = Decision(
        id=c.id,
        move=Move.STRIP,
        rule="strip_optimizer_after",
        reason="no rule keeps it, and it is old enough to do without its optimizer state",
    )
    cold, here = tiers.cold, tiers.hot if c.tier == "hot" else tiers.cold
    if cold is not None and c.tier == "cold" and cold.restore_hours:
        reason = f"it keeps its optimizer state: what is in {cold.name} cannot be read at once"
        return replace(stripped, move=Move.KEEP, rule="archived", reason=reason)
    if cold is None or here is None or c.size_bytes is None:
        return stripped
    fees = [cold.put_usd(_requests(c.size_bytes, tiers)), cold.read_usd(c.size_bytes if c.tier == "cold" else 0)]
    fee = sum((each for each in fees if each is not None), Fraction(0))
    # What is left of a cold copy's minimum is billed anyway: until it is over, stripping saves nothing.
    wait_ns = 0 if c.cold_since_ns is None else max(0, cold.free_at_ns(c.cold_since_ns) - now_ns)
    priced = replace(stripped, usd_fee=None if None in fees else fee)
    if left_ns is not None:
        most = here.month_usd(c.size_bytes) * max(0, left_ns - wait_ns) / (DAYS_PER_MONTH * DAY_NS)
        if most <= fee:
            days = f"within the {left_ns / DAY_NS:.1f} days it has left"
            reason = f"leaving its optimizer state away costs {_least(priced, fee)} and would not pay {days}"
            return replace(priced, move=Move.KEEP, rule="break_even", reason=reason)
    return _put_off(priced, fee, c, cold, now_ns) if wait_ns else priced


def _put_off(priced: Decision, fee: Fraction, c: Checkpoint, cold: StorageClass, now_ns: int) -> Decision:
    """Strip it when its full copy may go for nothing."""
    put_ns = c.cold_since_ns or 0
    free_at_ns, early = cold.free_at_ns(put_ns), cold.early_usd(c.size_bytes or 0, now_ns - put_ns)
    told = f"stripped on {_day(free_at_ns)} it costs {_least(priced, fee)}, now {_least(priced, fee + early)}"
    return replace(
        priced,
        move=Move.KEEP,
        rule="deferred",
        reason=f"put off: {told}",
        usd_fee=None if priced.usd_fee is None else fee + early,
        free_at_ns=free_at_ns,
    )


def _least(priced: Decision, amount: Fraction) -> str:
    """An amount in words, a lower bound where a part of it is unknown."""
    return f"{'at least ' if priced.usd_fee is None else ''}{format_money(amount)}"


def _requests(size_bytes: int, tiers: Tiers) -> int:
    """Writing requests of a copy of so many bytes."""
    return -(-size_bytes // tiers.part_bytes) + 2


def _demote(c: Checkpoint, left_ns: int | None, tiers: Tiers) -> Decision:
    """Move it if that pays over the life that is left to it."""
    demoted = Decision(id=c.id, move=Move.DEMOTE, rule="rest", reason="no rule keeps it hot")
    if c.tier == "both":
        return replace(demoted, reason="no rule keeps it hot and its cold copy is there")
    if tiers.hot is None or tiers.cold is None or c.size_bytes is None:
        return demoted
    requests = _requests(c.size_bytes, tiers)
    saved = tiers.hot.month_usd(c.size_bytes) - tiers.cold.month_usd(c.size_bytes)
    fee = tiers.cold.put_usd(requests)
    unknown = "" if fee is not None else f"; what {tiers.cold.name} asks for its {requests} requests is unknown"
    even = tiers.cold.break_even_days(tiers.hot, size_bytes=max(1, c.size_bytes), requests=requests)
    if even is None or (left_ns is not None and Fraction(left_ns, DAY_NS) < even):
        left = "" if left_ns is None else f" within the {left_ns / DAY_NS:.1f} days it has left"
        least = "" if fee is not None else "at least "
        days = "" if even is None else f"; it would take {least}{float(even):.1f} days{unknown}"
        reason = f"moving it to {tiers.cold.name} would not pay{left}{days}"
        return Decision(id=c.id, move=Move.KEEP, rule="break_even", reason=reason)
    return replace(demoted, reason=demoted.reason + unknown, usd_saved_per_month=saved, usd_fee=fee)


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


def quota_within(
    min_free_bytes: int, *, free_bytes: int, hot_bytes: int, hot_quota_bytes: int | None = None
) -> int | None:
    """The quota of the hot disk that leaves so much of it free.

    Args:
        min_free_bytes: Bytes that are to be free when all has moved.
        free_bytes: Bytes free now.
        hot_bytes: Bytes of the checkpoints that are there now.
        hot_quota_bytes: The user's own quota, `None` for none.

    Returns:
        The quota, the user's own where that is smaller or enough is free already.
    """
    if free_bytes >= min_free_bytes:
        return hot_quota_bytes
    allowed = max(0, hot_bytes + free_bytes - min_free_bytes)
    return allowed if hot_quota_bytes is None else min(allowed, hot_quota_bytes)
