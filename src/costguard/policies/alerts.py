"""Which verdicts are sent to people now, and which wait for a digest: few enough that they are still read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costguard.records import ENDING_ACTIONS, Action, Verdict
from costguard.units import NS_PER_HOUR

MAX_PER_HOUR = 3
_TOLD = frozenset({Action.ALERT, Action.WARN})


@dataclass(frozen=True, slots=True)
class Held:
    """What waits for the digest: a kind, how often it came, since when, and its latest sentence."""

    kind: str
    count: int
    since_ns: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertState:
    """What was sent and what waits.

    Args:
        sent_ns: When alerts were sent within the last hour, over attempts.
        seen: Kinds that were sent in this attempt.
        held: What waits, in the order in which it came.
    """

    sent_ns: tuple[int, ...] = ()
    seen: frozenset[str] = frozenset()
    held: tuple[Held, ...] = ()

    def next_attempt(self) -> AlertState:
        """The state that a new attempt begins with: each kind may speak again, the hourly limit goes on."""
        return replace(self, seen=frozenset())

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        held = [[h.kind, h.count, h.since_ns, h.message] for h in self.held]
        return {"sent_ns": list(self.sent_ns), "seen": sorted(self.seen), "held": held}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> AlertState:
        """Read what `to_json` wrote."""
        held = tuple(Held(*row) for row in data["held"])
        return AlertState(sent_ns=tuple(data["sent_ns"]), seen=frozenset(data["seen"]), held=held)


@dataclass(frozen=True, slots=True)
class Alerts:
    """What to send now, in order, and the state after it."""

    send: tuple[Verdict, ...]
    state: AlertState


def kind_of(verdict: Verdict) -> str:
    """What counts as the same alert: its kind and its reason, such as `budget/spent_80`."""
    return f"{verdict.kind}/{verdict.reason}"


def choose_alerts(state: AlertState, verdicts: Sequence[Verdict], now_ns: int, *, closing: bool = False) -> Alerts:
    """Choose what people are told now.

    A stop or a refusal is always sent. Of the rest each kind is sent once in an attempt, at most three in any hour;
    what comes beyond is held, and sent as one digest when the first of it has waited for an hour, which takes one of
    the three places. What is only to be logged is nobody's alert.

    Args:
        state: What was sent and what waits.
        verdicts: What came up now; may be empty, since digests fall due by time.
        now_ns: Now, on a clock that goes on over restarts (the wall clock).
        closing: Whether this is the last call of an attempt: what waits is sent now, if there is a place; if not, it
            stays in the state for the next attempt, so that one that crashes again and again floods nobody.
    """
    # A wall clock that was put back must not silence anyone for longer than an hour from now.
    recent = tuple(min(at, now_ns) for at in state.sent_ns if now_ns - at < NS_PER_HOUR)
    state = replace(state, sent_ns=recent)
    send: list[Verdict] = []
    for verdict in verdicts:
        if verdict.action in ENDING_ACTIONS:
            send.append(verdict)
        elif verdict.action in _TOLD:
            state, sent = _take(state, verdict, now_ns)
            send += [verdict] if sent else []
    if state.held and len(state.sent_ns) < MAX_PER_HOUR and (closing or _waited(state.held, now_ns)):
        send.append(_digest(state.held))
        state = replace(state, held=(), sent_ns=(*state.sent_ns, now_ns))
    return Alerts(tuple(send), state)


def _take(state: AlertState, verdict: Verdict, now_ns: int) -> tuple[AlertState, bool]:
    kind = kind_of(verdict)
    if kind in state.seen or len(state.sent_ns) >= MAX_PER_HOUR:
        return replace(state, held=_hold(state.held, kind, verdict.message, now_ns)), False
    return replace(state, sent_ns=(*state.sent_ns, now_ns), seen=state.seen | {kind}), True


def _hold(held: tuple[Held, ...], kind: str, message: str, now_ns: int) -> tuple[Held, ...]:
    if all(h.kind != kind for h in held):
        return (*held, Held(kind, 1, now_ns, message))
    return tuple(replace(h, count=h.count + 1, message=message) if h.kind == kind else h for h in held)


def _waited(held: Sequence[Held], now_ns: int) -> bool:
    # What is held since a time to come was held before the clock was put back.
    return any(now_ns - h.since_ns >= NS_PER_HOUR or h.since_ns > now_ns for h in held)


def _digest(held: Sequence[Held]) -> Verdict:
    lines = [h.message if h.count == 1 else f"{h.message} ({h.count} times)" for h in held]
    return Verdict(
        kind="digest",
        action=Action.ALERT,
        reason="held_back",
        message=f"Held back, to spare you: {' '.join(lines)}",
        evidence={"counts": {h.kind: h.count for h in held}},
    )
