"""The journal file: lines go to the disk, and a disk that takes none costs a warning and nothing else."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from costguard.errors import CostguardWarning
from costguard.ledger import segment as module
from costguard.ledger.files import LocalFiles
from costguard.ledger.lines import decode
from costguard.ledger.segment import Segment
from costguard.testing import FullDisk


def numbers(path: Path) -> list[int]:
    return [line["n"] for line in decode(path.read_bytes(), "s").lines]


def append(segment: Segment, lines: int, *, sync: bool = False) -> None:
    for n in range(lines):
        segment.append("tick", sync=sync, text=f"line {n}")


class Ill(LocalFiles):
    """A disk on which one verb fails while it is ill.

    Args:
        verb: The verb that fails.
    """

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.ill = True

    def _maybe(self, verb: str) -> None:
        if self.ill and verb == self.verb:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def write(self, handle: int, data: bytes) -> int:
        self._maybe("write")
        return super().write(handle, data)

    def sync(self, handle: int) -> None:
        self._maybe("sync")
        super().sync(handle)

    def close(self, handle: int) -> None:
        super().close(handle)
        self._maybe("close")


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    """Every line stands in the file as soon as `append` returns."""
    path = tmp_path / "s.jsonl"
    segment = Segment(LocalFiles(), str(path))
    for n in range(5):
        segment.append("tick", sync=n % 2 == 0, text="é")
        assert numbers(path) == list(range(n + 1))
    segment.close()


def test_a_segment_is_created_exclusively(tmp_path: Path) -> None:
    """A file that is there is never written to by a second writer."""
    path = tmp_path / "s.jsonl"
    segment = Segment(LocalFiles(), str(path))
    segment.append("open")
    with pytest.raises(FileExistsError):
        Segment(LocalFiles(), str(path))
    segment.close()
    assert numbers(path) == [0]


def test_after_closing_more_lines_are_ignored(tmp_path: Path) -> None:
    """Closing twice is the same as once, and a late line is dropped without an exception."""
    path = tmp_path / "s.jsonl"
    segment = Segment(LocalFiles(), str(path))
    segment.append("open")
    segment.close()
    segment.append("tick")
    segment.close()
    assert numbers(path) == [0]


@pytest.mark.parametrize("room", [0, 1, 40, 100, 101, 250])
def test_a_full_disk_warns_once_and_never_raises(tmp_path: Path, room: int) -> None:
    """With ENOSPC at any point of any line, `append` goes on; one warning says what happens and what to do."""
    path = tmp_path / "s.jsonl"
    segment = Segment(FullDisk(room), str(path))
    with pytest.warns(CostguardWarning) as caught:
        append(segment, 20, sync=True)
    assert len(caught) == 1
    assert str(path) in str(caught[0].message)
    assert "free space" in str(caught[0].message)
    with pytest.warns(CostguardWarning, match=r"\d+ lines of the journal .* are lost"):
        segment.close()
    left = numbers(path)
    assert left == list(range(len(left)))


@pytest.mark.parametrize("room", range(0, 260, 13))
def test_lines_come_back_when_there_is_room(tmp_path: Path, room: int) -> None:
    """When the disk takes bytes again, every line is there, in order; only a torn copy is left out."""
    path = tmp_path / "s.jsonl"
    disk = FullDisk(room)
    segment = Segment(disk, str(path))
    with pytest.warns(CostguardWarning):
        append(segment, 10)
    disk.full = False
    segment.append("tick", text="line 10")
    segment.close()
    reading = decode(path.read_bytes(), "s")
    assert [line["text"] for line in reading.lines] == [f"line {n}" for n in range(11)]
    assert len(reading.problems) <= 1


def test_a_disk_that_fills_up_again_loses_nothing(tmp_path: Path) -> None:
    """Full, free, full, free: the lines are all there and the user was told once."""
    path = tmp_path / "s.jsonl"
    disk = FullDisk(30)
    segment = Segment(disk, str(path))

    def work() -> None:
        for n in range(40):
            disk.full, disk.room = n % 10 < 5, 30
            segment.append("tick", text=f"line {n}")

    with pytest.warns(CostguardWarning) as caught:
        work()
    assert len(caught) == 1
    disk.full = False
    segment.close()
    assert numbers(path) == list(range(40))


def test_closing_says_how_many_lines_are_lost(tmp_path: Path) -> None:
    """What could not be written by the end is counted."""
    segment = Segment(FullDisk(0), str(tmp_path / "s.jsonl"))
    with pytest.warns(CostguardWarning):
        append(segment, 7)
    with pytest.warns(CostguardWarning, match="7 lines"):
        segment.close()


def test_memory_is_bounded_and_keeps_the_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full, the first line and the latest ones are kept; the rest is counted as lost."""
    monkeypatch.setattr(module, "KEPT_LINES", 10)
    path = tmp_path / "s.jsonl"
    disk = FullDisk(0)
    segment = Segment(disk, str(path))
    with pytest.warns(CostguardWarning):
        append(segment, 100)
    disk.full = False
    with pytest.warns(CostguardWarning, match="90 lines"):
        segment.close()
    assert numbers(path) == [0, *range(91, 100)]


