"""Which run a process belongs to, and how it takes its seat in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from builders import NS, Journal, MemoryFiles
from costguard.errors import ConfigError, CostguardWarning
from costguard.ledger.allocation import Allocation, read_allocation
from costguard.ledger.files import LocalFiles
from costguard.ledger.layout import Seat, run_folder
from costguard.ledger.opening import (
    Claim,
    Identity,
    check_run_id,
    claim_attempt,
    claim_rank,
    file_mark,
    identify,
    new_run_id,
    run_that_saved,
)
from costguard.policies.gap import Tenure

NO_JOB = read_allocation({}, mounts="")
BAD_IDS = [".", "..", "../x", "/x", "a/b", "a\\b", "a:b", " a", "a ", "a\0b", "\n", "a" * 300, "\ud800"]


def allocation(job: str | None, restarted: bool | None) -> Allocation:
    return Allocation(
        job=job, restarted=restarted, tenure=Tenure(allocation=job, host="h", boot="b"), gpus_on_node=None
    )


def identified(files: Any, where: Allocation = NO_JOB, run_id: str | None = None, **env: str) -> Identity:
    return identify(run_id, env, where, "/root", files)


def past(*attempts: tuple[str, str, str | None]) -> MemoryFiles:
    """Runs that have been: each its id, how it ended and its job."""
    files = MemoryFiles()
    for run_id, end, job in attempts:
        attempt = Journal(files, run_id=run_id).attempt(job=job)
        attempt.train(1)
        if end == "died":
            attempt.die()
        else:
            attempt.close(reason=None if end == "closed" else end)
    return files


# -- whose run it is ----------------------------------------------------------------------------------------------


def test_the_users_word_decides() -> None:
    """`run_id` names the run, whatever lies in the folder and whatever the scheduler says."""
    files = past(("other", "died", "slurm:1"))
    assert identified(files, allocation("slurm:1", True), "mine") == Identity("mine", True, "run_id")
    assert identified(files, run_id="mine", COSTGUARD_RUN_ID="env").run_id == "mine"


def test_the_environment_is_the_users_word_too() -> None:
    """`COSTGUARD_RUN_ID` names the run like the argument; an empty one is none."""
    files = past(("other", "died", "slurm:1"))
    found = identified(files, allocation("slurm:1", True), COSTGUARD_RUN_ID="from-env")
    assert (found.run_id, found.decided) == ("from-env", True)
    assert not identified(files, COSTGUARD_RUN_ID="").decided


# The job's allocation, whether the scheduler says restart, the runs that were, and the one that is joined.
IDENTITIES: dict[str, tuple[str | None, bool | None, list[tuple[str, str, str | None]], str | None]] = {
    "requeued after a death": ("slurm:1", True, [("a", "died", "slurm:1")], "a"),
    "requeued after a clean stop": ("slurm:1", True, [("a", "closed", "slurm:1")], "a"),
    "requeued, several attempts": ("slurm:1", True, [("a", "died", "slurm:1"), ("a", "died", "slurm:1")], "a"),
    "requeued, other jobs beside it": ("slurm:1", True, [("a", "died", "slurm:1"), ("b", "died", "slurm:2")], "a"),
    "requeued, another job's run": ("slurm:1", True, [("b", "died", "slurm:2")], None),
    "requeued, two runs of the job": ("slurm:1", True, [("a", "died", "slurm:1"), ("b", "died", "slurm:1")], None),
    "requeued, nothing there": ("slurm:1", True, [], None),
    "the same job, no restart": ("slurm:1", False, [("a", "died", "slurm:1")], None),
    "no word, died": ("pbs:1", None, [("a", "died", "pbs:1")], "a"),
    "no word, closed": ("pbs:1", None, [("a", "closed", "pbs:1")], None),
    "no word, failed in order": ("pbs:1", None, [("a", "ValueError", "pbs:1")], None),
    "no word, another job": ("pbs:1", None, [("a", "died", "pbs:2")], None),
    "no job, died": (None, False, [("a", "died", None)], None),
    "no job, closed": (None, False, [("a", "closed", None)], None),
    "a job after none": ("slurm:1", True, [("a", "died", None)], None),
    "the run went on elsewhere": ("slurm:1", True, [("a", "died", "slurm:1"), ("a", "closed", "slurm:2")], None),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_a_restarted_job_goes_on_with_its_run_and_nothing_else_does(name: str) -> None:
    """The scheduler's restart joins; a new experiment in the same folder inherits nothing."""
    job, restarted, runs, joined = IDENTITIES[name]
    found = identified(past(*runs), allocation(job, restarted))
    if joined:
        assert (found.run_id, found.decided) == (joined, True)
        assert str(job) in found.why
    else:
        assert not found.decided
        assert found.run_id not in {r[0] for r in runs}


