"""`costguard ckpt adopt`, `gc`, `doctor` and `cost`, and how far a transfer is."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from folders import SIZE, in_three_tiers, looks, run_json, run_text, saved, trained

from costguard.checkpoints.cabinet import Cold, open_room
from costguard.checkpoints.demotion import demote
from costguard.checkpoints.room import Room
from costguard.cli import progress as progress_module
from costguard.cli.main import main
from costguard.cli.progress import _Lines
from costguard.prices.storage import DAY_NS, GB
from costguard.units import parse_money


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """Step 1 is cold, step 2 in both tiers, step 3 hot."""
    return in_three_tiers(tmp_path)


# -- adopt -----------------------------------------------------------------------------------------------------------


def test_what_lies_there_is_taken_up(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each path is told of; one that is refused hinders no other and is exit code 1."""
    run, saves = str(tmp_path / "run"), tmp_path / "run" / "saves"
    for name in ("epoch=1-step=7.ckpt", "weights.ckpt", "mine.ckpt"):
        (saves / name).write_bytes(b"x" * 10)
    paths = [str(saves / name) for name in ("epoch=1-step=7.ckpt", "weights.ckpt", "step=3.ckpt", "nothing.ckpt")]
    told = run_json(capsys, "ckpt", "adopt", run, *paths, code=1)["checkpoints"]
    assert [(c["step"], c["taken_up"], bool(c["id"])) for c in told] == [
        (7, True, True), (0, True, True), (3, False, True), (None, False, False)
    ]  # fmt: skip
    assert "--step N says it" in told[1]["said"]
    assert "there is no such checkpoint" in told[3]["said"]
    text = run_text(capsys, "ckpt", "adopt", run, str(saves / "mine.ckpt"), "--step", "12")
    assert "step 12" in text
    assert text.endswith("1 checkpoints are taken up.\n")
    assert sorted(r.step for r in room.inventory.records()) == [0, 1, 2, 3, 7, 12]


