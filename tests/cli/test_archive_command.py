"""`costguard archive` and `costguard scratch` as users type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costguard.cli.main import main
from costguard.units import parse_duration_ns


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of this user's own lie in the test's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of two files."""
    (tmp_path / "corpus" / "deep").mkdir(parents=True)
    (tmp_path / "corpus" / "a.txt").write_bytes(b"a" * 100)
    (tmp_path / "corpus" / "deep" / "b ü.bin").write_bytes(b"b" * 50)
    return tmp_path / "corpus"


def test_archive_only_says_so_until_yes(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files, bytes and money of what it would do; nothing is written, also not with `--delete`."""
    command = ["archive", str(corpus), str(tmp_path / "cold"), "--storage-class", "s3:GLACIER_IR", "--delete"]
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["files"], data["bytes"], data["done"], data["id"]) == (2, 150, False, None)
    assert data["usd_per_month"] == "0.0000000006"
    assert main(command) == 0
    assert "would copy 2 files, 150 B" in capsys.readouterr().out
    assert corpus.exists()
    assert not (tmp_path / "cold").exists()


def test_a_folder_goes_and_comes_back(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied, verified, deleted here; listed and restored also by a user who has only the store."""
    cold = str(tmp_path / "cold")
    assert main(["archive", str(corpus), cold, "--yes"]) == 0
    assert corpus.exists()
    assert main(["archive", str(corpus), cold, "--yes", "--delete"]) == 0
    assert not corpus.exists()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    capsys.readouterr()
    assert main(["archive", "ls", cold, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["archived"]
    assert (entry["path"], entry["bytes"]) == (str(corpus), 150)
    capsys.readouterr()
    assert main(["archive", "restore", cold, entry["id"], "--to", str(tmp_path / "back"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["id"], told["restored_to"]) == (entry["id"], str(tmp_path / "back"))
    assert (tmp_path / "back" / "a.txt").read_bytes() == b"a" * 100
    assert (tmp_path / "back" / "deep" / "b ü.bin").read_bytes() == b"b" * 50


def test_archive_on_s3(corpus: Path, tmp_path: Path, seaweed_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same with a bucket, reached by fsspec's configuration."""
    assert main(["archive", str(corpus), seaweed_url, "--yes", "--delete", "--json"]) == 0
    id = json.loads(capsys.readouterr().out)["id"]
    assert not corpus.exists()
    assert main(["archive", "restore", seaweed_url, id, "--to", str(corpus)]) == 0
    assert (corpus / "deep" / "b ü.bin").read_bytes() == b"b" * 50


@pytest.mark.parametrize(
    ("words", "code"),
    [(["ls"], 2), (["one"], 2), (["restore", "cold", "id"], 2), (["restore", "cold", "id", "--to", "x"], 5)],
)
def test_what_cannot_be_archived(
    words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and the code for usage or missing data."""
    monkeypatch.chdir(tmp_path)
    assert main(["archive", *words]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_scratch_is_registered_freed_and_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A place lives its time; what is verified goes at the next sweep, with `--yes` only."""
    for name in ("one", "two"):
        assert main(["scratch", "add", str(tmp_path / name), "--ttl", "7d", "--note", "tensors"]) == 0
        (tmp_path / name / "data").write_bytes(b"x" * 10)
    capsys.readouterr()
    assert main(["scratch", "ls", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["scratch"]
    assert [(e["place"], e["ttl_s"], e["verified"]) for e in entries] == [
        (str(tmp_path / name), 7 * 86_400, False) for name in ("one", "two")
    ]
    assert main(["scratch", "sweep", "--yes"]) == 0
    assert main(["scratch", "verified", str(tmp_path / "one")]) == 0
    assert main(["scratch", "sweep"]) == 0
    assert "would delete" in capsys.readouterr().out
    assert (tmp_path / "one" / "data").exists()
    assert main(["scratch", "sweep", "--yes"]) == 0
    assert not (tmp_path / "one").exists()
    assert (tmp_path / "two" / "data").exists()


def test_scratch_takes_only_what_is_its_own(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with something in it cannot be made scratch, and a mark that is gone keeps a place."""
    assert main(["scratch", "add", str(corpus), "--ttl", "1h"]) == 1
    place = corpus.parent / "mine"
    assert main(["scratch", "add", str(place), "--ttl", "1h"]) == 0
    (place / ".costguard-scratch").unlink()
    (place / "data").write_bytes(b"x")
    assert main(["scratch", "verified", str(place)]) == 0
    assert main(["scratch", "sweep", "--yes"]) == 1
    assert "no mark of ours" in capsys.readouterr().out
    assert (place / "data").exists()
    assert main(["scratch", "verified", str(corpus)]) == 1


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "0h", "7 days", "nan", "0.0000000001s"])
def test_a_duration_has_a_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A bare number could be anything."""
    with pytest.raises(ValueError, match="expected a number above 0 and a unit"):
        parse_duration_ns(text)
    assert main(["scratch", "add", str(tmp_path / "place"), f"--ttl={text}"]) == 2
    assert f"--ttl {text}: expected a number above 0 and a unit" in capsys.readouterr().err
    assert not (tmp_path / "place").exists()


def test_a_duration_is_exact_to_the_nanosecond() -> None:
    """A fraction of a unit is no binary fraction."""
    assert parse_duration_ns("0.1s") == 10**8
    assert parse_duration_ns(" 1.5w ") == 1.5 * 7 * 86_400 * 10**9
    assert [parse_duration_ns(f"2{unit}") // 10**9 for unit in "smhdw"] == [2, 120, 7200, 172_800, 1_209_600]
