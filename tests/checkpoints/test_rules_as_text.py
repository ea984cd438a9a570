"""Rules as the text that a command line and a room's file hold, and what a room remembers of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costguard.checkpoints.cabinet import Cold, open_room, policy_of, remember_policy
from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.manifest import Level
from costguard.errors import ConfigError, CostguardError
from costguard.keep import (
    History,
    Rule,
    any_of,
    before_anomaly,
    best,
    every,
    last,
    parse,
    pinned,
    stage_end,
    thin,
)
from costguard.policies.retention import Retention
from costguard.prices.storage import StorageClass

COUNTS = st.integers(1, 10**12)
RULES = st.one_of(
    st.builds(last, COUNTS),
    st.builds(best, st.text(min_size=1), COUNTS, st.sampled_from(["min", "max"])),
    st.builds(
        lambda unit, n, most: every(**{unit: n}, at_most=most),
        st.sampled_from(["steps", "epochs"]),
        COUNTS,
        st.none() | COUNTS,
    ),
    st.builds(lambda hours: every(hours=hours), st.floats(1e-9, 1e9)),
    st.builds(lambda tokens: every(tokens=tokens), COUNTS),
    st.builds(lambda h, d, w: thin(hourly=h, daily=d, weekly=w), COUNTS, st.integers(0, 9), st.integers(0, 9)),
    st.builds(before_anomaly, COUNTS),
    st.just(stage_end()),
    st.just(pinned()),
)
RETENTIONS = st.builds(
    Retention,
    keep=st.none() | RULES | st.builds(any_of, st.lists(RULES, min_size=2, max_size=4)),
    demote=st.sampled_from(["rest", "none"]),
    expire_after_ns=st.none() | st.integers(0, 10**18),
    failed_expire_after_ns=st.none() | st.integers(0, 10**18),
    hot_quota_bytes=st.none() | st.integers(0, 10**15),
    keep_hot=st.integers(1, 5),
)


@given(RULES)
def test_what_a_rule_is_called_is_read_as_that_rule(rule: Rule) -> None:
    """Any argument, any metric's name."""
    assert parse(rule.label) == rule


@given(st.recursive(RULES, lambda inner: st.builds(any_of, st.lists(inner, min_size=2, max_size=3)), max_leaves=6))
def test_joined_rules_are_read_as_they_were_joined(rule: Rule) -> None:
    """However deep they were nested: what counts is which rules, in which order."""
    assert parse(rule.label) == rule
    assert hash(parse(rule.label)) == hash(rule)


def test_what_a_user_types_is_read() -> None:
    """As in Python: names, defaults, underscores, quotes of either kind, brackets, line breaks."""
    typed = "last(3)|best('val_loss', n=2)\n | (every(steps=10_000) | pinned())"
    assert parse(typed) == last(3) | best("val_loss", n=2) | every(steps=10_000) | pinned()
    assert parse(' best("a|b", mode="max") ') == best("a|b", mode="max")
    assert parse(" | ".join(["last(2)"] * 50)).label.count("last(2)") == 50


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "cannot be read"),
        ("last(3", "cannot be read"),
        ("(" * 5000, "cannot be read"),
        ("last", "last is without parentheses; write last(...)"),
        ("latst(3)", "there is no rule 'latst', did you mean 'last'?"),
        ("latst", "there is no rule 'latst', did you mean 'last'?"),
        ("rm()", "there is no rule 'rm'; the rules are last, best"),
        ("best('loss', mod='max')", "best has no argument 'mod', did you mean 'mode'?"),
        ("pinned(x=1)", "pinned has no argument 'x'; it takes none"),
        ("best()", "missing a required argument: 'metric'; best takes metric, n, mode"),
        ("last(1, 2)", "too many positional arguments"),
        ("last(1, n=2)", "multiple values for argument 'n'"),
        ("last(n=1, n=2)", "n is given twice"),
        ("last(**{'n': 1})", "expected each argument by its name"),
        ("last(0)", "last(n=0): expected a whole number of at least 1"),
        ("last('3')", "last(n='3'): expected a whole number"),
        ("last(x)", "expected a number or a quoted text"),
        ("best(val_loss)", "expected a number or a quoted text"),
        ("every(hours=1e999)", "every(hours=inf): expected a number above 0"),
        ("every(steps='ten')", "every(steps='ten'): expected a number above 0"),
        ("every(steps=1+2j)", "every(steps=(1+2j)): expected a number above 0"),
        ("thin(daily='x')", "thin(daily='x'): expected a whole number"),
        ("last(3) & pinned()", "is no rule; expected rules joined by |"),
        ("3", "3 is no rule"),
        ("keep.last(3)", "is no rule"),
        ("__import__('os').remove('x')", "is no rule"),
        ("last(__import__('os').getpid())", "expected a number or a quoted text"),
        ("last(3); pinned()", "cannot be read"),
    ],
)
def test_what_is_no_rule_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    """Nothing is run, and the nearest name is told."""
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@given(RETENTIONS)
def test_a_retention_comes_back_from_json(retention: Retention) -> None:
    """All of it, through real JSON."""
    assert Retention.from_json(json.loads(json.dumps(retention.to_json()))) == retention


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"v": 2}, "of a newer costguard"),
        ({"keep_for_luck": 3}, "of a newer costguard"),
        ({"keep": "first(3)"}, "cannot be read .*there is no rule 'first'"),
        ({"keep": 3}, "cannot be read"),
        ({"demote": "all"}, "cannot be read"),
        ({"expire_after_ns": "soon"}, "cannot be read"),
    ],
)
def test_a_retention_that_is_not_understood_is_refused(change: dict[str, Any], sentence: str) -> None:
    """Rules that are half understood would delete what the other half keeps."""
    with pytest.raises(CostguardError, match=sentence):
        Retention.from_json({**Retention(keep=last(3)).to_json(), **change})


