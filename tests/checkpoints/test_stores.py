"""What the protocol leans on, on each kind of cold store: exclusive creation, truth after the fact, tidiness."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from rooms import MIB, file_system, options, path_of, room_of, s3_store, saved

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.digest import Digest, expected_etag, part_bytes_for
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import ArchivedError, MismatchError, StoreError
from costguard.checkpoints.manifest import Level
from costguard.checkpoints.recovery import collect, find_orphans, rebuild
from costguard.checkpoints.remote import open_store
from costguard.checkpoints.restore import check_copy, restore, thaw
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import Store, Upload
from costguard.errors import ConfigError
from costguard.prices.storage import storage_class


def test_bytes_read_are_bytes_written(store: Store) -> None:
    """One part and several, none at all, odd names, and ranges of them."""
    objects = {
        "r/one": [b"hello"],
        "r/more": [b"a" * (5 * MIB), b"b" * (5 * MIB), b"c"],
        "r/empty": [b""],
        "r/wörk er/ü +&=%.x": [b"odd"],
    }
    for key, parts in objects.items():
        store.put(key, iter(parts), sum(map(len, parts)))
    for key, parts in objects.items():
        data = b"".join(parts)
        fact = store.head(key)
        assert fact is not None
        assert fact.size == len(data)
        assert store.read(key, 0, len(data)) == data
        assert store.read(key, 0, 0) == b""
        assert not data or store.read(key, 1, 3) == data[1:3]
    assert store.listing("r/") == sorted(objects)
    assert store.listing("r/o") == ["r/one"]
    assert store.listing("elsewhere/") == []
    assert store.head("r/none") is None
    for key in objects:
        store.delete(key)
        store.delete(key)
    assert store.listing("") == []


def test_a_key_is_created_once(store: Store) -> None:
    """The second of two manifests is refused, and what the first wrote is what is read."""
    assert store.create("m", b"first")
    assert not store.create("m", b"second")
    assert store.read("m", 0, 5) == b"first"


def test_of_many_that_create_one_key_one_wins(store: Store) -> None:
    """Also at the same moment."""
    won: list[int] = []
    start = threading.Barrier(6)

    def create(number: int) -> None:
        start.wait()
        if store.create("m", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("m", 0, 1) == b"%d" % won[0]


def test_an_upload_that_fails_half_way_leaves_no_object(store: Store) -> None:
    """A source that breaks commits nothing: neither a partial object nor an upload that is billed."""

    def parts() -> Any:
        yield b"x" * (5 * MIB)
        yield b"y" * (5 * MIB)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="broke"):
        store.put("k", parts(), 15 * MIB)
    assert store.head("k") is None
    assert store.uploads("") == []


def test_a_run_comes_back_from_its_cold_store_alone(store: Store, tmp_path: Path) -> None:
    """Demoted, released, the hot disk lost, found again by its manifests, restored: the same bytes and times."""
    (tmp_path / "a").mkdir()
    room = room_of(tmp_path / "a", store)
    data = os.urandom(1000)
    old = saved(room, "step=1.ckpt", data, step=1, metrics={"loss": 0.5}, pinned=False)
    folder = tmp_path / "a" / "step=2.ckpt"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "sub" / "shard é").write_bytes(b"shard")
    (folder / "nothing").write_bytes(b"")
    (folder / "link").symlink_to("sub/shard é")
    os.utime(folder / "nothing", ns=(1, 1_600_000_000_123_456_789))
    sharded = room.inventory.adopt(str(folder), "sharded", step=2).id
    saved(room, "step=3.ckpt", step=3)
    for id in (old, sharded):
        demote(room, id)
        release(room, id)
        assert check_copy(room, id) > 0
    assert not folder.exists()

    (tmp_path / "b").mkdir()
    fresh = room_of(tmp_path / "b", store)
    taken = {r.id: r for r in rebuild(fresh)}
    assert set(taken) == {old, sharded}
    assert (taken[old].step, taken[old].metrics, taken[old].tier) == (1, {"loss": 0.5}, "cold")
    assert restore(fresh, old) == str(tmp_path / "b" / "step=1.ckpt")
    assert (tmp_path / "b" / "step=1.ckpt").read_bytes() == data
    restore(fresh, sharded, str(tmp_path / "b" / "copy"))
    copy = tmp_path / "b" / "copy"
    assert (copy / "sub" / "shard é").read_bytes() == b"shard"
    assert (copy / "sub" / "empty").is_dir()
    assert os.readlink(copy / "link") == "sub/shard é"
    assert (copy / "nothing").stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert not [n for n in os.listdir(tmp_path / "b") if n.startswith(".costguard")]
    expire(room, sharded)
    assert store.listing(room.prefix(sharded)) == []


# -- S3 ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["moto", "weed"])
def endpoint(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_endpoint"))


def test_a_multipart_copy_has_the_expected_tag(endpoint: str, tmp_path: Path) -> None:
    """The level reached is that of the tag, so that the hot copy may go without reading anything back."""
    room = room_of(tmp_path, s3_store(endpoint), part_bytes=5 * MIB)
    data = os.urandom(12 * MIB + 3)
    id = saved(room, "big.ckpt", data)
    saved(room, "newer.ckpt")
    record = demote(room, id)
    assert (record.state, record.level) == ("both", Level.ETAG)
    assert release(room, id).state == "cold"
    assert hashlib.sha256(Path(restore(room, id)).read_bytes()).digest() == hashlib.sha256(data).digest()


def test_a_copy_may_be_read_back_whatever_its_tag_says(endpoint: str, tmp_path: Path) -> None:
    """Where the content is asked for, a tag that fits is not enough: it is read back, and then the hot copy may go."""
    room = room_of(tmp_path, s3_store(endpoint), part_bytes=5 * MIB, required=Level.CONTENT)
    id = saved(room, "a.ckpt", os.urandom(11 * MIB))
    saved(room, "newest.ckpt")
    assert demote(room, id).level == Level.CONTENT
    assert release(room, id).tier == "cold"


def test_an_object_that_was_replaced_after_the_commit_keeps_the_hot_copy(endpoint: str, tmp_path: Path) -> None:
    """Same size, another tag: a fresh look before the deletion tells."""
    room = room_of(tmp_path, s3_store(endpoint))
    id = saved(room, "old.ckpt", b"0123456789")
    saved(room, "newer.ckpt")
    demote(room, id)
    room.cold.put(room.data_key(room.committed(room.inventory.get(id)), ""), [b"9876543210"], 10)
    with pytest.raises(MismatchError, match="another tag"):
        release(room, id)
    assert path_of(room, "old.ckpt").exists()


def test_an_upload_that_was_left_is_found_and_aborted(endpoint: str, tmp_path: Path) -> None:
    """s3fs#419: parts of an upload that never ended are billed and in no list of objects."""
    store = s3_store(endpoint)
    room = room_of(tmp_path, store)
    fs = file_system(endpoint)
    key = f"{store.url.removeprefix('s3://tests/')}/run-7/lost/data/x/a"
    fs.call_s3("create_multipart_upload", Bucket="tests", Key=key)
    assert [u.key for u in store.uploads("run-7/")] == ["run-7/lost/data/x/a"]
    assert find_orphans(room).uploads == 1
    collect(room)
    assert store.uploads("run-7/") == []
    store.abort(Upload("run-7/lost/data/x/a", "gone"))