@pytest.mark.parametrize("run_id", BAD_IDS)
def test_a_run_id_that_cannot_name_a_folder_is_one_clear_error(run_id: str) -> None:
    """A bad id is one sentence with option, value and remedy, before anything is written."""
    with pytest.raises(ConfigError) as error:
        identified(MemoryFiles(), run_id=run_id)
    text = str(error.value)
    assert text.startswith("CostMonitor(run_id=")
    assert repr(run_id)[1:30] in text
    assert "use letters" in text
    assert "\n" not in text


def test_a_bad_id_in_the_environment_names_the_variable() -> None:
    """Who exported a bad id is told which variable it was."""
    with pytest.raises(ConfigError) as error:
        identified(MemoryFiles(), COSTGUARD_RUN_ID="../x")
    assert "COSTGUARD_RUN_ID" in str(error.value)
    assert "'../x'" in str(error.value)


@pytest.mark.parametrize("run_id", ["a", "gpt-a", "run_1.2", "...", "ä", "a b", "2026-11-30", "x" * 200])
def test_a_run_id_that_can_name_a_folder_is_taken(run_id: str, tmp_path: Path) -> None:
    """What a file system takes is fine, and the run lies right below costguard."""
    assert check_run_id("CostMonitor", run_id) == run_id
    claim = claim_attempt(LocalFiles(), str(tmp_path), run_id)
    assert claim.segment is not None
    claim.segment.close()
    assert os.listdir(tmp_path / "costguard") == [run_id]


def test_a_new_run_is_named_by_its_time() -> None:
    """Names sort by time and never meet."""
    now = datetime(2026, 11, 30, 9, 5, 7, tzinfo=timezone.utc)
    names = {new_run_id(now) for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("20261130-090507-") for name in names)
    assert all(check_run_id("test", name) for name in names)


# -- the run that a checkpoint belongs to --------------------------------------------------------------------------


def saved_run(root: Path, path: Path, run_id: str = "r") -> None:
    journal = Journal(LocalFiles(), str(root), run_id)
    attempt = journal.attempt()
    save = attempt.save()
    attempt.writer.saved(save=save, path=str(path), step=1, bytes=3, blocked_ns=0, mark=file_mark(str(path)))
    attempt.close()


def test_a_checkpoint_as_it_was_left_names_its_run(tmp_path: Path) -> None:
    """The file that a run wrote, by path, size and time of change, also through a link."""
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"abc")
    saved_run(tmp_path, path, "other")
    path.write_bytes(b"abcd")
    saved_run(tmp_path, path)
    link = tmp_path / "link.ckpt"
    link.symlink_to(path)
    for name in (path, link):
        assert run_that_saved(str(tmp_path), str(name), file_mark(str(name)), LocalFiles()) == "r"