class EvenSteps(Rule):
    """A rule of a user's own."""

    def kept(self, history: History) -> set[str]:
        return {c.id for c in history.candidates() if c.step % 2 == 0}

    @property
    def label(self) -> str:
        return "last(2)"


def test_a_room_remembers_what_was_wanted_of_it(tmp_path: Path) -> None:
    """Commands that open it, also with other options, never lose it; classes come back as prices."""
    cold = Cold(url=str(tmp_path / "cold"), storage_class="s3:GLACIER_IR")
    room = open_room(str(tmp_path / "run"), cold)
    assert policy_of(room) is None
    wanted = Retention(keep=last(2) | pinned(), expire_after_ns=10**15)
    remember_policy(room, wanted, "s3:STANDARD")
    again = open_room(str(tmp_path / "run"), replace(cold, storage_class="s3:STANDARD_IA"))
    found = policy_of(open_room(str(tmp_path / "run"), Cold()))
    assert found is not None
    assert policy_of(again) == found
    retention, tiers = found
    assert retention == wanted
    assert tiers.hot is not None
    assert tiers.cold is not None
    assert (tiers.hot.name, tiers.cold.name, tiers.has_cold) == ("STANDARD", "STANDARD_IA", True)
    remember_policy(room, Retention(demote="none"))
    found = policy_of(room)
    assert found is not None
    assert (found[0], found[1].hot, found[1].has_cold) == (Retention(demote="none"), None, False)


def test_a_room_remembers_prices_of_ones_own(tmp_path: Path) -> None:
    """A class with a user's own prices is written down whole, and comes back where commands open the room."""
    own = StorageClass(name="GLACIER_IR", usd_per_gb_month="0.0033", minimum_days=90)
    disk = StorageClass(name="nvme", usd_per_gb_month="0.11", retrieval_usd_per_gb="0")
    room = open_room(str(tmp_path), Cold(url=str(tmp_path / "cold"), storage_class=own))
    assert room.storage_class == own
    remember_policy(room, Retention(keep=last(2)), disk)
    found = policy_of(open_room(str(tmp_path), Cold()))
    assert found is not None
    assert (found[1].cold, found[1].hot) == (own, disk)


def test_a_room_forgets_rules_that_no_text_can_say(tmp_path: Path) -> None:
    """A user's own rule is not taken for the one whose name it has, nor are older rules taken for it."""
    room = open_room(str(tmp_path), Cold())
    remember_policy(room, Retention(keep=last(2)))
    remember_policy(room, Retention(keep=EvenSteps() | pinned()))
    assert policy_of(room) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"policy": {"v": 9}}, "of a newer costguard"),
        ({"policy": "last(3)"}, "cannot be read"),
        ({"hot_class": "s3:NONE"}, "not in the price table"),
        ({"hot_class": ["s3"]}, "room: "),
    ],
)
def test_a_policy_that_cannot_be_read_hinders_only_plans(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    """The room opens, so that a restore goes on; what asks for the policy is told why there is none."""
    room = open_room(str(tmp_path), Cold())
    remember_policy(room, Retention(keep=last(2)))
    file = tmp_path / "costguard-checkpoints" / "room"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointError, match=sentence):
        policy_of(open_room(str(tmp_path), Cold()))


def test_a_command_verifies_as_far_as_the_training_did(tmp_path: Path) -> None:
    """What was asked for holds until something else is; what is not understood is not taken for less."""
    open_room(str(tmp_path), Cold(required=Level.CONTENT))
    assert open_room(str(tmp_path), Cold()).required is Level.CONTENT
    assert open_room(str(tmp_path), Cold(required=Level.SIZE)).required is Level.SIZE
    assert open_room(str(tmp_path / "new"), Cold()).required is Level.ETAG
    file = tmp_path / "costguard-checkpoints" / "room"
    file.write_text(file.read_text().replace('"size"', '"notarized"'))
    with pytest.raises(CheckpointError, match="of a newer costguard"):
        open_room(str(tmp_path), Cold())
