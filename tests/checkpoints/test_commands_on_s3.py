"""`costguard ckpt` on buckets: a real S3 server from plan to restore, and archives on the server that has them."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from rooms import file_system, options

from costguard.checkpoints.cabinet import Cold, open_room
from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.room import Room
from costguard.cli.main import main

SIZE = 200_000
"""Above what is too small for colder classes."""


def on_s3(endpoint: str, folder: Path, storage_class: str) -> tuple[Room, list[str]]:
    """Three hot checkpoints and an empty prefix, with what the commands need to reach it."""
    cold = Cold(url=f"s3://tests/{uuid.uuid4().hex}", storage_options=options(endpoint), storage_class=storage_class)
    room = open_room(str(folder / "run"), cold)
    for step in (1, 2, 3):
        path = folder / "run" / f"step={step}.ckpt"
        path.write_bytes(os.urandom(SIZE))
        room.inventory.adopt(str(path), room.new_id(), step=step, saved_ns=room.now_ns())
    return room, [each for name, value in options(endpoint).items() for each in ("--storage-option", f"{name}={value}")]


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    found = main([*arguments, "--json"])
    output = capsys.readouterr()
    assert found == code, output.err
    data: dict[str, Any] = json.loads(output.out)
    return data


def test_from_plan_to_restore_on_a_real_server(
    weed_endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planned, moved, looked over, cleaned up, brought back: the bytes are those that were saved."""
    room, reach = on_s3(weed_endpoint, tmp_path, "s3:STANDARD")
    run = str(tmp_path / "run")
    saved = {r.step: Path(r.path).read_bytes() for r in room.inventory.records()}
    rules = ["--keep", "last(1)", "--hot-class", "ebs:gp3", *reach]
    assert told(capsys, "ckpt", "plan", run, *rules)["totals"]["demote"] == 2
    done = told(capsys, "ckpt", "apply", run, *rules, "--yes")
    assert [c.get("stays") for c in done["checkpoints"]] == [None] * 3
    listed = told(capsys, "ckpt", "ls", run, *reach)["checkpoints"]
    assert [(c["tier"], c["level"]) for c in listed] == [("cold", "etag"), ("cold", "etag"), ("hot", "none")]
    assert told(capsys, "ckpt", "cost", run, *reach)["totals"]["requests_usd"] == "0.00002"
    assert {f["probe"]: f["ok"] for f in told(capsys, "ckpt", "doctor", run, *reach)["findings"]}["exclusive"] is True
    url = f"{room.cold.url.removeprefix('s3://')}/{room.run}/gone/data/torn/part"
    file_system(weed_endpoint).call_s3("create_multipart_upload", Bucket="tests", Key=url.removeprefix("tests/"))
    assert told(capsys, "ckpt", "gc", run, *reach)["unfinished_uploads"] == 1
    assert told(capsys, "ckpt", "gc", run, *reach, "--yes")["done"] == [
        "0 objects and 1 unfinished uploads are deleted"
    ]
    assert told(capsys, "ckpt", "gc", run, *reach)["unfinished_uploads"] == 0
    assert all(each["ok"] for each in told(capsys, "ckpt", "verify", run, *reach)["checkpoints"])
    for step in (1, 2):
        path = told(capsys, "ckpt", "restore", run, "--step", str(step), *reach)["restored_to"]
        assert Path(path).read_bytes() == saved[step]
    assert main(["ckpt", "ls", run, *reach[:2], "--storage-option", "key=wrong"]) == 0  # a list needs no store


def test_an_archived_one_says_what_it_takes_and_is_asked_for(
    moto_endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours and dollars first; `--thaw` asks the store; the same command brings it back when the store is ready."""
    from moto.moto_api import state_manager

    room, reach = on_s3(moto_endpoint, tmp_path, "s3:DEEP_ARCHIVE")
    record, saved = room.inventory.records()[0], Path(room.inventory.records()[0].path).read_bytes()
    demote(room, record.id)
    release(room, record.id)
    command = ["ckpt", "restore", str(tmp_path / "run"), "--step", "1", *reach]
    assert main(command) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "about 12 h and $0.000004" in error
    data = told(capsys, *command, code=1)
    assert (data["archived"], data["restored"], data["objects_asked_for"]) == (True, False, 0)
    assert (data["restore_hours"], data["read_usd"]) == (12, "0.000004")
    plan = told(capsys, "ckpt", "plan", str(tmp_path / "run"), *reach)["checkpoints"][0]
    assert (plan["restore_hours"], plan["read_usd"]) == (12, "0.000004")
    state_manager.set_transition("s3::keyrestore", {"progression": "manual", "times": 2})
    try:
        asked = told(capsys, *command, "--thaw", code=1)
        assert (asked["objects_asked_for"], asked["restore_hours"]) == (1, 12)
        again = told(capsys, *command, "--thaw", "Bulk", code=1)
        assert (again["objects_asked_for"], again["restore_hours"], again["read_usd"]) == (0, None, None)
    finally:
        state_manager.unset_transition("s3::keyrestore")
    assert main(command) == 0
    assert Path(record.path).read_bytes() == saved


def test_a_thaw_in_words(moto_endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a person: that it is asked for, how long, how much, and what to do then; verify says it too."""
    room, reach = on_s3(moto_endpoint, tmp_path, "s3:GLACIER")
    record = room.inventory.records()[0]
    demote(room, record.id)
    release(room, record.id)
    run = str(tmp_path / "run")
    assert main(["ckpt", "verify", run, *reach]) == 1
    assert "is archived" in capsys.readouterr().out
    assert main(["ckpt", "restore", run, record.id, "--thaw", "Standard", *reach]) == 1
    text = capsys.readouterr().out
    assert "1 objects are asked for; it takes about 5 h and $0.000002" in text
    assert main(["ckpt", "restore", run, record.id, *reach]) == 0  # moto takes no hours
