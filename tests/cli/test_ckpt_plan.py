"""`costguard ckpt plan` and `apply`: the rules, what they mean in money, and doing what they say."""

from __future__ import annotations

import io
import os
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import SIZE, in_three_tiers, looks, run_json, run_text, saved, trained

from costguard.checkpoints.cabinet import Cold, open_room, policy_of, remember_policy
from costguard.checkpoints.demotion import demote
from costguard.checkpoints.hot import HotFiles
from costguard.cli.main import main
from costguard.keep import last, pinned
from costguard.policies.retention import Retention
from costguard.prices.storage import DAY_NS, GB


def actions(data: dict[str, Any]) -> list[str]:
    return [c["action"] for c in data["checkpoints"]]


def rules(data: dict[str, Any]) -> list[str]:
    return [c["rule"] for c in data["checkpoints"]]


def money(amount: Fraction) -> str:
    return str(float(amount)) if amount == 0 else f"{float(amount):.12f}".rstrip("0")


def test_without_rules_all_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what ModelCheckpoint has let go, whatever else is asked for; and the text says how to give rules."""
    room, run = trained(tmp_path), str(tmp_path / "run")
    room.inventory.update(room.inventory.records()[0], released=True)
    for more in ([], ["--expire-after", "1s", "--demote", "rest"]):
        data = run_json(capsys, "ckpt", "plan", run, *more)
        assert (actions(data), rules(data)) == (["keep"] * 3, ["no_rule", "no_rule", "newest"])
        assert data["rules"] is False
    assert "--keep" in run_text(capsys, "ckpt", "plan", run)
    before = looks(tmp_path)
    assert actions(run_json(capsys, "ckpt", "apply", run, "--yes")) == ["keep"] * 3
    assert set(looks(tmp_path)) - set(before) <= {"run/costguard-checkpoints/lock"}


def test_a_plan_says_what_it_means_in_money_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the last digit of the price table: from EBS at 0.08 to Deep Archive at 0.00099, 12 hours away."""
    run = str(in_three_tiers(tmp_path).inventory.folder)
    options = ["--keep", "last(1)", "--hot-class", "ebs:gp3", "--storage-class", "s3:DEEP_ARCHIVE"]
    room = open_room(str(tmp_path / "run"), Cold())
    saved(room, 4, data=bytes(10 * SIZE))
    saved(room, 5)
    before = looks(tmp_path)
    data = run_json(capsys, "ckpt", "plan", run, *options)
    assert looks(tmp_path) == before
    assert actions(data) == ["keep", "demote", "demote", "demote", "keep"]
    assert rules(data) == ["rest", "rest", "rest", "rest", "newest"]
    month = {name: Fraction(price) * SIZE / GB for name, price in (("hot", "0.08"), ("cold", "0.00099"))}
    both, hot, large = data["checkpoints"][1:4]
    assert both["usd_saved_per_month"] == money(month["hot"])
    assert both["usd_fee"] == "0"
    assert hot["usd_saved_per_month"] == money(month["hot"] - month["cold"])
    assert hot["usd_fee"] == "0.0001"  # the file and its manifest, at 0.05 a thousand
    assert large["read_usd"] == money(Fraction("0.02") * 10 * SIZE / GB)
    assert {c["restore_hours"] for c in (both, hot, large)} == {12}
    assert (data["checkpoints"][4]["restore_hours"], data["checkpoints"][4]["read_usd"]) == (0, "0")
    totals = data["totals"]
    assert (totals["keep"], totals["demote"], totals["expire"], totals["demote_bytes"]) == (2, 3, 0, 12 * SIZE)
    assert totals["usd_saved_per_month"] == money(12 * month["hot"] - 11 * month["cold"])
    assert (totals["usd_fee"], totals["restore_hours"]) == ("0.0002", 12)
    text = run_text(capsys, "ckpt", "plan", run, *options)
    for said in (
        "last(1)",
        "begins after 12 h",
        "for $0.0001000 once",
        "3 to demote (36.0 kB)",
        hot["id"],
        hot["path"],
    ):
        assert said in text