def test_a_checkpoint_that_was_changed_or_moved_names_none(tmp_path: Path) -> None:
    """Another file at the path, or the file at another path, proves nothing."""
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"abc")
    saved_run(tmp_path, path)
    copy = tmp_path / "copy.ckpt"
    copy.write_bytes(b"abc")
    os.utime(copy, ns=(path.stat().st_mtime_ns,) * 2)
    assert run_that_saved(str(tmp_path), str(copy), file_mark(str(copy)), LocalFiles()) is None
    path.write_bytes(b"abcd")
    assert run_that_saved(str(tmp_path), str(path), file_mark(str(path)), LocalFiles()) is None
    path.unlink()
    assert file_mark(str(path)) is None
    assert run_that_saved(str(tmp_path), str(path), None, LocalFiles()) is None


def test_a_sharded_checkpoint_has_a_mark(tmp_path: Path) -> None:
    """A folder's mark is that of all files below it."""
    folder = tmp_path / "c"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_bytes(b"abc")
    (folder / "sub" / "b").write_bytes(b"de")
    before = file_mark(str(folder))
    assert before is not None
    assert before[0] == 5
    (folder / "sub" / "b").write_bytes(b"def")
    assert file_mark(str(folder)) != before


@pytest.mark.parametrize("path", ["", "a\0b", "/nowhere/at/all"])
def test_a_mark_that_cannot_be_had_is_none(path: str) -> None:
    """A path that is none has no mark, and no exception."""
    assert file_mark(path) is None


# -- seats ---------------------------------------------------------------------------------------------------------


def close(claim: Claim) -> None:
    assert claim.segment is not None
    claim.segment.close()


def test_attempts_are_numbered_from_one_without_a_hole(tmp_path: Path) -> None:
    """Each claim is the next attempt; what was before is told with it."""
    journal = Journal(LocalFiles(), str(tmp_path))
    for number in range(1, 4):
        claim = claim_attempt(LocalFiles(), str(tmp_path), "r")
        close(claim)
        assert claim.seat == Seat(number, 0)
        assert claim.earlier.attempts == list(range(1, number))
        assert claim.segment is not None
        os.remove(claim.segment.path)
        journal.attempt().close()


def test_attempts_known_from_a_checkpoint_are_not_taken_again(tmp_path: Path) -> None:
    """On an empty disk the attempt after those that the checkpoint knows is claimed."""
    claim = claim_attempt(LocalFiles(), str(tmp_path), "r", known_attempts=3)
    close(claim)
    assert claim.seat.attempt == 4
    later = claim_attempt(LocalFiles(), str(tmp_path), "r", known_attempts=1)
    close(later)
    assert later.seat.attempt == 5


def test_an_attempt_that_wrote_nothing_is_an_attempt(tmp_path: Path) -> None:
    """An empty segment has been claimed by somebody: its seat is not given away again."""
    close(claim_attempt(LocalFiles(), str(tmp_path), "r"))
    claim = claim_attempt(LocalFiles(), str(tmp_path), "r")
    close(claim)
    assert claim.seat.attempt == 2
    assert any("empty" in problem for problem in claim.earlier.problems)


