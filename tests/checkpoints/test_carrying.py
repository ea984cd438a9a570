"""What a plan decided is carried out under guards of its own, and what it means in money is exact."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from crashing import lightning_file
from rooms import path_of, saved

from costguard.checkpoints.carrying import carry_out
from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.hot import FileFact
from costguard.checkpoints.prospect import Prospect, prospect, total
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room
from costguard.checkpoints.weights import WholeError
from costguard.policies.retention import Decision, Move, Tiers
from costguard.prices.storage import DAY_NS, GB, storage_class
from costguard.units import round_money

NOW = 1_800_000_000 * 10**9
TIERS = Tiers(hot=storage_class("s3:STANDARD"), cold=storage_class("s3:DEEP_ARCHIVE"), part_bytes=50 << 20)


def decided(id: str, move: Move) -> Decision:
    return Decision(id=id, move=move, rule="rest", reason="because")


@pytest.mark.parametrize("move", [Move.DEMOTE, Move.STRIP, Move.EXPIRE])
@pytest.mark.parametrize(
    ("held_by", "why"),
    [
        ("pin", "it is pinned"),
        ("resume", "a run was resumed from it"),
        ("newest", "it is the newest complete checkpoint"),
        ("pointer", "a restart goes on from it"),
        ("link", "a link beside it points to it"),
    ],
)
def test_a_guard_holds_whatever_was_decided(room: Room, held_by: str, why: str, move: Move) -> None:
    """Facts may have changed since the plan was made."""
    id = saved(room, "a.ckpt")
    pointers = []
    if held_by != "newest":
        saved(room, "b.ckpt")
    if held_by == "pin":
        room.inventory.pin(id)
    if held_by == "resume":
        room.inventory.update(room.inventory.get(id), resumed_from=True)
    if held_by == "pointer":
        pointers = ["", str(path_of(room, "a.ckpt"))]
    if held_by == "link":
        os.symlink("a.ckpt", path_of(room, "last.ckpt"))
    assert carry_out(room, decided(id, move), pointers) == why
    assert room.inventory.get(id).state == "hot"
    assert path_of(room, "a.ckpt").exists()


def test_what_nothing_holds_is_moved_and_deleted(room: Room) -> None:
    """Without a store it stays and says why; what is kept or gone is no work."""
    first, second = saved(room, "a.ckpt"), saved(room, "b.ckpt")
    saved(room, "c.ckpt")
    assert carry_out(replace(room, store=None), decided(first, Move.DEMOTE)) == "there is no cold store"
    assert carry_out(room, decided(first, Move.KEEP)) is None
    assert carry_out(room, decided("nobody", Move.EXPIRE)) is None
    assert room.inventory.get(first).state == "hot"
    assert carry_out(room, decided(first, Move.DEMOTE)) is None
    assert room.inventory.get(first).state == "cold"
    assert carry_out(room, decided(first, Move.DEMOTE)) is None
    for id in (first, second):
        assert carry_out(room, decided(id, Move.EXPIRE)) is None
    assert len(room.inventory.records()) == 1


@pytest.mark.parametrize("tier", ["hot", "both", "cold"])
def test_what_is_stripped_is_another_one(room: Room, tier: str) -> None:
    """In the cold tier, from wherever it was."""
    whole, without = lightning_file(1)
    id = saved(room, "a.ckpt", whole)
    saved(room, "b.ckpt")
    for move in {"hot": [], "both": [demote], "cold": [demote, release]}[tier]:
        move(room, id)
    room.part_bytes = 1000
    assert carry_out(room, decided(id, Move.STRIP)) is None
    first = room.inventory.records()[0]
    assert (first.stripped_from, first.tier, first.size_bytes) == (id, "cold", len(without))


@pytest.mark.parametrize(("data", "says"), [(b"text", None), (b"", None), ("refused", "add_safe_globals")])
def test_what_cannot_be_stripped_moves_whole(room: Room, data: Any, says: str | None) -> None:
    """The hot disk gets free whether it can be made smaller or not; what a user may do about it is said."""
    if data == "refused":
        file = io.BytesIO()
        torch.save({"state_dict": {}, "optimizer_states": [1], "hparams": os.path.join}, file)
        data = file.getvalue()
    id = saved(room, "a.ckpt", data)
    saved(room, "b.ckpt")
    room.part_bytes = 1000
    if says is None:
        assert carry_out(room, decided(id, Move.STRIP)) is None
    else:
        with pytest.raises(WholeError, match=says):
            carry_out(room, decided(id, Move.STRIP))
    assert room.inventory.get(id).state == "cold"


def of_84_gb(**more: Any) -> Record:
    facts = {"saved_ns": NOW - 10 * DAY_NS, **more}
    return Record(id="a", path="/a", order=1, fingerprint=(FileFact("", "file", 84 * GB),), **facts)


def cents(found: Prospect) -> tuple[str | None, ...]:
    amounts = (found.usd_saved_per_month, found.usd_fee, found.read_usd)
    return tuple(None if amount is None else str(round_money(amount, 2)) for amount in amounts)


@pytest.mark.parametrize(
    ("state", "move", "expected", "hours"),
    [
        ("hot", Move.KEEP, ("0.00", "0.00", "0.00"), 0),
        ("hot", Move.DEMOTE, ("1.85", "0.08", "1.68"), 12),
        ("hot", Move.EXPIRE, ("1.93", "0.00", None), None),
        ("both", Move.DEMOTE, ("1.93", "0.00", "1.68"), 12),
        ("both", Move.EXPIRE, ("2.02", "0.47", None), None),
        ("cold", Move.KEEP, ("0.00", "0.00", "1.68"), 12),
        ("cold", Move.EXPIRE, ("0.08", "0.47", None), None),
        ("cold", Move.STRIP, (None, "7.00", None), 12),
    ],
)
def test_a_decision_is_worth_what_the_two_classes_say(
    state: Any, move: Move, expected: tuple[str | None, ...], hours: float | None
) -> None:
    """84 GB: Standard 1.932 a month, Deep Archive 0.083 for 180 days or more, 1606 requests of 0.05 a thousand."""
    cold_since_ns = None if state == "hot" else NOW - 10 * DAY_NS
    one = replace(decided("a", move), usd_fee=Fraction(7))
    found = prospect(one, of_84_gb(state=state, cold_since_ns=cold_since_ns), TIERS, NOW)
    assert cents(found) == expected
    assert found.restore_hours == hours


@pytest.mark.parametrize(
    ("state", "move", "saved_known", "fee_known", "read_known"),
    [
        ("hot", Move.KEEP, True, True, True),
        ("hot", Move.DEMOTE, False, False, False),
        ("both", Move.DEMOTE, False, True, False),
        ("cold", Move.KEEP, True, True, False),
        ("cold", Move.EXPIRE, False, False, False),
    ],
)
def test_without_prices_nothing_is_made_up(
    state: Any, move: Move, saved_known: bool, fee_known: bool, read_known: bool
) -> None:
    """Only what costs nothing at any price is known to."""
    cold_since_ns = None if state == "hot" else NOW
    found = prospect(decided("a", move), of_84_gb(state=state, cold_since_ns=cold_since_ns), Tiers(), NOW)
    known = tuple(amount is not None for amount in (found.usd_saved_per_month, found.usd_fee, found.read_usd))
    assert known == (saved_known, fee_known, read_known)


def test_a_sum_with_something_unknown_is_unknown() -> None:
    """Never the sum of the rest."""
    assert total([Fraction(1, 3), Fraction(2, 3)]) == 1
    assert total([Fraction(1), None]) is None
    assert total([]) == 0