def test_where_a_price_is_unknown_the_sum_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never the sum of what happens to be known."""
    trained(tmp_path)
    data = run_json(capsys, "ckpt", "plan", str(tmp_path / "run"), "--keep", "last(1)")
    assert data["checkpoints"][0]["usd_saved_per_month"] is None
    assert data["totals"]["usd_saved_per_month"] is None
    assert data["totals"]["usd_fee"] == "0.00008"
    assert "an unknown amount a month" in run_text(capsys, "ckpt", "plan", str(tmp_path / "run"), "--keep", "last(1)")


def test_the_rules_of_the_training_hold_until_others_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option stands in for one of them and none is written down, the class of what moves neither."""
    room, run = trained(tmp_path, steps=4), str(tmp_path / "run")
    remember_policy(room, Retention(keep=last(2) | pinned(), expire_after_ns=DAY_NS, demote="none"))
    before = looks(tmp_path)
    data = run_json(capsys, "ckpt", "plan", run)
    assert (data["keep"], data["demote"], data["expire_after_s"]) == ("last(2) | pinned()", "none", 86_400)
    assert actions(data) == ["expire", "expire", "keep", "keep"]
    assert (data["retention"]["keep_hot"], data["retention"]["hot_quota_bytes"]) == (1, None)
    data = run_json(capsys, "ckpt", "plan", run, "--keep", "last(3)", "--expire-after", "5200w", "--demote", "rest")
    assert (data["keep"], data["demote"], data["expire_after_s"]) == ("last(3)", "rest", 5200 * 7 * 86_400)
    assert actions(data) == ["demote", "keep", "keep", "keep"]
    dear = ["--keep", "last(3)", "--demote", "rest", "--expire-after", "5200w", "--storage-class", "ebs:gp3"]
    dear += ["--hot-class", "s3:STANDARD"]
    assert rules(run_json(capsys, "ckpt", "plan", run, *dear)) == ["break_even", "last(3)", "last(3)", "newest"]
    assert main(["ckpt", "apply", run, *dear]) == 0
    assert looks(tmp_path) == before
    assert policy_of(open_room(run, Cold())) == policy_of(room)


def test_apply_only_says_so_until_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then it is as if the training had done it, and a second time there is nothing to do."""
    room, run = trained(tmp_path, steps=4), str(tmp_path / "run")
    before = looks(tmp_path)
    text = run_text(capsys, "ckpt", "apply", run, "--keep", "last(2)")
    assert "2 to demote" in text
    assert text.endswith("--yes does it\n")
    assert looks(tmp_path) == before
    done = run_json(capsys, "ckpt", "apply", run, "--keep", "last(2)", "--yes")
    assert [(c["action"], c.get("stays")) for c in done["checkpoints"]] == [
        *[("demote", None)] * 2, *[("keep", None)] * 2
    ]  # fmt: skip
    assert [r.tier for r in room.inventory.records()] == ["cold", "cold", "hot", "hot"]
    assert sorted(p.name for p in (tmp_path / "run" / "saves").iterdir()) == ["step=3.ckpt", "step=4.ckpt"]
    assert main(["ckpt", "verify", run]) == 0
    again = run_text(capsys, "ckpt", "apply", run, "--keep", "last(2)", "--yes")
    assert again.endswith("0 of 0 moves are done.\n")
    assert "there is nothing to do" in run_text(capsys, "ckpt", "apply", run, "--keep", "last(2)")


def test_the_class_of_what_moves_is_that_of_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is written into the copies, and one that there is not is refused before anything is opened or written."""
    room, run = trained(tmp_path), str(tmp_path / "run")
    before = looks(tmp_path)
    assert main(["ckpt", "apply", run, "--keep", "last(1)", "--storage-class", "s3:NONE", "--yes"]) == 2
    assert looks(tmp_path) == before
    assert main(["ckpt", "apply", run, "--keep", "last(1)", "--storage-class", "s3:STANDARD_IA", "--yes"]) == 0
    assert [r.storage_class for r in room.inventory.records()] == ["STANDARD_IA", "STANDARD_IA", None]
    with pytest.raises(ValueError, match="not in the price table"):
        open_room(run, Cold(storage_class="s3:NONE"))
    assert main(["ckpt", "ls", run]) == 0


def test_what_was_interrupted_is_brought_to_an_end_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a training does when it begins."""
    room, run = trained(tmp_path), str(tmp_path / "run")
    first = room.inventory.records()[0]
    room.inventory.update(first, state="demoting", attempt="torn")
    done = run_json(capsys, "ckpt", "apply", run, "--keep", "last(1)", "--yes")
    assert done["recovered"] == [f"{first.id}: its upload was thrown away"]
    assert [r.tier for r in room.inventory.records()] == ["cold", "cold", "hot"]


def test_what_is_gone_is_in_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Deleted by hand, it counts in no rule; a copy of it that is cold is."""
    room, run = trained(tmp_path, steps=4), str(tmp_path / "run")
    first, second, *_ = room.inventory.records()
    demote(room, first.id)
    for record in (first, second):
        os.remove(record.path)
    data = run_json(capsys, "ckpt", "plan", run, "--keep", "last(1)")
    assert [(c["id"] == first.id, c["tier"], c["action"]) for c in data["checkpoints"]] == [
        (True, "cold", "keep"), (False, "hot", "demote"), (False, "hot", "keep")
    ]  # fmt: skip
    assert len(room.inventory.records()) == 4


