"""Decisions beside a journal: in one order, never changed, read from a mirror, and loud when they cannot be read."""

from __future__ import annotations

import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costguard.errors import CostguardError
from costguard.ledger.control import ControlLog, Decision, is_control, raised_limit, standing_stop
from costguard.ledger.store_files import StoreFiles, files_of


def test_decisions_are_numbered_and_signed(tmp_path: Path) -> None:
    """Each has its place, an instant and a name; fields come back as they were."""
    log = ControlLog(str(tmp_path / "run"))
    log.append("stop", message="enough")
    log.append("raise", budget="run/usd/billed", **{"from": "10", "to": "20"}, why="more data")
    first, second = log.decisions()
    assert (first.number, second.number) == (1, 2)
    assert (first.kind, second.kind) == ("stop", "raise")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.fields["at"])
    assert first.fields["who"]
    assert (second.fields["from"], second.fields["to"], second.fields["why"]) == ("10", "20", "more data")


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_two_who_decide_at_once_come_after_each_other(tmp_path: Path, store: str) -> None:
    """Eight threads decide five times each: 40 decisions, none lost, none overwritten."""
    place = str(tmp_path / "run") if store == "disk" else f"memory://{uuid.uuid4().hex}"

    def decide(thread: int) -> None:
        log = ControlLog(place, files_of(place))
        for each in range(5):
            log.append("resume", why=f"{thread}-{each}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decide, range(8)))
    decisions = ControlLog(place, files_of(place)).decisions()
    assert [d.number for d in decisions] == list(range(1, 41))
    assert len({d.fields["why"] for d in decisions}) == 40


@pytest.mark.parametrize(
    "content",
    [
        "{not json",
        '{"v": 2, "kind": "stop"}',
        '{"v": 1, "kind": "explode"}',
        "[]",
        '"stop"',
        "null",
        '{"v": 1}',
        "\xff",
    ],
)
def test_a_decision_that_cannot_be_read_is_an_error(tmp_path: Path, content: str) -> None:
    """Torn, newer or strange: what it forbids is unknown, so nothing goes on; the file and the remedy are named."""
    log = ControlLog(str(tmp_path))
    log.append("stop", message="enough")
    (tmp_path / "control-0002.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CostguardError, match=r"control-0002\.json cannot be read .*mend or remove the file"):
        log.decisions()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_decision_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    """No permission is not the same as no decision."""
    log = ControlLog(str(tmp_path))
    log.append("stop", message="enough")
    (tmp_path / "control-0001.json").chmod(0)
    with pytest.raises(CostguardError, match="cannot be read"):
        log.decisions()


def test_one_that_died_before_it_had_decided_says_nothing(tmp_path: Path) -> None:
    """An empty file, or one of zeros after a power cut, is no decision; the next one comes after it."""
    log = ControlLog(str(tmp_path))
    log.append("stop", message="enough")
    (tmp_path / "control-0002.json").write_bytes(b"")
    (tmp_path / "control-0003.json").write_bytes(b"\0" * 40)
    assert [d.number for d in log.decisions()] == [1]
    assert log.append("resume", why="x").number == 4


def test_no_folder_is_no_decision(tmp_path: Path) -> None:
    """A run that was never decided on."""
    assert ControlLog(str(tmp_path / "none")).decisions() == []
    assert ControlLog("memory://none-such", files_of("memory://none-such")).decisions() == []


def test_other_files_are_not_decisions(tmp_path: Path) -> None:
    """Only our own names count."""
    for name in ("control-1.json", "control-0001.json.tmp", "xcontrol-0001.json", "control-abcd.json"):
        (tmp_path / name).write_text("{")
    assert ControlLog(str(tmp_path)).decisions() == []
    assert is_control("control-0001.json")
    assert is_control("control-12345.json")
    assert not is_control("control-1.json")


KINDS = st.sampled_from(["stop", "raise", "resume"])


@given(st.lists(KINDS, max_size=12))
def test_a_stop_stands_until_something_comes_after_it(kinds: list[str]) -> None:
    """Whatever came before: only the last word counts."""
    fields = {"to": "1", "budget": "b", "evidence": {"budget": "b"}}
    decisions = [Decision(n, kind, fields) for n, kind in enumerate(kinds, 1)]
    stop = standing_stop(decisions)
    assert (stop is not None) == (bool(kinds) and kinds[-1] == "stop")
    if stop is not None:
        assert stop.number == len(kinds)


def test_each_budget_has_its_own_raises() -> None:
    """The last raise of this budget; another's says nothing about it."""
    said = [("a", "10", "20"), ("b", "1", "99"), ("a", "20", "30.5")]
    decisions = [Decision(n, "raise", {"budget": b, "from": a, "to": to}) for n, (b, a, to) in enumerate(said, 1)]
    assert raised_limit(decisions, "a", Fraction(10)) == Fraction(61, 2)
    assert raised_limit(decisions, "b", Fraction(1)) == 99
    assert raised_limit(decisions, "c", Fraction(7)) == 7


def test_a_limit_that_is_stated_anew_is_the_last_word() -> None:
    """What was raised from 10 says nothing about 12, nor about 1000 that was a slip and is 30 now."""
    raised = [Decision(1, "raise", {"budget": "a", "from": "10", "to": "20"})]
    assert [raised_limit(raised, "a", Fraction(n)) for n in (10, 12, 30)] == [20, 12, 30]


def test_raising_another_budget_lifts_no_stop() -> None:
    """The stop names its budget."""
    stop = Decision(1, "stop", {"evidence": {"budget": "run/usd/billed"}})
    other, own = (Decision(2, "raise", {"budget": b}) for b in ("day/usd/billed", "run/usd/billed"))
    assert standing_stop([stop, other]) is stop
    assert standing_stop([stop, own]) is None


def test_who_finds_out_late_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store tells only when the file is written that somebody was faster: then the next number is taken."""
    url = f"memory://{uuid.uuid4().hex}"
    files = StoreFiles(url)
    ControlLog(url, files).append("stop", message="first")
    late = StoreFiles(url)
    looks = iter([[], ["control-0001.json"]])
    monkeypatch.setattr(late, "listing", lambda path: next(looks))
    monkeypatch.setattr(late, "create", lambda path: late._open.setdefault(7, (path, bytearray())) and 7)
    assert ControlLog(url, late).append("resume", why="second").number == 2
    assert [d.kind for d in ControlLog(url, files).decisions()] == ["stop", "resume"]


def test_a_stores_file_is_created_once() -> None:
    """Who comes second to a name is told so, before or when it is written."""
    url = f"memory://{uuid.uuid4().hex}"
    files = StoreFiles(url)
    first, second = files.create(f"{url}/x"), files.create(f"{url}/x")
    files.write(first, b"a")
    files.close(first)
    with pytest.raises(FileExistsError):
        files.close(second)
    with pytest.raises(FileExistsError):
        files.create(f"{url}/x")
    assert files.read(f"{url}/x") == b"a"
    assert files.listing(url) == ["x"]


def test_a_protocol_that_is_not_known_says_so() -> None:
    """No such store."""
    with pytest.raises(ValueError, match="nosuch"):
        files_of("nosuch://x")
