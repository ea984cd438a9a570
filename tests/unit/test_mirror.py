"""The journal's copy on another store: a folder, memory, a real S3 server, and stores that are away or hang."""

from __future__ import annotations

import os
import threading
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from builders import NS, Attempt, Journal, assert_closes
from costguard.deadline import within
from costguard.errors import CostguardWarning, RunNotFoundError
from costguard.ledger import mirror as module
from costguard.ledger.attempt import AttemptWriter
from costguard.ledger.files import LocalFiles
from costguard.ledger.layout import Seat
from costguard.ledger.load import load_run
from costguard.ledger.mirror import Mirror, MirrorThread
from costguard.ledger.opening import claim_attempt
from costguard.ledger.places import read_folder
from costguard.reports.receipt import receipt_of

BUCKET = "costguard-tests"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    """A real S3 server in this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str) -> Iterator[str]:
    """The URL of a bucket on it, reached as a user would, by fsspec's own configuration."""
    import s3fs

    before = dict(fsspec.config.conf)
    fsspec.config.conf["s3"] = {"endpoint_url": s3_endpoint, "key": "k", "secret": "s"}
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    if not fs.exists(BUCKET):
        fs.mkdir(BUCKET)
    yield f"s3://{BUCKET}/{uuid.uuid4().hex}"
    s3fs.S3FileSystem.clear_instance_cache()
    fsspec.config.conf.clear()
    fsspec.config.conf.update(before)