def test_a_path_elsewhere_is_found_by_the_word_that_is_left_there(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command may be given the folder that it lies in."""
    path = tmp_path / "elsewhere" / "step=8.ckpt"
    path.parent.mkdir()
    path.write_bytes(b"x" * 10)
    assert main(["ckpt", "adopt", str(tmp_path / "run"), str(path)]) == 0
    listed = run_json(capsys, "ckpt", "ls", str(path.parent))["checkpoints"]
    assert str(path) in [c["path"] for c in listed]


def test_cold_copies_that_no_list_knows_are_taken_up(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that was lost is made again from its manifest."""
    run, first = str(tmp_path / "run"), room.inventory.records()[0]
    os.remove(Path(room.inventory.folder) / f"{first.id}.json")
    assert run_json(capsys, "ckpt", "gc", run)["unlisted_copies"] == [first.id]
    (taken,) = run_json(capsys, "ckpt", "adopt", run)["checkpoints"]
    assert (taken["id"], taken["step"], taken["tier"], taken["taken_up"]) == (first.id, 1, "cold", True)
    assert run_json(capsys, "ckpt", "adopt", run)["checkpoints"] == []
    assert main(["ckpt", "restore", run, "--step", "1"]) == 0
    assert Path(first.path).read_bytes() == b"\1" * SIZE


def test_after_the_loss_of_the_hot_disk_the_store_is_enough(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new folder, the URL, and all that was cold is there again; of several runs one is to be named."""
    shutil.rmtree(tmp_path / "run")
    new, cold = tmp_path / "new", str(tmp_path / "cold")
    assert main(["ckpt", "adopt", str(new), "--cold", cold]) == 2
    assert "no such folder" in capsys.readouterr().err
    new.mkdir()
    assert main(["ckpt", "adopt", str(new), "--cold", str(tmp_path / "wrong")]) == 5
    other = trained(tmp_path / "other", url=cold)
    demote(other, other.inventory.records()[0].id)
    assert main(["ckpt", "adopt", str(new), "--cold", cold]) == 5
    told = capsys.readouterr().err
    assert room.run in told
    assert other.run in told
    assert list(new.iterdir()) == []
    assert main(["ckpt", "adopt", str(new), "--cold", cold, "--run", room.run]) == 0
    for step in ("1", "2"):
        done = run_json(capsys, "ckpt", "restore", str(new), "--step", step)
        assert Path(done["restored_to"]).parent == new
        assert Path(done["restored_to"]).read_bytes() == bytes([int(step)]) * SIZE


def test_a_folder_without_a_list_gets_one_with_its_cold_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was trained without CheckpointTiering can be looked after too."""
    path = tmp_path / "plain" / "step=4.ckpt"
    path.parent.mkdir()
    path.write_bytes(b"x" * 10)
    assert main(["ckpt", "adopt", str(path.parent), str(path), "--cold", str(tmp_path / "cold")]) == 0
    assert [c["step"] for c in run_json(capsys, "ckpt", "ls", str(path.parent))["checkpoints"]] == [4]


# -- gc --------------------------------------------------------------------------------------------------------------


def left_behind(room: Room, tmp_path: Path) -> None:
    """Parts of an upload that nobody goes on with, a file that is not ours, and a move that was interrupted."""
    own = tmp_path / "cold" / room.run
    second = room.inventory.records()[1]
    for name in (f"{second.id}/data/torn/part", f"{second.id}/data/torn/p.upload-0123456789abcdef", "note/readme"):
        path = own / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    room.inventory.update(room.inventory.records()[2], state="demoting", attempt="died")


def test_gc_says_what_is_left_over_and_what_it_costs(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--yes` nothing is touched; with it what is ours goes and what is not stays, and copies are whole."""
    run = str(tmp_path / "run")
    left_behind(room, tmp_path)
    before = looks(tmp_path)
    data = run_json(capsys, "ckpt", "gc", run)
    assert (data["objects"], data["bytes"], data["unfinished_uploads"], len(data["under_way"])) == (1, 1000, 1, 1)
    assert (data["not_ours"], data["usd_per_month"]) == ([f"{room.run}/note/readme"], "0.000000004")
    text = run_text(capsys, "ckpt", "gc", run)
    assert "1 objects that belong to no copy (1.0 kB, $0.000000004000 a month)" in text
    assert "1 objects are not of our making" in text
    assert "--yes" in text
    assert looks(tmp_path) == before
    done = run_json(capsys, "ckpt", "gc", run, "--yes", code=1)
    assert "1 objects and 1 unfinished uploads are deleted" in done["done"]
    assert len(done["problems"]) == 1
    assert f"1 objects are not of our making, such as {room.run}/note/readme" in done["problems"][0]
    assert not list((tmp_path / "cold").rglob("torn"))
    assert (tmp_path / "cold" / room.run / "note" / "readme").exists()
    assert room.inventory.records()[2].state == "hot"
    assert main(["ckpt", "verify", run]) == 0
    again = run_json(capsys, "ckpt", "gc", run)
    assert (again["objects"], again["unfinished_uploads"], again["under_way"]) == (0, 0, [])


def test_gc_without_a_store_clears_the_hot_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an interrupted write of the list has left."""
    room = trained(tmp_path, url=None, storage_class=None)
    draft = Path(room.inventory.folder) / "x.json.tmp"
    draft.write_bytes(b"half")
    assert run_json(capsys, "ckpt", "gc", str(tmp_path / "run"))["usd_per_month"] is None
    assert draft.exists()
    assert main(["ckpt", "gc", str(tmp_path / "run"), "--yes"]) == 0
    assert not draft.exists()


# -- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_finds_what_is_wrong(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 with a sentence, and nothing of the probing is left."""
    run = str(tmp_path / "run")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(looks(tmp_path))
    found = {f["probe"]: f["ok"] for f in run_json(capsys, "ckpt", "doctor", run)["findings"]}
    assert set(found) == {"write", "exclusive", "read", "list", "uploads", "delete", "disk", "temp"}
    assert all(found.values())
    assert set(looks(tmp_path)) == before
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    left_behind(room, tmp_path)
    data = run_json(capsys, "ckpt", "doctor", run, code=1)
    assert [f["probe"] for f in data["findings"] if f["ok"] is False] == ["uploads", "temp"]
    text = run_text(capsys, "ckpt", "doctor", run, code=1)
    assert "set TMPDIR" in text
    assert text.count("NOT OK") == 2


def test_doctor_of_a_folder_without_a_cold_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the disks and says that there is none."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trained(tmp_path, url=None)
    findings = run_json(capsys, "ckpt", "doctor", str(tmp_path / "run"))["findings"]
    assert [(f["probe"], f["ok"]) for f in findings] == [("disk", True), ("temp", True), ("cold", None)]


# -- cost ------------------------------------------------------------------------------------------------------------


def amount(text: str | None) -> Fraction:
    assert text is not None
    return Fraction(parse_money(text))


def test_cost_adds_up_in_both_tiers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hot one since its save, a copy in Glacier IR for 45 of its 90 days, a save of 36 s at 20 dollars an hour."""
    room = open_room(str(tmp_path / "run"), Cold(url=str(tmp_path / "cold"), storage_class="s3:GLACIER_IR"))
    now_ns = room.now_ns()
    hot = saved(room, 1, saved_ns=now_ns - 60 * DAY_NS, blocked_ns=36 * 10**9, data=bytes(10**6))
    saved(room, 2, saved_ns=now_ns, blocked_ns=0, data=b"x")
    demote(room, hot.id)
    room.inventory.update(hot, cold_since_ns=now_ns - 45 * DAY_NS)
    options = ["--usd-per-hour", "20", "--hot-class", "s3:STANDARD"]
    data = run_json(capsys, "ckpt", "cost", str(tmp_path / "run"), *options)
    both = data["checkpoints"][0]
    megabyte = Fraction(10**6, GB)
    assert (both["blocked_s"], both["blocked_usd"], both["read_usd"]) == (36, "0.2", "0.00003")
    near = pytest.approx
    assert float(amount(both["stored_hot_usd"])) == near(float(2 * Fraction("0.023") * megabyte), rel=1e-4)
    assert float(amount(both["stored_cold_usd"])) == near(
        float(Fraction("1.5") * Fraction("0.004") * megabyte), rel=1e-4
    )
    assert float(amount(both["early_usd"])) == near(float(Fraction("1.5") * Fraction("0.004") * megabyte), rel=1e-4)
    assert both["per_month_usd"] == "0.000027"
    sums = data["totals"]
    assert sums["blocked_usd"] == "0.2"
    assert amount(sums["per_month_usd"]) == sum(amount(c["per_month_usd"]) for c in data["checkpoints"])
    text = run_text(capsys, "ckpt", "cost", str(tmp_path / "run"), *options)
    assert "in all" in text
    assert "$0.20" in text


def test_what_no_price_is_known_for_stays_unknown(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with it every sum that it is part of; the text says what to give."""
    data = run_json(capsys, "ckpt", "cost", str(tmp_path / "run"))
    cold, both, hot = data["checkpoints"]
    assert [c["stored_hot_usd"] for c in (cold, both, hot)] == [None, None, None]
    assert (cold["per_month_usd"], both["per_month_usd"], hot["stored_cold_usd"]) == ("0.000000012", None, "0")
    sums = data["totals"]
    assert [sums[f"{name}_usd"] for name in ("blocked", "stored_hot", "per_month")] == [None, None, None]
    assert (sums["blocked_s"], sums["requests_usd"] is None) == (None, False)
    assert "--hot-class" in run_text(capsys, "ckpt", "cost", str(tmp_path / "run"))
    for wrong in (["--usd-per-hour", "much"], ["--usd-per-hour=-1"], ["--hot-class", "s3:NONE"]):
        assert main(["ckpt", "cost", str(tmp_path / "run"), *wrong]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


# -- how far it is ---------------------------------------------------------------------------------------------------


def test_where_no_terminal_is_a_transfer_is_told_of_in_lines(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One at its start, one at its end, on stderr; nothing where nothing is moved."""
    run = str(tmp_path / "run")
    assert main(["ckpt", "restore", run, "--step", "1"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in told] == ["restore step 1: 3.0 kB", "restore step 1: done, 3.0 kB"]
    assert main(["ckpt", "restore", run, "--step", "1"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["ckpt", "verify", run]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 4
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(b"x" * 5000)
    assert main(["archive", str(tmp_path / "data"), str(tmp_path / "archive"), "--yes", "--json"]) == 0
    assert "5.0 kB" in capsys.readouterr().err


def test_between_start_and_end_there_is_a_line_in_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parts there are."""
    out, clock = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", out)
    lines = _Lines("restore step 1", 1000, lambda: clock[0])
    for _ in range(100):
        clock[0] += 0.5
        lines.moved(10)
    lines.done()
    assert out.getvalue().splitlines() == [
        "restore step 1: 1.0 kB",
        *(f"restore step 1: {n} B of 1.0 kB ({n // 10}%)" for n in (200, 400, 600, 800)),
        "restore step 1: 1.0 kB of 1.0 kB (100%)",
        "restore step 1: done, 1.0 kB in 50 s",
    ]


def test_a_transfer_that_fails_does_not_say_that_it_is_done(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The start, then the error; and nobody is told of parts any more."""
    (copy,) = (tmp_path / "cold").rglob("step=1.ckpt")
    copy.write_bytes(b"\1" * (SIZE - 1) + b"x")
    assert main(["ckpt", "restore", str(tmp_path / "run"), "--step", "1"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "restore step 1: 3.0 kB"
    assert "came damaged" in second
    with pytest.raises(ZeroDivisionError), progress_module.progress(room, "x", 10):
        raise ZeroDivisionError
    assert room.pace.observer is None


def test_at_a_terminal_there_is_a_bar(room: Room, tmp_path: Path) -> None:
    """A real one: stderr of a process of its own."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "costguard.cli.main", "ckpt", "restore", str(tmp_path / "run"), "--step", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that nobody writes any more
            while part := os.read(master, 4096):
                shown += part
        told, _ = process.communicate()
    os.close(master)
    assert process.returncode == 0, shown
    assert b"verified" in told
    assert b"restore step 1: 100%" in shown
    assert b"3.00k/3.00k" in shown
    assert b"done" not in shown
