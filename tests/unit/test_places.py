"""The one run that a user points at, and what is said of a place that is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import NS, Journal
from costguard.errors import RunNotFoundError
from costguard.ledger.files import LocalFiles
from costguard.ledger.layout import Seat, seats_in
from costguard.ledger.load import load_run
from costguard.ledger.places import find_runs, read_folder


def run_in(root: Path, run_id: str = "r") -> str:
    journal = Journal(LocalFiles(), str(root), run_id)
    attempt = journal.attempt()
    attempt.train(5)
    attempt.close()
    return journal.folder


def refusal(path: Path | str) -> str:
    with pytest.raises(RunNotFoundError) as error:
        load_run(str(path))
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.mark.parametrize("up", range(4))
def test_the_runs_folder_or_any_above_it(tmp_path: Path, up: int) -> None:
    """The run's own folder and each folder above it that holds exactly one run lead to the same account."""
    root = tmp_path / "a" / "b"
    root.mkdir(parents=True)
    folder = run_in(root)
    place = Path(folder)
    for _ in range(up):
        place = place.parent
    found, account = load_run(str(place))
    assert os.path.samefile(found, folder)
    assert (account.run_id, account.elapsed_device_ns) == ("r", 5 * NS)


def test_a_trailing_slash_and_dots_do_not_matter(tmp_path: Path) -> None:
    """A path may be written in any way that names the folder."""
    folder = run_in(tmp_path)
    for path in (folder + "/", folder + "/.", folder + "/../r"):
        assert load_run(path)[1].run_id == "r"


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    """A missing folder is one sentence that names it and the remedy."""
    text = refusal(tmp_path / "nowhere")
    assert "nowhere" in text
    assert "does not exist; give the folder that you trained in" in text


def test_an_empty_folder(tmp_path: Path) -> None:
    """A folder without a run is one sentence that names it and the remedy."""
    text = refusal(tmp_path)
    assert str(tmp_path) in text
    assert "holds no costguard run" in text
    assert "give the folder that a Trainer with CostMonitor wrote to" in text


def test_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    """Other people's files are no run, however alike they look."""
    (tmp_path / "attempt-1.rank-0.jsonl").write_text("{}")
    (tmp_path / "metrics.csv").write_text("step\n1\n")
    assert "holds no costguard run" in refusal(tmp_path)


def test_a_file(tmp_path: Path) -> None:
    """A file in place of a folder is one sentence that says so."""
    path = tmp_path / "x.jsonl"
    path.write_text("{}")
    assert "is a file, not a folder; give the folder" in refusal(path)


@pytest.mark.parametrize("number", [2, 7])
def test_several_runs(tmp_path: Path, number: int) -> None:
    """More than one run is one sentence that counts them and names some."""
    folders = [run_in(tmp_path, f"run-{n}") for n in range(number)]
    text = refusal(tmp_path)
    assert f"holds {number} runs; name one of them" in text
    assert folders[0] in text
    assert ("more" in text) is (number > 5)


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"not a line\n", b'{"v":1,"n":0}\n'])
def test_a_run_of_which_nothing_can_be_read(tmp_path: Path, data: bytes) -> None:
    """An empty or ruined segment, alone, is one sentence that names the place and says what is wrong."""
    folder = tmp_path / "costguard" / "r"
    folder.mkdir(parents=True)
    (folder / Seat(1, 0).segment).write_bytes(data)
    text = refusal(tmp_path)
    assert str(folder) in text
    assert "attempt-0001.rank-00000.jsonl" in text


def test_other_files_beside_a_run_do_not_matter(tmp_path: Path) -> None:
    """Checkpoints, reports and hidden files in the run's folder change nothing."""
    folder = Path(run_in(tmp_path))
    (folder / "report.html").write_text("<html>")
    (folder / "attempt-0001.rank-00000.jsonl.bak").write_text("{}")
    (folder / "sub").mkdir()
    assert load_run(str(tmp_path))[1].elapsed_device_ns == 5 * NS


class Unreadable(LocalFiles):
    """A segment that may not be read, as another user's may be."""

    def read(self, path: str) -> bytes:
        if path.endswith(Seat(1, 0).segment):
            raise PermissionError(13, "Permission denied", path)
        return super().read(path)


def test_a_segment_that_may_not_be_read_is_a_problem(tmp_path: Path) -> None:
    """What cannot be opened is named like any other damage; the attempts that can be read count."""
    journal = Journal(LocalFiles(), str(tmp_path))
    for _ in range(2):
        attempt = journal.attempt()
        attempt.train(5)
        attempt.close()
    account = read_folder(journal.folder, Unreadable())
    assert account.attempts[-1] == 2
    assert Seat(1, 0).segment in " ".join(account.problems)


def test_a_folder_named_like_a_segment_is_no_exception(tmp_path: Path) -> None:
    """Whatever lies in the folder, the user gets the receipt or one sentence."""
    folder = Path(run_in(tmp_path))
    (folder / Seat(2, 0).segment).mkdir()
    assert load_run(str(folder))[1].elapsed_device_ns == 5 * NS


def test_seats_are_found_by_name() -> None:
    """Only whole names of segments are seats, with any number of digits, ascending."""
    seats = [Seat(12345, 0), Seat(2, 123456), Seat(2, 3), Seat(1, 0)]
    names = [s.segment for s in seats] + [Seat(9, 9).page, "x" + Seat(8, 8).segment, Seat(7, 7).segment + ".p000000"]
    assert seats_in(names) == sorted(seats)


def test_runs_are_found_in_order(tmp_path: Path) -> None:
    """All runs below a folder, wherever they lie."""
    a, b = run_in(tmp_path / "x", "b"), run_in(tmp_path / "x", "a")
    c = run_in(tmp_path / "w", "c")
    assert find_runs(str(tmp_path)) == [c, b, a]