@pytest.fixture(params=["file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty folder on each kind of store."""
    if request.param == "file":
        return f"file://{tmp_path}/store"
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return str(request.getfixturevalue("s3"))


def machine(root: Path, run_id: str = "r") -> Journal:
    """A machine of its own: an empty disk."""
    return Journal(LocalFiles(), str(root), run_id)


def segment_of(attempt: Attempt, journal: Journal) -> str:
    return os.path.join(journal.folder, attempt.seat.segment)


def bytes_of(path: str) -> bytes:
    return Path(path).read_bytes()


def mirrored(url: str) -> dict[Seat, bytes]:
    return {each.seat: each.segment for each in Mirror(url).seat_files()}


# -- what is sent is read back -------------------------------------------------------------------------------------


def test_segments_are_read_back_equal(store: str, tmp_path: Path) -> None:
    """What the store holds after each push is the local segment, byte by byte."""
    journal = machine(tmp_path / "a")
    attempt = journal.attempt()
    path, mirror = segment_of(attempt, journal), Mirror(f"{store}/r")
    assert mirrored(f"{store}/r") == {}
    for _ in range(4):
        attempt.train(1)
        attempt.writer.tick()
        mirror.push(path)
        mirror.push(path)
        assert mirrored(f"{store}/r") == {attempt.seat: bytes_of(path)}
    attempt.close()
    mirror.push(path)
    assert mirrored(f"{store}/r") == {attempt.seat: bytes_of(path)}


@pytest.mark.parametrize("part", [1, 100, 333])
def test_a_segment_is_sent_in_parts(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """However small the parts, put together they are the segment, also when a new process goes on pushing."""
    if part == 1 and store.startswith("s3"):
        part = 50
    monkeypatch.setattr(module, "PART_BYTES", part)
    journal = machine(tmp_path / "a")
    attempt = journal.attempt()
    path, mirror = segment_of(attempt, journal), Mirror(f"{store}/r")
    mirror.push(path)
    attempt.train(1)
    attempt.writer.tick()
    mirror.push(path)
    assert mirrored(f"{store}/r") == {attempt.seat: bytes_of(path)}
    attempt.close()
    Mirror(f"{store}/r").push(path)
    assert mirrored(f"{store}/r") == {attempt.seat: bytes_of(path)}


def test_only_the_last_part_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been sent in whole parts is not sent again, and nothing at all where nothing is new."""
    monkeypatch.setattr(module, "PART_BYTES", 10)
    sent: list[str] = []
    pipe = MemoryFileSystem.pipe_file

    def note(self: MemoryFileSystem, path: str, value: bytes, **more: Any) -> None:
        sent.append(path.rsplit(".p", 1)[1])
        pipe(self, path, value, **more)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", note)
    path = tmp_path / Seat(1, 0).segment
    mirror = Mirror(f"memory://{uuid.uuid4().hex}")
    path.write_bytes(b"a\n" + b"a" * 23)
    mirror.push(str(path))
    mirror.push(str(path))
    assert sent == ["000000", "000001", "000002"]
    del sent[:]
    path.write_bytes(b"a\n" + b"a" * 23 + b"b" * 10)
    mirror.push(str(path))
    assert sent == ["000002", "000003"]


def test_a_push_that_failed_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in the middle, the next push brings everything."""
    monkeypatch.setattr(module, "PART_BYTES", 10)
    pipe, left = MemoryFileSystem.pipe_file, [1]

    def fail(self: MemoryFileSystem, path: str, value: bytes, **more: Any) -> None:
        if not left:
            raise OSError("away")
        left.pop()
        pipe(self, path, value, **more)

    path = tmp_path / Seat(1, 0).segment
    path.write_bytes(bytes(range(45)))
    url = f"memory://{uuid.uuid4().hex}"
    mirror = Mirror(url)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    with pytest.raises(OSError, match="away"):
        mirror.push(str(path))
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe)
    mirror.push(str(path))
    assert mirrored(url) == {Seat(1, 0): bytes(range(45))}


def test_a_mirrored_run_is_loaded_by_its_url(store: str, tmp_path: Path) -> None:
    """`load_run` takes the mirror's URL or one above it, and the account is that of the local folder."""
    journal = machine(tmp_path / "a")
    for rank in (0, 1):
        attempt = journal.attempt(rank=rank, world_size=2)
        attempt.train(5, 10)
        attempt.close()
        Mirror(f"{store}/r").push(segment_of(attempt, journal))
    for url in (f"{store}/r", f"{store}/r/", store):
        place, account = load_run(url)
        assert place.rstrip("/").endswith("/r")
        assert account == journal.account()


def test_a_mirror_that_grows_is_read_anew(store: str, tmp_path: Path) -> None:
    """Who watches a run by its URL sees what has been sent since the last look."""
    journal = machine(tmp_path / "a")
    for number in (1, 2):
        attempt = journal.attempt()
        attempt.train(5)
        attempt.close()
        Mirror(f"{store}/r").push(segment_of(attempt, journal))
        assert load_run(store)[1].attempts == list(range(1, number + 1))


@pytest.mark.parametrize("what", ["nothing there", "two runs", "other files", "unknown protocol"])
def test_a_url_without_exactly_one_run_is_one_sentence(store: str, tmp_path: Path, what: str) -> None:
    """No run, several, other people's files, no such store: one sentence that names the place."""
    url = "nosuch://x/y" if what == "unknown protocol" else store
    fs, root = fsspec.core.url_to_fs(store)
    if what == "two runs":
        for run_id in "ab":
            journal = machine(tmp_path / run_id, run_id)
            attempt = journal.attempt()
            attempt.close()
            Mirror(f"{store}/{run_id}").push(segment_of(attempt, journal))
    elif what == "other files":
        fs.makedirs(root, exist_ok=True)
        fs.pipe_file(f"{root}/notes.jsonl.part", b"x")
    with pytest.raises(RunNotFoundError) as error:
        load_run(url)
    text = str(error.value)
    assert url in text
    assert "\n" not in text
    words = {"two runs": "holds 2 runs", "unknown protocol": "cannot be read"}
    assert words.get(what, "holds no costguard run") in text


def test_other_peoples_files_beside_a_run_do_not_matter(store: str, tmp_path: Path) -> None:
    """Files that are no segments, however alike they look, make no second run of one."""
    journal = machine(tmp_path / "a")
    attempt = journal.attempt()
    attempt.train(5)
    attempt.close()
    Mirror(f"{store}/r").push(segment_of(attempt, journal))
    fs, root = fsspec.core.url_to_fs(store)
    fs.makedirs(f"{root}/data", exist_ok=True)
    fs.pipe_file(f"{root}/data/train.jsonl.part", b"x")
    fs.pipe_file(f"{root}/r/report.html", b"x")
    assert load_run(store)[1] == journal.account()


# -- a disk that died with its node --------------------------------------------------------------------------------


def test_an_empty_disk_goes_on_with_the_spend_of_the_run(store: str, tmp_path: Path) -> None:
    """On another machine the mirror brings the run back: the next attempt knows what was spent before it."""
    first = machine(tmp_path / "a")
    attempt = first.attempt(gap="released")
    attempt.train(3600, 10)
    attempt.close()
    Mirror(f"{store}/r").push(segment_of(attempt, first))

    second = machine(tmp_path / "b")
    Mirror(f"{store}/r", LocalFiles()).restore(second.folder)
    later = second.attempt(gap="released")
    assert later.seat.attempt == 2
    later.train(3600, 10)
    later.close()
    account = second.account()
    assert_closes(account)
    assert receipt_of(account, "/f")["spend"]["total"] == "4"
    Mirror(f"{store}/r").push(segment_of(later, second))
    assert load_run(store)[1] == account


def test_restoring_twice_changes_nothing(tmp_path: Path) -> None:
    """What the disk has is left as it is."""
    journal = machine(tmp_path / "a")
    attempt = journal.attempt()
    attempt.close()
    url = f"file://{tmp_path}/store/r"
    Mirror(url).push(segment_of(attempt, journal))
    other = machine(tmp_path / "b")
    for _ in range(2):
        Mirror(url, LocalFiles()).restore(other.folder)
        assert bytes_of(os.path.join(other.folder, attempt.seat.segment)) == bytes_of(segment_of(attempt, journal))
    assert os.listdir(other.folder) == [attempt.seat.segment]


def test_what_the_mirror_knows_more_than_the_disk_counts(tmp_path: Path) -> None:
    """After a power cut the disk may hold less than the mirror: the next attempt knows the larger of both."""
    journal = machine(tmp_path / "a")
    attempt = journal.attempt()
    attempt.train(5)
    attempt.writer.tick()
    path, url = Path(segment_of(attempt, journal)), f"file://{tmp_path}/store/r"
    Mirror(url).push(str(path))
    attempt.die()
    (path.parent / attempt.seat.page).unlink()
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert journal.account().elapsed_device_ns == 0
    Mirror(url, LocalFiles()).restore(journal.folder)
    claim = claim_attempt(LocalFiles(), journal.root, "r")
    assert claim.segment is not None
    claim.segment.close()
    assert claim.earlier.elapsed_device_ns == 5 * NS


def test_a_second_machine_that_could_not_see_the_mirror_destroys_nothing(tmp_path: Path) -> None:
    """Attempt 1 of a machine that began while the mirror was away does not overwrite another's attempt 1."""
    url = f"file://{tmp_path}/store/r"
    for name, seconds in (("a", 3600), ("b", 60)):
        journal = machine(tmp_path / name)
        attempt = journal.attempt()
        attempt.train(seconds)
        attempt.close()
        Mirror(url).push(segment_of(attempt, journal))
    assert load_run(url)[1].elapsed_device_ns >= 3600 * NS


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_line_that_was_damaged_here_is_not_another_machines(tmp_path: Path, line: int) -> None:
    """A flipped byte on the disk is made good from the mirror; the attempt is still one attempt, and paid once."""
    journal = machine(tmp_path / "a")
    attempt = journal.attempt()
    attempt.train(5)
    attempt.writer.tick()
    attempt.close()
    path, url = Path(segment_of(attempt, journal)), f"file://{tmp_path}/store/r"
    Mirror(url).push(str(path))
    whole = journal.account()
    rows = path.read_bytes().splitlines(keepends=True)
    rows[line] = rows[line][:50] + bytes([rows[line][50] ^ 1]) + rows[line][51:]
    path.write_bytes(b"".join(rows))
    for _ in range(2):
        Mirror(url, LocalFiles()).restore(journal.folder)
        account = journal.account()
        assert account.attempts == [1]
        assert account.elapsed_device_ns == whole.elapsed_device_ns
        assert account.books == whole.books


def test_two_machines_that_did_not_see_each_other_are_both_paid(tmp_path: Path) -> None:
    """Two that claimed one attempt apart are two attempts, on the store and on each disk that asks it again."""
    url = f"file://{tmp_path}/store/r"
    journals = [machine(tmp_path / name) for name in "ab"]
    for journal, seconds in zip(journals, (3600, 60), strict=True):
        attempt = journal.attempt(gap="released")
        attempt.train(seconds)
        attempt.close()
        Mirror(url).push(segment_of(attempt, journal))
        journal.clock.advance(10)
    for journal in (*journals, machine(tmp_path / "c")):
        for _ in range(2):
            Mirror(url, LocalFiles()).restore(journal.folder)
            assert journal.account().elapsed_device_ns == 3660 * NS
            assert journal.account().attempts == [1, 2]
    assert load_run(url)[1].elapsed_device_ns == 3660 * NS


class FullOnce(LocalFiles):
    """A disk that is full while a segment is brought back."""

    def __init__(self) -> None:
        self.full = True

    def write(self, handle: int, data: bytes) -> int:
        if self.full:
            self.full = False
            return super().write(handle, data[:10])
        return super().write(handle, data)


def test_a_segment_that_came_back_in_part_is_completed(tmp_path: Path) -> None:
    """A disk that takes only part of what the mirror sends does not hide the rest for ever."""
    journal = machine(tmp_path / "a")
    attempt = journal.attempt()
    attempt.train(5)
    attempt.close()
    url = f"file://{tmp_path}/store/r"
    Mirror(url).push(segment_of(attempt, journal))
    other, disk = machine(tmp_path / "b"), FullOnce()
    try:
        Mirror(url, disk).restore(other.folder)
    except OSError:
        Mirror(url, disk).restore(other.folder)
    else:
        Mirror(url, disk).restore(other.folder)
    assert read_folder(other.folder).elapsed_device_ns == 5 * NS


# -- stores that are away or hang ----------------------------------------------------------------------------------


class Moody(MemoryFileSystem):
    """A store that is away, or that never answers, until it does."""

    protocol = "moody"
    away = False
    hangs = threading.Event()
    tries = 0

    @classmethod
    def _mood(cls) -> None:
        cls.tries += 1
        cls.hangs.wait(30)
        if cls.away:
            raise ConnectionError("no route to host\nand more")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._mood()
        super().makedirs(path, exist_ok=exist_ok)

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        self._mood()
        return super().ls(path, detail=detail, **more)


@pytest.fixture
def moody() -> Iterator[type[Moody]]:
    """That store, in a good mood."""
    fsspec.register_implementation("moody", Moody, clobber=True)
    Moody.away, Moody.tries = False, 0
    Moody.hangs.set()
    yield Moody
    Moody.hangs.set()
    Moody.store.clear()
    Moody.pseudo_dirs[:] = [""]


def wait_for(moody: type[Moody], tries: int) -> None:
    for _ in range(1000):
        if moody.tries >= tries:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"only {moody.tries} tries in 10 s")


def ended(name: str) -> None:
    """Wait for the threads that hung."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


def test_a_mirror_that_is_away_warns_once_and_the_journal_goes_on(tmp_path: Path, moody: type[Moody]) -> None:
    """However often it is away there is one warning, in one line; when it is back it gets everything."""
    journal = machine(tmp_path)
    attempt = journal.attempt()
    path, url = segment_of(attempt, journal), f"moody://{uuid.uuid4().hex}"
    moody.away = True

    def work() -> None:
        thread = MirrorThread(Mirror(url), path, attempt.writer.tick, every_s=0.01)
        wait_for(moody, 4)
        attempt.train(1)
        moody.away = False
        wait_for(moody, moody.tries + 2)
        attempt.close()
        thread.close()

    with pytest.warns(CostguardWarning) as caught:
        work()
    assert len(caught) == 1
    text = str(caught[0].message)
    assert url in text
    assert "no route to host" in text
    assert "\n" not in text
    assert mirrored(url) == {attempt.seat: bytes_of(path)}


def test_a_store_that_hangs_does_not_hang_the_end(tmp_path: Path, moody: type[Moody]) -> None:
    """Closing gives up after its patience and says that the journal here is complete."""
    journal = machine(tmp_path)
    attempt = journal.attempt()
    moody.hangs.clear()
    thread = MirrorThread(Mirror("moody://x"), segment_of(attempt, journal), attempt.writer.tick, every_s=0.01)
    wait_for(moody, 1)
    attempt.close()
    with pytest.warns(CostguardWarning, match="did not take the journal in 0 s; it is complete here"):
        thread.close(0.05)
    moody.hangs.set()
    ended("costguard-mirror")


def test_a_store_that_hangs_does_not_hang_a_run(
    tmp_path: Path, moody: type[Moody], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run begins, trains and ends while its mirror never answers, and its journal is complete on the disk."""
    monkeypatch.setattr(MirrorThread.close, "__defaults__", (0.05,))
    moody.hangs.clear()
    journal = machine(tmp_path)
    attempt = journal.attempt(mirror=Mirror("moody://x"), writer=AttemptWriter)
    attempt.train(5)
    with pytest.warns(CostguardWarning, match="did not take the journal"):
        attempt.close()
    assert journal.account().elapsed_device_ns == 5 * NS
    assert journal.account().ranks[0].status == "closed"
    moody.hangs.set()
    ended("costguard-mirror")


def test_reading_a_store_that_hangs_is_given_up(moody: type[Moody]) -> None:
    """At the start what earlier attempts spent is asked for with patience that ends."""
    moody.hangs.clear()
    with pytest.raises(TimeoutError, match="no answer"):
        within(0.05, lambda: Mirror("moody://x").seat_files())
    moody.hangs.set()
    ended("costguard-deadline")


def test_what_is_done_in_time_is_done() -> None:
    """The outcome of the work comes back, its exception too."""
    assert within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        within(5, lambda: {}["x"])


def test_a_store_that_is_away_cannot_be_read(moody: type[Moody]) -> None:
    """Loading from it is one sentence with the cause."""
    moody.away = True
    with pytest.raises(RunNotFoundError) as error:
        load_run("moody://x/r")
    assert "no route to host" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_writer_mirrors_its_journal(store: str, tmp_path: Path) -> None:
    """The mirror has the whole segment when the run has ended, the last line included, and nothing is warned of."""
    journal = machine(tmp_path / "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attempt = journal.attempt(mirror=Mirror(f"{store}/r"), writer=AttemptWriter)
        attempt.train(5)
        attempt.close()
    assert mirrored(f"{store}/r") == {attempt.seat: bytes_of(segment_of(attempt, journal))}


@pytest.mark.parametrize("url", ["nosuch://bucket/x"])
def test_a_protocol_that_is_none_is_said_at_once(url: str) -> None:
    """A store that fsspec does not know is a ValueError when the mirror is made, not a minute later."""
    with pytest.raises(ValueError, match="nosuch"):
        Mirror(url)