def test_a_missing_bucket_never_reads_as_a_copy_that_is_gone(endpoint: str) -> None:
    """s3fs says FileNotFoundError for both."""
    store = open_store("s3://no-such-bucket/run", storage_options=options(endpoint), attempts=1)
    for ask in (lambda: store.head("k"), lambda: store.listing("")):
        with pytest.raises(StoreError) as raised:
            ask()
        assert raised.value.kind == "no_bucket", raised.value


def test_wrong_credentials_are_named_and_never_shown(weed_endpoint: str) -> None:
    """What is told and logged holds no secret, and says what to do."""
    secret = "wrong-secret-0123456789"
    store = open_store(
        "s3://tests/x",
        storage_options=options(weed_endpoint) | {"secret": secret, "key": "wrong-key-01234"},
        attempts=1,
    )
    with pytest.raises(StoreError, match="refresh them") as raised:
        store.listing("")
    assert raised.value.kind == "credentials"
    assert secret not in str(raised.value)
    assert "wrong-key-01234" not in str(raised.value)


def test_large_objects_get_the_class_and_small_ones_do_not(moto_endpoint: str, tmp_path: Path) -> None:
    """Colder classes bill at least 128 KiB an object, so manifests and small files stay in the standard class."""
    store = s3_store(moto_endpoint, storage_class="GLACIER_IR")
    room = room_of(tmp_path, store, part_bytes=5 * MIB, storage_class=storage_class("s3:GLACIER_IR"))
    folder = tmp_path / "step=1.ckpt"
    folder.mkdir()
    (folder / "small").write_bytes(b"x")
    (folder / "large").write_bytes(bytes(200_000))
    (folder / "multi").write_bytes(bytes(11 * MIB))
    id = room.inventory.adopt(str(folder), "a").id
    record = demote(room, id)
    assert (record.storage_class, record.level) == ("GLACIER_IR", Level.ETAG)
    classes = {key.rsplit("/", 1)[-1]: store.head(key).storage_class for key in store.listing("")}  # type: ignore[union-attr]
    assert classes == {"small": "STANDARD", "large": "GLACIER_IR", "multi": "GLACIER_IR", "MANIFEST.json": "STANDARD"}


