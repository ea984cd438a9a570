"""What networks and stores do to a demotion and a restore, on SeaweedFS through a proxy: nothing lost, a clear word."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy, Rule
from rooms import MIB, room_of, s3_store, saved

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import CheckpointError, MismatchError, StoreError
from costguard.checkpoints.recovery import collect, recover
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.s3 import S3Store

PART = "PUT .*partNumber=2"
DATA = os.urandom(11 * MIB + 5)


@pytest.fixture
def run(proxy: Proxy, tmp_path: Path) -> Room:
    """A run whose cold store is behind the proxy, with a large checkpoint `a` and a newer one."""
    store: Any = s3_store(proxy.endpoint, deadline_s=20, attempts=3)
    assert isinstance(store, S3Store)
    store._backoff_s = 0.01  # seconds of waiting prove nothing here
    room = room_of(tmp_path, store, part_bytes=5 * MIB)
    saved(room, "old.ckpt", DATA, id="a")
    saved(room, "new.ckpt", b"new", id="b")
    return room


def hot(room: Room) -> Path:
    return Path(room.inventory.get("a").path)


def assert_whole(room: Room) -> None:
    """Whatever happened: demoted, released and restored in the end, the bytes are those that were saved."""
    recover(room)
    demote(room, "a")
    release(room, "a")
    assert not hot(room).exists()
    assert Path(restore(room, "a")).read_bytes() == DATA
    collect(room)
    assert room.cold.uploads("") == []
    keys = room.cold.listing(room.prefix("a"))
    assert len(keys) == 2, keys


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        (Rule(PART, "answer", times=2, status=500, code="InternalError"), 3),
        (Rule(PART, "answer", times=1, status=503, code="ServiceUnavailable"), 2),
        (Rule(PART, "answer", times=2, status=503, code="SlowDown"), 3),
        (Rule(PART, "cut_up", at=MIB), 2),
        (Rule(PART, "lose"), 2),
        (Rule(PART, "flip_up", at=1000), 2),
        (Rule("POST .*uploadId", "lose"), 1),
        (Rule("PUT .*MANIFEST", "lose"), 1),
        (Rule("HEAD .*old", "answer", status=503), 1),
    ],
    ids=lambda value: f"{value.do}-{value.code}-{value.match[:12]}" if isinstance(value, Rule) else "",
)
def test_a_passing_fault_of_an_upload_is_got_over(run: Room, proxy: Proxy, rule: Rule, asked: int) -> None:
    """Errors that pass, cut and lost requests, flipped bits: tried again, and the tag proves what arrived."""
    proxy.rules.append(rule)
    assert demote(run, "a").state == "both"
    assert rule.times == 0, "the fault was met"
    assert proxy.count(PART) >= asked or rule.match != PART
    assert_whole(run)


@pytest.mark.parametrize(
    ("rule", "kind", "says"),
    [
        (Rule(PART, "answer", 99, 500, "InternalError"), "away", "away or did not answer"),
        (Rule(PART, "answer", 99, 503, "SlowDown"), "slow_down", "slow down"),
        (Rule(PART, "answer", 99, 403, "AccessDenied"), "denied", "check the rights"),
        (Rule(PART, "answer", 99, 400, "ExpiredToken"), "credentials", "expired; refresh them"),
        (Rule(PART, "answer", 99, 403, "RequestTimeTooSkewed"), "clock", "clock skew"),
        (Rule(PART, "answer", 99, 404, "NoSuchBucket"), "no_bucket", "no such bucket"),
    ],
    ids=lambda value: value.code if isinstance(value, Rule) else "",
)
def test_a_lasting_fault_keeps_the_hot_copy_and_is_named(
    run: Room, proxy: Proxy, rule: Rule, kind: str, says: str
) -> None:
    """The checkpoint stays where it is, what was sent is cleared away, and the sentence says what to do."""
    proxy.rules.append(rule)
    with pytest.raises(StoreError, match=says) as raised:
        demote(run, "a")
    assert raised.value.kind == kind
    assert "testsecret" not in str(raised.value)
    record = run.inventory.get("a")
    assert (record.state, hot(run).read_bytes()) == ("hot", DATA)
    assert says in record.problem
    if kind not in ("away", "slow_down"):
        assert proxy.count(PART) == 1, "what cannot help is not tried again"
    assert (run.cold.uploads(""), run.cold.listing("")) == ([], [])
    proxy.rules.clear()
    assert_whole(run)


def test_a_store_that_stalls_is_given_up_at_the_deadline(proxy: Proxy, tmp_path: Path) -> None:
    """A server that reads nothing is not cut by any timeout of the client: the deadline is ours."""
    room = room_of(tmp_path, s3_store(proxy.endpoint, deadline_s=1, attempts=1), part_bytes=5 * MIB)
    saved(room, "old.ckpt", DATA, id="a")
    saved(room, "new.ckpt", b"new", id="b")
    proxy.rules.append(Rule(PART, "stall", times=1))
    with pytest.raises(StoreError) as raised:
        demote(room, "a")
    assert raised.value.kind == "away"
    assert hot(room).exists()
    assert_whole(room)


def test_a_deletion_that_is_taken_and_not_done_is_noticed(run: Room, proxy: Proxy) -> None:
    """s3fs#838: rm says nothing of a denied deletion; a list afterwards does, and it is tried again later."""
    path = demote(run, "a").path
    proxy.rules.append(Rule("DELETE .*old.ckpt", "answer", 99, 204))
    with pytest.raises(CheckpointError, match="1 objects of a are still there"):
        expire(run, "a")
    assert run.inventory.get("a").state == "expiring"
    assert hot(run).exists()
    assert "still there" in recover(run).problems[0]
    proxy.rules.clear()
    assert recover(run).problems == []
    assert run.cold.listing("") == []
    assert [r.id for r in run.inventory.records()] == ["b"]
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("GET .*old.ckpt", "cut_down", times=2, at=MIB),
        Rule("GET .*old.ckpt", "answer", times=2, status=503, code="SlowDown"),
        Rule("GET .*old.ckpt", "flip", times=1, at=4 * MIB),
        Rule("GET .*MANIFEST", "cut_down", times=1, at=50),
    ],
    ids=lambda rule: rule.do + rule.match[-4:],
)
def test_a_passing_fault_of_a_restore_is_got_over(run: Room, proxy: Proxy, rule: Rule) -> None:
    """Cut bodies and bits flipped on the wire are asked for again; s3fs itself notices neither."""
    demote(run, "a")
    release(run, "a")
    proxy.rules.append(rule)
    assert Path(restore(run, "a")).read_bytes() == DATA
    assert rule.times == 0