def test_threads_that_race_for_an_attempt_get_one_each(tmp_path: Path) -> None:
    """Two claims at once are two attempts."""
    claims: list[Claim] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        claims.append(claim_attempt(LocalFiles(), str(tmp_path), "r"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for claim in claims:
        close(claim)
    assert sorted(c.seat.attempt for c in claims) == list(range(1, 9))


RACE = """
import json, os, sys
from costguard.ledger.files import LocalFiles
from costguard.ledger.opening import claim_attempt
go, start = os.pipe()
back, told = os.pipe()
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        os.read(go, 1)
        seat = claim_attempt(LocalFiles(), sys.argv[1], "r").seat
        os.write(told, b"%d\\n" % seat.attempt)
        os._exit(0)
    children.append(child)
os.write(start, b"x" * 8)
for child in children:
    os.waitpid(child, 0)
print(json.dumps([int(n) for n in os.read(back, 1000).split()]))
"""


def test_processes_that_race_for_an_attempt_get_one_each(tmp_path: Path) -> None:
    """Also on a disk that several processes write to at once."""
    done = subprocess.run([sys.executable, "-c", RACE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert sorted(json.loads(done.stdout)) == list(range(1, 9))


def test_other_ranks_take_their_seat_in_the_same_attempt(tmp_path: Path) -> None:
    """Rank 1 joins the attempt that rank 0 claimed, in a file of its own."""
    first = claim_attempt(LocalFiles(), str(tmp_path), "r")
    second = claim_rank(LocalFiles(), str(tmp_path), "r", Seat(1, 1))
    close(first)
    close(second)
    assert sorted(os.listdir(second.folder)) == [first.seat.segment, second.seat.segment]


# -- places that take nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_the_way", ["costguard", "costguard/r"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_in_the_way_of_the_folder_is_a_warning(tmp_path: Path, in_the_way: str, rank: int) -> None:
    """Where no folder can be made training goes on, metered in memory, and the user is told what to do."""
    path = tmp_path / in_the_way
    path.parent.mkdir(exist_ok=True)
    path.write_text("not a folder")
    with pytest.warns(CostguardWarning) as caught:
        claim = (
            claim_rank(LocalFiles(), str(tmp_path), "r", Seat(1, 1))
            if rank
            else claim_attempt(LocalFiles(), str(tmp_path), "r")
        )
    assert claim.segment is None
    assert len(caught) == 1
    assert run_folder(str(tmp_path), "r") in str(caught[0].message)
    assert "give CostMonitor a dir that can be written to" in str(caught[0].message)


class Refusing(LocalFiles):
    """A file system on which one verb is not allowed."""

    def __init__(self, verb: str) -> None:
        def refuse(*_: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        setattr(self, verb, refuse)


@pytest.mark.parametrize("verb", ["make_folder", "create", "listing"])
def test_a_folder_that_takes_nothing_is_a_warning(tmp_path: Path, verb: str) -> None:
    """Whatever is not allowed, listing included, training goes on without a journal."""
    with pytest.warns(CostguardWarning):
        claim = claim_attempt(Refusing(verb), str(tmp_path), "r")
    assert claim.segment is None


def test_runs_that_may_not_be_listed_are_not_joined(tmp_path: Path) -> None:
    """Where the folder of runs cannot be looked into, a restarted job is a new run and training goes on."""
    files = Refusing("listing")
    found = identify(None, {}, allocation("slurm:1", True), str(tmp_path), files)
    assert not found.decided
    assert run_that_saved(str(tmp_path), "/c", [1, 2], files) is None


def test_a_seat_that_is_taken_is_no_exception(tmp_path: Path) -> None:
    """A rank whose file is there already keeps its account in memory and says so."""
    close(claim_rank(LocalFiles(), str(tmp_path), "r", Seat(1, 1)))
    with pytest.warns(CostguardWarning):
        assert claim_rank(LocalFiles(), str(tmp_path), "r", Seat(1, 1)).segment is None


def test_a_folder_that_can_be_written_to_warns_of_nothing(tmp_path: Path) -> None:
    """No warning without a cause, and nothing is written but the seat."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claim = claim_attempt(LocalFiles(), str(tmp_path), "r")
    close(claim)
    assert os.listdir(claim.folder) == [Seat(1, 0).segment]


def test_two_live_processes_of_one_run_are_both_metered(tmp_path: Path) -> None:
    """A run written by two processes at once has two attempts, each with its own time."""
    journal = Journal(LocalFiles(), str(tmp_path))
    first, second = journal.attempt(), journal.attempt()
    first.train(5)
    second.train(5)
    first.close()
    second.close()
    account = journal.account()
    assert [r.seat.attempt for r in account.ranks] == [1, 2]
    assert account.elapsed_device_ns == 2 * 10 * NS
    assert account.problems == []
