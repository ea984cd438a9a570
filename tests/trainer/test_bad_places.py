"""Places where a journal cannot lie as it should: training goes on, and what is lost is said."""

from __future__ import annotations

import socket
import warnings
from pathlib import Path

import fsspec
import pytest

from builders import Journal
from costguard import CostguardWarning
from costguard.clock import boot_id, process_start_ns
from costguard.ledger import mirror as mirror_module
from costguard.ledger.files import LocalFiles
from costguard.lightning import membership as membership_module
from costguard.lightning import run as run_module
from costguard.testing import FullDisk
from helpers import Tiny, loader, monitor, quiet_trainer, receipt_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .* does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*no `val_dataloader`"),
]


def fit(folder: Path, *, closes: bool = True, **options: object) -> list[str]:
    """Train four batches and return what costguard warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cost = monitor(**options)
        trainer = quiet_trainer(folder, cost)
        trainer.fit(Tiny(), loader(4))
        if closes:
            cost._run.release(0)  # as the process's end does, so that its warnings are heard here
        assert trainer.global_step == 4
    return [str(w.message) for w in caught if issubclass(w.category, CostguardWarning)]


def test_an_unwritable_folder_costs_a_warning(tmp_path: Path) -> None:
    """Where no journal can be written, training goes on and the sentence says what is lost and what to do."""
    (tmp_path / "costguard").write_text("in the way")
    (warning,) = fit(tmp_path)
    assert "cannot write to" in warning
    assert str(tmp_path) in warning
    assert "give CostMonitor a dir that can be written to" in warning


def test_a_full_disk_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while lines are written costs one warning, and the page still has every step."""
    monkeypatch.setattr(run_module, "LocalFiles", lambda: FullDisk(room=900))
    warning, last = fit(tmp_path)
    assert "No space left on device" in warning
    assert "training goes on" in warning
    assert "lines of the journal" in last
    assert "are lost" in last
    assert receipt_of(tmp_path)["run"]["attempts"][0]["last_step"] == 4


def test_a_page_that_cannot_be_mapped_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the page the lines go on, and the warning says what a sudden death would lose."""

    class NoPages(LocalFiles):
        def map_page(self, path: str, size: int) -> memoryview:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_module, "LocalFiles", NoPages)
    (warning,) = fit(tmp_path)
    assert "30 s at most" in warning
    assert receipt_of(tmp_path)["run"]["attempts"][0]["last_step"] == 4


def test_two_writers_of_one_run_are_both_metered_and_warned_of(tmp_path: Path) -> None:
    """A run_id in use by a live process gets an attempt of its own and a warning; nothing of the other is touched."""
    init = {"host": socket.gethostname(), "boot": boot_id(), "pid": 1, "pid_start": process_start_ns(1)}
    other = Journal(LocalFiles(), root=str(tmp_path), run_id="one").attempt(**init)
    segment = tmp_path / "costguard" / "one" / "attempt-0001.rank-00000.jsonl"
    before = segment.read_bytes()
    (warning,) = fit(tmp_path, closes=False, run_id="one")
    assert "another live process is writing run one" in warning
    assert "run_id of its own" in warning
    assert segment.read_bytes() == before
    assert [a["ended"] for a in receipt_of(tmp_path)["run"]["attempts"]] == ["running", "running"]
    other.close()


@pytest.mark.parametrize("url", ["nosuch://bucket/runs", "s3://127.0.0.1:9/runs"])
def test_a_mirror_that_is_away_costs_a_warning(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror that cannot be reached is named; the local journal is complete."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(mirror_module, "PATIENCE_S", 2.0)
    monkeypatch.setattr(membership_module, "PATIENCE_S", 2.0)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    try:
        found = fit(tmp_path, run_id="r", dir=url)
    finally:
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    assert any("mirror" in text for text in found)
    assert receipt_of(tmp_path)["run"]["attempts"][0]["last_step"] == 4
