"""`costguard ckpt` on a folder as a training leaves it: files, a list, a cold folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from folders import SIZE, in_three_tiers, run_json, run_text, saved

from costguard.checkpoints.cabinet import Cold, open_room, remember_policy
from costguard.checkpoints.room import Room
from costguard.cli.main import main
from costguard.keep import last
from costguard.policies.retention import Retention


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """Three checkpoints, of which step 1 is cold and step 2 is in both tiers."""
    return in_three_tiers(tmp_path)


def test_ls_says_where_each_is(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Id, step, path, tier, size, level; the price where the classes are known, and unknown is null."""
    data = run_json(capsys, "ckpt", "ls", str(tmp_path / "run"))
    listed = data["checkpoints"]
    assert [(c["step"], c["tier"], c["bytes"], c["pinned"]) for c in listed] == [
        (1, "cold", SIZE, False),
        (2, "both", SIZE, False),
        (3, "hot", SIZE, False),
    ]
    assert [c["level"] for c in listed] == ["content", "content", "none"]
    assert [c["usd_per_month"] for c in listed] == ["0.000000012", None, None]
    priced = run_json(capsys, "ckpt", "ls", str(tmp_path / "run" / "saves"), "--hot-class", "s3:STANDARD")
    assert [c["usd_per_month"] for c in priced["checkpoints"]] == ["0.000000012", "0.000000081", "0.000000069"]
    assert main(["ckpt", "ls", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert all(c["id"] in text and c["path"] in text for c in listed)


def test_ls_names_the_rule_that_holds(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the rules that the training wrote down; what no rule is needed for says its guard; text says it too."""
    run = str(tmp_path / "run")
    assert [c["rule"] for c in run_json(capsys, "ckpt", "ls", run)["checkpoints"]] == ["no_rule", "no_rule", "newest"]
    saved(room, 4)
    remember_policy(room, Retention(keep=last(2)), "s3:STANDARD")
    room.inventory.pin(room.inventory.records()[0].id)
    listed = run_json(capsys, "ckpt", "ls", run)["checkpoints"]
    assert [c["rule"] for c in listed] == ["pinned", "rest", "last(2)", "newest"]
    assert listed[2]["usd_per_month"] == "0.000000069"
    assert "last(2)" in run_text(capsys, "ckpt", "ls", run)


def test_ls_goes_on_where_rules_or_files_are_not_right(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is deleted by hand is said and not noted; rules of a newer version are no rules, and a sentence says so."""
    remember_policy(room, Retention(keep=last(2)))
    file = tmp_path / "run" / "costguard-checkpoints" / "room"
    file.write_text(file.read_text().replace('"keep_hot"', '"keep_for_luck"'))
    (tmp_path / "run" / "saves" / "step=3.ckpt").write_bytes(b"other")
    data = run_json(capsys, "ckpt", "ls", str(tmp_path / "run"))
    assert [c["rule"] for c in data["checkpoints"]] == [None, None, None]
    assert data["checkpoints"][2]["problem"] == "its hot files are not those that were taken up"
    assert len(data["problems"]) == 1
    assert "of a newer costguard" in data["problems"][0]
    assert len(room.inventory.records()) == 3


def test_restore_by_step_or_id(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps repeat where a run was trained again: then the ids are named; one, and only one, is to be named."""
    run, first = str(tmp_path / "run"), room.inventory.records()[0]
    done = run_json(capsys, "ckpt", "restore", run, "--step", "1", "--to", str(tmp_path / "copy"))
    assert (done["restored_to"], done["restored"], done["tier"]) == (str(tmp_path / "copy"), True, "cold")
    assert run_json(capsys, "ckpt", "restore", run, "--id", first.id)["tier"] == "both"
    assert Path(first.path).read_bytes() == b"\1" * SIZE
    again = saved(room, 1, "again.ckpt", b"another one")
    assert main(["ckpt", "restore", run, "--step", "1"]) == 5
    told = capsys.readouterr().err
    assert first.id in told
    assert again.id in told
    for named in ([], [first.id, "--step", "1"], ["--step", "1", "--id", first.id]):
        assert main(["ckpt", "restore", run, *named]) == 2
        assert "expected one of ID_OR_PATH, --step N, --id ID" in capsys.readouterr().err


def test_the_begin_of_two_ids_names_none(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are told."""
    for name in ("abcd1", "abcd2"):
        path = tmp_path / "run" / name
        path.write_bytes(b"x")
        room.inventory.adopt(str(path), name)
    assert main(["ckpt", "pin", str(tmp_path / "run"), "abcd"]) == 5
    assert "abcd1, abcd2" in capsys.readouterr().err
    assert run_json(capsys, "ckpt", "pin", str(tmp_path / "run"), "abcd1")["pinned"] is True


def test_restore_pin_and_unpin(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By id, the begin of one, or the old path; also to another place, and pins hold on a cold one."""
    run, first = str(tmp_path / "run"), room.inventory.records()[0]
    assert main(["ckpt", "pin", run, first.path]) == 0
    assert room.inventory.get(first.id).pinned
    assert main(["ckpt", "unpin", run, first.id[:6]]) == 0
    assert not room.inventory.get(first.id).pinned
    assert main(["ckpt", "restore", run, first.id, "--to", str(tmp_path / "copy.ckpt")]) == 0
    assert (tmp_path / "copy.ckpt").read_bytes() == b"\1" * SIZE
    assert not os.path.exists(first.path)
    assert main(["ckpt", "restore", run, "saves/step=1.ckpt"]) == 0
    assert Path(first.path).read_bytes() == b"\1" * SIZE
    assert first.path in capsys.readouterr().out


def test_verify_finds_the_damaged_one(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every cold copy is read and hashed; one flipped byte is exit code 1 and names it."""
    run = str(tmp_path / "run")
    assert main(["ckpt", "verify", run]) == 0
    (copy,) = (tmp_path / "cold").rglob("step=2.ckpt")
    copy.chmod(0o644)
    copy.write_bytes(b"\2" * (SIZE - 1) + b"x")
    assert main(["ckpt", "verify", run]) == 1
    told = run_json(capsys, "ckpt", "verify", run, code=1)["checkpoints"]
    assert [(t["step"], t["ok"]) for t in told] == [(1, True), (2, False)]
    assert "does not hold the bytes" in told[1]["problem"]
    assert main(["ckpt", "verify", run, told[0]["id"]]) == 0
    assert main(["ckpt", "verify", run, "saves/step=3.ckpt"]) == 1


def test_rm_only_says_so_until_yes(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--yes` nothing changes; with it the checkpoint is gone in both tiers; the newest never goes."""
    run, (first, second, third) = str(tmp_path / "run"), room.inventory.records()
    assert main(["ckpt", "rm", run, second.id]) == 0
    assert "would delete" in capsys.readouterr().out
    assert len(room.inventory.records()) == 3
    assert main(["ckpt", "rm", run, second.id, "--yes"]) == 0
    assert [r.id for r in room.inventory.records()] == [first.id, third.id]
    assert not list((tmp_path / "cold").rglob("step=2.ckpt"))
    for yes in ([], ["--yes"]):
        assert main(["ckpt", "rm", run, third.id, *yes]) == 1
        assert "newest complete" in capsys.readouterr().err
    assert os.path.exists(third.path)


def test_recover_goes_on(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was interrupted is brought to an end, and a store that is away is exit code 1."""
    run, (_, second, third) = str(tmp_path / "run"), room.inventory.records()
    room.inventory.update(third, state="demoting", attempt="torn")
    assert run_json(capsys, "ckpt", "recover", run)["done"] == [f"{third.id}: its upload was thrown away"]
    assert room.inventory.get(third.id).state == "hot"
    room.inventory.update(second, state="releasing")
    (tmp_path / "cold").rename(tmp_path / "away")
    assert main(["ckpt", "recover", run]) == 1
    assert os.path.exists(second.path)


def test_what_is_not_there_is_exit_5(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No list, or no such checkpoint: one sentence and the code for missing data; bad options are 2."""
    (tmp_path / "empty").mkdir()
    assert main(["ckpt", "restore", str(tmp_path / "run"), "--step", "99"]) == 5
    assert len(capsys.readouterr().err.splitlines()) == 1
    for arguments in (["ls", str(tmp_path / "empty")], ["pin", str(tmp_path / "run"), "step=99.ckpt"]):
        assert main(["ckpt", *arguments]) == 5
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["ckpt", "ls", str(tmp_path / "run"), "--storage-option", "nonsense"]) == 2
    assert main(["ckpt", "ls", str(tmp_path / "run"), "--hot-class", "s3:NONE"]) == 2


def test_plain_http_is_refused_unless_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that is not this machine is spoken to by TLS only."""
    open_room(str(tmp_path), Cold(url=str(tmp_path / "cold")))
    (tmp_path / "costguard-checkpoints" / "room").write_text(
        json.dumps({"v": 1, "run": "r", "cold": "s3://bucket/run", "storage_class": None})
    )
    command = ["ckpt", "ls", str(tmp_path), "--storage-option", "endpoint_url=http://10.0.0.1"]
    assert main(command) == 2
    assert "without TLS" in capsys.readouterr().err
    assert main([*command, "--allow-plain-http"]) == 0


def test_every_action_speaks_json(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read all of them; nothing but the JSON is on stdout."""
    run, first = str(tmp_path / "run"), room.inventory.records()[0]
    for action in ("ls", "plan", "apply", "verify", "gc", "cost", "adopt", "doctor", "recover"):
        assert run_json(capsys, "ckpt", action, run)
    for action, says in (("pin", "pinned"), ("unpin", "pinned"), ("restore", "restored"), ("rm", "done")):
        data = run_json(capsys, "ckpt", action, run, first.id)
        assert (data["id"], data["step"], data["bytes"]) == (first.id, 1, SIZE)
        assert says in data


def test_no_torch_is_loaded(room: Room, tmp_path: Path) -> None:
    """A machine that only looks after checkpoints needs neither torch nor lightning."""
    code = (
        "import sys; from costguard.cli.main import main\n"
        "run = sys.argv[1]\n"
        "for action in 'ls plan cost verify gc doctor adopt apply'.split(): assert main(['ckpt', action, run]) == 0\n"
        "assert main(['ckpt', 'apply', run, '--keep', 'last(1)', '--yes']) == 0\n"
        "assert main(['ckpt', 'restore', run, '--step', '2']) == 0\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'lightning', 'pytorch_lightning')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
