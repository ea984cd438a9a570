"""`costguard report` on journals written by the real writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from builders import Journal
from costguard.cli.main import main
from costguard.ledger.files import LocalFiles
from costguard.prices import Price, PriceBook


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A folder above a run of two attempts, the first of which died after a save."""
    journal = Journal(LocalFiles(), root=str(tmp_path / "out"))
    first = journal.attempt(tags={"project": "p"})
    first.train(10, tokens=100).save()
    first.train(5, tokens=100).die()
    journal.wait(60)
    second = journal.attempt(tags={"project": "p"}, paid_devices=1)
    second.writer.resumed(1, 1)
    second.train(5, tokens=100).close(exit_s=1)
    return tmp_path / "out"


def test_text_names_cost_waste_gap_and_provenance(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page for a terminal says what it cost, what was done twice, the gap, and how figures came about."""
    assert main(["report", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert "This run cost $0.04500" in text
    assert "of it rework" in text
    assert "then a gap of 1 min 0 s, billed: same host and boot" in text
    assert "estimated  interpreter exit: 1 s" in text
    assert "unknown" in text
    assert max(len(line) for line in text.splitlines()) <= 160


def test_json_has_the_promised_keys_and_adds_up(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints JSON alone, with every key of the promise, and its breakdowns add up."""
    assert main(["report", str(run_dir), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 1
    assert set(data) >= {"run", "time", "tokens", "flops", "mfu", "spend", "checkpoints", "verdicts"}
    assert set(data["run"]) >= {"id", "tags", "attempts"}
    assert set(data["time"]) >= {"elapsed_device_ns", "released_s", "activities_ns", "outcomes_ns"}
    assert set(data["mfu"]) >= {"step", "billed", "peak_flops_per_s", "peak_source"}
    time, spend = data["time"], data["spend"]
    assert time["elapsed_device_ns"] == (15 + 60 + 6) * 10**9 == sum(time["activities_ns"].values())
    assert time["outcomes_ns"] == {"kept": 15 * 10**9, "rework": 5 * 10**9}
    assert Decimal(spend["total"]) == Decimal(2 * 81) / 3600
    assert sum(map(Decimal, spend["by_activity"].values())) == Decimal(spend["device_total"])
    assert spend["by_tag"] == {"project": {"p": spend["total"]}}
    assert data["tokens"] == {"trained": 200, "padding": None, "rework": 100, "samples": 2}


def test_html_is_written_beside_a_quiet_stdout(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--html` writes one page and prints where on stderr, so that `--json` stays JSON alone."""
    page = tmp_path / "new" / "report.html"
    assert main(["report", str(run_dir), "--html", str(page), "--json"]) == 0
    printed = capsys.readouterr()
    json.loads(printed.out)
    assert str(page) in printed.err
    assert "<svg" in page.read_text(encoding="utf-8")
    assert page.stat().st_size < 300_000


@pytest.mark.parametrize("where", ["missing", "empty", "file", "foreign", "several"])
def test_a_place_without_one_run_is_one_sentence_and_exit_5(
    where: str, tmp_path: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not exactly one run is named in one sentence with the remedy, and the exit code is 5."""
    place = tmp_path / where
    if where == "file":
        place.write_text("x")
    elif where == "several":
        place = tmp_path
        Journal(LocalFiles(), root=str(tmp_path / "b"), run_id="other").attempt().close()
    elif where != "missing":
        place.mkdir()
        if where == "foreign":
            (place / "attempt-0001.rank-00000.jsonl").write_bytes(b"not ours\n")
    assert main(["report", str(place)]) == 5
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("costguard: ")
    assert str(place) in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_an_unpriced_run_shows_the_line_to_add(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a price everything is metered, money is unpriced, and the line to add is shown."""
    Journal(LocalFiles(), root=str(tmp_path)).attempt(book=PriceBook()).train(3600).close()
    assert main(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "unpriced" in text
    assert 'CostMonitor(usd_per_gpu_hour="2.49")' in text
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spend"]["total"] is None


def test_reading_imports_neither_torch_nor_lightning(run_dir: Path) -> None:
    """A laptop reads reports without torch and lightning."""
    code = (
        "import sys; from costguard.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'lightning', 'pytorch_lightning', 'wandb', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    page = str(run_dir / "page.html")
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(run_dir), "--json", "--html", page], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_error(run_dir: Path) -> None:
    """`costguard report | head -1` ends quietly."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "costguard", "report", str(run_dir)], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    os.close(reader)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == b""


def test_usage_errors_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that cannot be understood exits 2."""
    with pytest.raises(SystemExit) as end:
        main(["report"])
    assert end.value.code == 2
    assert "RUN_DIR" in capsys.readouterr().err


def test_a_price_that_is_not_yet_in_force_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A book whose price begins later is not "no price": the remedy fits."""
    book = PriceBook(prices=(Price(amount=2, valid_from="2199-01-01T00:00:00Z"),))
    Journal(LocalFiles(), root=str(tmp_path)).attempt(book=book).train(10).close()
    assert main(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "no price was in force" in text
    assert "no price given" not in text


def test_a_page_that_cannot_be_written_is_one_sentence(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--html` of a folder is a usage error that names the option."""
    assert main(["report", str(run_dir), "--html", str(run_dir)]) == 2
    assert f"--html {run_dir}" in capsys.readouterr().err