def test_an_archived_copy_says_how_long_and_how_much(moto_endpoint: str, tmp_path: Path) -> None:
    """s3fs calls it a PermissionError; the user hears of hours and dollars, asks for it, and it comes."""
    price = storage_class("s3:DEEP_ARCHIVE")
    room = room_of(tmp_path, s3_store(moto_endpoint, storage_class="DEEP_ARCHIVE"), storage_class=price)
    data = os.urandom(200_000)
    id = saved(room, "old.ckpt", data)
    saved(room, "new.ckpt")
    demote(room, id)
    release(room, id)
    with pytest.raises(ArchivedError, match=r"about 12 h and \$0\.000004") as raised:
        restore(room, id)
    assert "thaw" in str(raised.value)
    assert room.inventory.get(id).state == "cold"
    key = room.data_key(room.committed(room.inventory.get(id)), "")
    with pytest.raises(ArchivedError):
        room.cold.read(key, 0, 10)
    assert thaw(room, id, days=2) == 1
    assert Path(restore(room, id)).read_bytes() == data


def test_a_thaw_that_is_going_on_is_waited_for(moto_endpoint: str, tmp_path: Path) -> None:
    """Asked for twice it is asked for once, and until then the restore says so."""
    from moto.moto_api import state_manager

    room = room_of(
        tmp_path, s3_store(moto_endpoint, storage_class="GLACIER"), storage_class=storage_class("s3:GLACIER")
    )
    id = saved(room, "old.ckpt", bytes(200_000))
    saved(room, "new.ckpt")
    demote(room, id)
    release(room, id)
    state_manager.set_transition("s3::keyrestore", {"progression": "manual", "times": 4})
    try:
        assert thaw(room, id) == 1
        assert thaw(room, id) == 0
        with pytest.raises(ArchivedError, match="going on"):
            restore(room, id)
        for _ in range(4):
            room.cold.head(room.data_key(room.committed(room.inventory.get(id)), ""))
        assert restore(room, id)
    finally:
        state_manager.unset_transition("s3::keyrestore")


# -- opening -------------------------------------------------------------------------------------------------------


def test_a_store_without_tls_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback apart, credentials and weights never travel in the clear by accident."""
    plain = {"endpoint_url": "http://minio.example:9000", "key": "k", "secret": "secret-secret"}
    with pytest.raises(ConfigError, match=r"without TLS; expected https://") as raised:
        open_store("s3://bucket/run", storage_options=plain)
    assert "secret-secret" not in str(raised.value)
    open_store("s3://bucket/run", storage_options=plain, allow_plain_http=True)
    open_store("s3://bucket/run", storage_options={"endpoint_url": "http://127.0.0.1:1"})
    open_store("s3://bucket/run")
    with pytest.raises(ConfigError, match="without TLS"):
        open_store("s3://bucket/run", storage_options={"client_kwargs": {"endpoint_url": "http://10.0.0.1"}})
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://10.0.0.1:9000")
    with pytest.raises(ConfigError, match="without TLS"):
        open_store("s3://bucket/run")


def test_a_store_that_cannot_be_opened_is_said_in_one_sentence() -> None:
    """An unknown protocol names the remedy."""
    with pytest.raises(ConfigError, match=r"open_store\('nosuch://x'\)"):
        open_store("nosuch://x")


def test_a_forked_child_does_not_use_the_parents_store(weed_endpoint: str) -> None:
    """s3fs#914: fsspec's loop does not survive a fork, so that a call would hang; it is an error at once."""
    store = s3_store(weed_endpoint)
    store.listing("")
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.listing("")
        except StoreError as error:
            os.write(tell, str(error).encode())
        os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    assert b"before a fork" in os.read(told, 1000)
    os.close(told)


