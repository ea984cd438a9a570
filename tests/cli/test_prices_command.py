"""`costguard prices storage`: the table as a person and as a program reads it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from costguard.cli.main import main
from costguard.prices.storage import STORAGE_CLASSES


def test_the_table_names_every_class_and_what_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    """Prices, minimum, break-even against both hot classes, source and date; unknown is called unknown."""
    assert main(["prices", "storage"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if ":" in line.split(" ")[0]}
    assert set(rows) >= set(STORAGE_CLASSES)
    assert rows["s3:GLACIER_IR"] == "0.004 90 0.03 0.02 at once 15.7 4.5"
    assert rows["s3:DEEP_ARCHIVE"] == "0.00099 180 0.02 0.05 in 12 h 7.7 2.2"
    assert rows["az:Cool"] == "0.01 30 unknown unknown at once 13.0 3.8"
    assert rows["ebs:gp3"].endswith("- -")
    assert "as quoted by awsnegotiations.com/s3-storage and repost.aws (2026-09)" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_json_has_the_classes_that_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Prices are exact decimal strings, unknown ones null."""
    assert main(["prices", "storage", "s3:GLACIER_IR", "gs:COLDLINE", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema_version"], data["currency"], data["month_days"]) == (1, "USD", 30)
    glacier, coldline = data["classes"]
    assert (glacier["class"], glacier["name"], glacier["usd_per_gb_month"]) == ("s3:GLACIER_IR", "GLACIER_IR", "0.004")
    assert glacier["break_even_days"]["s3:STANDARD"] == pytest.approx(15.65, abs=0.01)
    assert glacier["break_even_days"]["ebs:gp3"] == pytest.approx(4.5)
    assert (coldline["put_usd_per_1000"], coldline["as_of"]) == (None, "2026-09")


def test_a_class_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the names that there are."""
    assert main(["prices", "storage", "s3:COLDEST"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "s3:COLDEST" in printed.err
    assert "s3:GLACIER_IR" in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_no_torch_is_loaded() -> None:
    """A table needs none."""
    code = (
        "import sys; from costguard.cli.main import main; main(['prices', 'storage']); "
        "sys.exit(bool({'torch', 'lightning'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