@pytest.mark.parametrize("name", ["last.ckpt", "last-v1.ckpt"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_a_restart_goes_on_from_is_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    """`ckpt_path="last"` chooses by the name; with no Trainer there to ask, all that it may choose stay hot."""
    room, run = trained(tmp_path), str(tmp_path / "run")
    held = room.inventory.records()[0]
    if kind == "link":
        os.symlink(os.path.basename(held.path), tmp_path / "run" / "saves" / name)
    else:
        held = saved(room, 1, name, order=0)
    for action in (["plan"], ["apply", "--yes"]):
        data = run_json(capsys, "ckpt", action[0], run, "--keep", "last(1)", *action[1:])
        (entry,) = (c for c in data["checkpoints"] if c["id"] == held.id)
        assert (entry["action"], entry["rule"]) == ("keep", "held")
    assert room.inventory.get(held.id).state == "hot"
    assert [r.tier for r in room.inventory.records()].count("cold") >= 1


def test_what_stays_is_said_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that is away is asked once; exit code 1; nothing is lost, and it goes on when the store is back."""
    room, run = trained(tmp_path, steps=4), str(tmp_path / "run")
    (tmp_path / "cold").write_text("a file where the folder should be")
    text = run_text(capsys, "ckpt", "apply", run, "--keep", "last(1)", "--yes", code=1)
    assert text.count("not tried after") == 2
    assert text.endswith("0 of 3 moves are done.\n")
    assert all(os.path.exists(record.path) for record in room.inventory.records())
    stays = [
        c.get("stays")
        for c in run_json(capsys, "ckpt", "apply", run, "--keep", "last(1)", "--yes", code=1)["checkpoints"]
    ]
    assert [bool(each) for each in stays] == [True, True, True, False]
    (tmp_path / "cold").unlink()
    assert main(["ckpt", "apply", run, "--keep", "last(1)", "--yes"]) == 0
    assert [r.tier for r in room.inventory.records()] == ["cold"] * 3 + ["hot"]


def test_one_that_is_damaged_does_not_hinder_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sharded one with a shard on another node's disk stays and says so."""
    room, run = trained(tmp_path), str(tmp_path / "run")
    folder = tmp_path / "run" / "saves" / "sharded.ckpt"
    folder.mkdir()
    (folder / ".metadata").write_bytes(b"\x80\x04\x8c\x0c__1_0.distcp.")
    assert main(["ckpt", "adopt", run, str(folder), "--step", "9"]) == 0
    saved(room, 10, saved_ns=time.time_ns() + 10**9)
    data = run_json(capsys, "ckpt", "apply", run, "--keep", "last(1)", "--yes", code=1)
    assert [(c["step"], bool(c.get("stays"))) for c in data["checkpoints"]] == [
        (1, False), (2, False), (3, False), (9, True), (10, False)
    ]  # fmt: skip
    assert "__1_0.distcp" in data["checkpoints"][3]["stays"]


def test_another_process_that_moves_them_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training that is at it holds the lock."""
    room, run = trained(tmp_path), str(tmp_path / "run")
    files = HotFiles()
    handle = files.lock(os.path.join(room.inventory.folder, "lock"))
    assert handle is not None
    try:
        assert main(["ckpt", "apply", run, "--keep", "last(1)", "--yes"]) == 1
        assert "another process moves checkpoints" in capsys.readouterr().err
    finally:
        files.unlock(handle)
    assert [r.tier for r in room.inventory.records()] == ["hot"] * 3


def test_what_expires_is_deleted_everywhere_on_the_day_it_is_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cold copy is billed for 90 days, so that it stays until then and the day is told."""
    room, run = trained(tmp_path, steps=4), str(tmp_path / "run")
    first, second, *_ = room.inventory.records()
    for record in (first, second):
        demote(room, record.id)
    free = room.inventory.get(first.id)
    room.inventory.update(free, cold_since_ns=free.cold_since_ns - 91 * DAY_NS)
    options = ["--keep", "last(1)", "--expire-after", "30d"]
    data = run_json(capsys, "ckpt", "plan", run, *options)
    assert [(c["action"], c["rule"]) for c in data["checkpoints"]] == [
        ("expire", "expire_after"), ("demote", "deferred"), ("expire", "expire_after"), ("keep", "newest")
    ]  # fmt: skip
    assert data["checkpoints"][1]["free_at"][:2] == "20"
    assert main(["ckpt", "apply", run, *options, "--yes"]) == 0
    assert [r.step for r in room.inventory.records()] == [2, 4]
    assert not list((tmp_path / "cold").rglob("step=1.ckpt"))
    assert sorted(p.name for p in (tmp_path / "run" / "saves").iterdir()) == [
        "step=4.ckpt"
    ]  # its hot copy is not kept for that


def test_what_is_old_enough_is_stripped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the training's rules; where torch refuses one, that one moves whole, and no other is read for nothing."""
    room, run = trained(tmp_path, steps=0, storage_class=None), str(tmp_path / "run")
    for step, odd in ((1, None), (2, os.path.join), (3, None), (4, None)):
        file = io.BytesIO()
        torch.save({"state_dict": {}, "optimizer_states": [torch.ones(1000)], "hparams": odd}, file)
        saved(room, step, data=file.getvalue())
    remember_policy(room, Retention(keep=last(1), strip_after_ns=DAY_NS))
    data = run_json(capsys, "ckpt", "plan", run)
    assert actions(data) == ["strip", "strip", "strip", "keep"]
    assert (data["totals"]["strip"], data["totals"]["demote"]) == (3, 0)
    assert "--yes does it" in run_text(capsys, "ckpt", "apply", run)
    done = run_json(capsys, "ckpt", "apply", run, "--yes", code=1)
    stays = [c.get("stays") for c in done["checkpoints"]]
    assert [bool(why) for why in stays] == [False, True, True, False]
    assert "add_safe_globals" in stays[1]
    assert "not tried after" in stays[2]
    listed = run_json(capsys, "ckpt", "ls", run)["checkpoints"]
    assert [(c["stripped"], c["tier"]) for c in listed[:3]] == [(True, "cold"), (False, "cold"), (False, "hot")]
    assert ", stripped" in run_text(capsys, "ckpt", "ls", run).splitlines()[1]


def test_without_a_cold_store_nothing_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing goes that no rule of the user's expires."""
    run = str(tmp_path / "run")
    trained(tmp_path, url=None)
    data = run_json(capsys, "ckpt", "apply", run, "--keep", "last(1)", "--yes")
    assert (actions(data), data["cold"]) == (["keep"] * 3, None)
    assert data["checkpoints"][0]["reason"] == "nothing is demoted"


def test_a_plan_goes_on_when_the_rules_written_down_cannot_be_read_if_others_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them it is one sentence: half understood rules would delete what the other half keeps."""
    room, run = trained(tmp_path), str(tmp_path / "run")
    remember_policy(room, Retention(keep=last(2)))
    file = tmp_path / "run" / "costguard-checkpoints" / "room"
    file.write_text(file.read_text().replace('"keep_hot"', '"keep_for_luck"'))
    assert main(["ckpt", "plan", run]) == 1
    told = capsys.readouterr().err
    assert "of a newer costguard" in told
    assert len(told.splitlines()) == 1
    assert actions(run_json(capsys, "ckpt", "plan", run, "--keep", "last(1)")) == ["demote", "demote", "keep"]


@pytest.mark.parametrize("action", ["plan", "apply"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--keep", "lst(3)"], "did you mean 'last'"),
        (["--keep", "last"], "without parentheses"),
        (["--keep", ""], "cannot be read"),
        (["--expire-after", "banana"], "--expire-after banana: expected a number above 0 and a unit"),
        (["--expire-after", "30"], "--expire-after 30: expected a number above 0 and a unit"),
        (["--hot-class", "s3:NONE"], "not in the price table"),
        (["--storage-class", "GLACIER"], "not in the price table"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str, options: list[str], said: str
) -> None:
    """One sentence and the code for usage; nothing has moved or been noted."""
    trained(tmp_path)
    before = looks(tmp_path)
    yes = ["--yes"] if action == "apply" else []
    assert main(["ckpt", action, str(tmp_path / "run"), *options, *yes]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert (len(told.err.splitlines()), told.out) == (1, "")
    assert looks(tmp_path) == before