def test_parts_grow_where_there_would_be_too_many() -> None:
    """10,000 parts at most: a file of 1 TB has larger ones."""
    for size in (0, 1, 16 * MIB, 160_000 * MIB, 160_000 * MIB + 1, 10**13):
        part = part_bytes_for(size)
        assert part >= 16 * MIB
        assert -(-size // part) <= 10_000
        assert part % MIB == 0


def test_the_expected_tag_is_that_of_one_part_or_of_many() -> None:
    """MD5 of the content, or of the parts' MD5s and their number."""
    digest = Digest()
    list(digest.watch([b"a" * 5, b"b"]))
    joined = hashlib.md5(hashlib.md5(b"aaaaa").digest() + hashlib.md5(b"b").digest()).hexdigest()
    assert expected_etag(digest.part_md5s) == f"{joined}-2"
    assert (digest.sha256, digest.size) == (hashlib.sha256(b"aaaaab").hexdigest(), 6)


HUNDRED_THOUSAND = 100_000


def _crowded(put: Callable[[str], object], foreign: int, orphans: int) -> None:
    """Many objects of others below the run's prefix, and some of an upload that nobody committed."""
    keys = [f"run-7/foreign/{n % 100}/{n}" for n in range(foreign)]
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(put, [*keys, *(f"run-7/lost/data/attempt/{n}" for n in range(orphans))]):
            pass


def _moves_among_them(room: Room, foreign: int, orphans: int) -> None:
    """A demotion, a restore and an expiry work, orphans go, and of what is not ours nothing is touched."""
    first, data = saved(room, "step=1.ckpt", b"first"), b"second"
    second = saved(room, "step=2.ckpt", data)
    saved(room, "step=3.ckpt", b"third")
    for id in (first, second):
        demote(room, id)
        release(room, id)
    found = find_orphans(room)
    assert (len(found.unknown), len(found.keys), found.bytes) == (foreign, orphans, orphans)
    told = collect(room)
    assert [line for line in told.problems if "not of our making" in line] == [
        f"{room.cold.url}: {foreign} objects are not of our making, such as {found.unknown[0]}; they stay."
    ]
    assert Path(restore(room, second)).read_bytes() == data
    expire(room, first)
    left = room.cold.listing("run-7/")
    assert len(left) == foreign + 2
    assert sum(key.startswith("run-7/foreign/") for key in left) == foreign


def test_a_hundred_thousand_objects_under_the_prefix(tmp_path: Path) -> None:
    """What is not ours is told in one sentence, however much it is."""
    url = f"memory://{uuid.uuid4().hex}"
    room = room_of(tmp_path, open_store(url))
    files = fsspec.filesystem("memory")
    root = files._strip_protocol(url)
    _crowded(lambda key: files.pipe_file(f"{root}/{key}", b"x"), HUNDRED_THOUSAND, 7)
    try:
        _moves_among_them(room, HUNDRED_THOUSAND, 7)
    finally:
        files.store.clear()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_objects_in_a_bucket(weed_endpoint: str, tmp_path: Path) -> None:
    """A list of S3 has a thousand keys at most: what is behind them must not read as gone."""
    store = s3_store(weed_endpoint)
    _crowded(lambda key: store.put(key, [b"x"], 1), HUNDRED_THOUSAND, 7)
    _moves_among_them(room_of(tmp_path, store), HUNDRED_THOUSAND, 7)


@pytest.mark.slow
def test_more_than_one_page_of_keys(moto_endpoint: str, tmp_path: Path) -> None:
    """The same on moto, with a little more than a page."""
    store = s3_store(moto_endpoint)
    _crowded(lambda key: store.put(key, [b"x"], 1), 1_005, 7)
    _moves_among_them(room_of(tmp_path, store), 1_005, 7)


@pytest.mark.parametrize("encryption", ["AES256", "aws:kms"])
def test_encryption_at_the_server_is_passed_on(moto_endpoint: str, tmp_path: Path, encryption: str) -> None:
    """Data in one part and in several, and the manifest: all are written with what the storage options ask for."""
    asked = {"s3_additional_kwargs": {"ServerSideEncryption": encryption}}
    url = f"s3://tests/{uuid.uuid4().hex}"
    room = room_of(tmp_path, open_store(url, storage_options={**options(moto_endpoint), **asked}), part_bytes=5 * MIB)
    small, large = saved(room, "a.ckpt", b"small"), saved(room, "b.ckpt", os.urandom(11 * MIB))
    for id in (small, large):
        assert demote(room, id).level >= Level.ETAG
    plain = file_system(moto_endpoint)
    keys = room.cold.listing("")
    assert len(keys) == 4
    for key in keys:
        found = plain.call_s3("head_object", Bucket="tests", Key=f"{url.rpartition('/')[2]}/{key}")
        assert found["ServerSideEncryption"] == encryption, key