@pytest.mark.parametrize("verb", ["write", "sync", "close"])
def test_an_ill_disk_never_raises(tmp_path: Path, verb: str) -> None:
    """Whichever call of the system fails, also the last one, training goes on and is told."""
    segment = Segment(Ill(verb), str(tmp_path / "s.jsonl"))

    def work() -> None:
        append(segment, 2, sync=True)
        segment.close()

    with pytest.warns(CostguardWarning):
        work()


def test_a_handle_is_closed_once(tmp_path: Path) -> None:
    """A close that failed has closed: a second one would close whatever file has got the same number since."""

    class Counting(Ill):
        closed = 0

        def close(self, handle: int) -> None:
            self.closed += 1
            try:
                super().close(handle)
            finally:
                os.close(os.open(tmp_path, os.O_RDONLY))

    disk = Counting("close")
    segment = Segment(disk, str(tmp_path / "s.jsonl"))
    append(segment, 1)
    with pytest.warns(CostguardWarning):
        segment.close()
    assert disk.closed == 1


class Interrupting(LocalFiles):
    """A disk during whose first write a signal arrives."""

    def __init__(self, before: bool) -> None:
        self.before = before
        self.handler: Callable[[], None] | None = None

    def write(self, handle: int, data: bytes) -> int:
        handler, self.handler = self.handler, None
        if handler and self.before:
            handler()
        taken = super().write(handle, data)
        if handler and not self.before:
            handler()
        return taken


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("what", ["appends", "raises"])
def test_a_signal_in_the_middle_of_a_line_loses_none(tmp_path: Path, before: bool, what: str) -> None:
    """A handler that writes a line of its own, or ends the training, leaves every line readable."""
    path = tmp_path / "s.jsonl"
    disk = Interrupting(before)
    segment = Segment(disk, str(path))

    def handler() -> None:
        if what == "raises":
            raise KeyboardInterrupt
        segment.append("mark", sync=True)

    append(segment, 1)
    disk.handler = handler
    if what == "raises":
        with pytest.raises(KeyboardInterrupt):
            append(segment, 1)
        append(segment, 1)
    else:
        append(segment, 1)
    segment.close()
    reading = decode(path.read_bytes(), "s")
    assert (numbers(path), reading.problems) == ([0, 1, 2], [])


def test_many_threads_append_whole_lines(tmp_path: Path) -> None:
    """Lines of several threads never mix, and each has its own number."""
    path = tmp_path / "s.jsonl"
    segment = Segment(LocalFiles(), str(path))

    def work() -> None:
        for _ in range(100):
            segment.append("tick", text="x" * 200)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    segment.close()
    reading = decode(path.read_bytes(), "s")
    assert (numbers(path), reading.problems) == (list(range(400)), [])


def test_a_disk_with_room_warns_of_nothing(tmp_path: Path) -> None:
    """No warning without a cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        segment = Segment(LocalFiles(), str(tmp_path / "s.jsonl"))
        segment.append("open", sync=True)
        segment.close()