def test_a_copy_that_has_rotted_is_never_used(run: Room, proxy: Proxy) -> None:
    """Damaged twice at one place: no file appears under the name, and the user is told where."""
    demote(run, "a")
    release(run, "a")
    proxy.rules.append(Rule("GET .*old.ckpt", "flip", times=99, at=MIB))
    with pytest.raises(MismatchError, match="damaged at byte 0, twice"):
        restore(run, "a")
    assert sorted(os.listdir(hot(run).parent)) == ["inventory", "new.ckpt"]
    proxy.rules.clear()
    assert Path(restore(run, "a")).read_bytes() == DATA


def test_a_restore_goes_on_at_the_part_where_it_was_cut(run: Room, proxy: Proxy) -> None:
    """NovaSky-AI/SkyRL#382: what has been brought is not brought again."""
    demote(run, "a")
    release(run, "a")
    proxy.rules.append(Rule("GET .*old.ckpt", "answer", 99, 403, "AccessDenied", skip=2))
    with pytest.raises(StoreError):
        restore(run, "a")
    assert run.inventory.get("a").state == "restoring"
    assert not hot(run).exists()
    proxy.rules.clear()
    before = proxy.count("GET .*old.ckpt")
    assert recover(run).interrupted == ["a"]
    assert Path(restore(run, "a")).read_bytes() == DATA
    assert proxy.count("GET .*old.ckpt") - before == 1


def lose_everything(proxy: Proxy) -> None:
    proxy.rules.append(Rule(".", "answer", 10_000, 503))


@pytest.mark.parametrize("move", [demote, release, restore, expire], ids=lambda move: move.__name__)
def test_an_outage_loses_nothing_and_is_over_when_it_is_over(
    run: Room, proxy: Proxy, move: Callable[[Room, str], object]
) -> None:
    """Whatever was going on when the store went away is brought to its end when it is back."""
    if move is not demote:
        demote(run, "a")
    if move is restore:
        release(run, "a")
    lose_everything(proxy)
    with pytest.raises(CheckpointError):
        move(run, "a")
    assert move is restore or hot(run).read_bytes() == DATA
    assert recover(run).problems or move in (release, restore)
    proxy.rules.clear()
    assert recover(run).problems == []
    if move is expire:
        assert run.cold.listing("") == []
    else:
        assert_whole(run)
