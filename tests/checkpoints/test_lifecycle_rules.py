"""Lifecycle rules that a bucket's owner has set, on Ceph's gateway, which really carries them out: a day lasts 2 s."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rooms import MIB, path_of, room_of, saved

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.faults import MismatchError
from costguard.checkpoints.remote import open_store
from costguard.checkpoints.restore import check_copy, restore
from costguard.checkpoints.room import Room
from rgw_server import DAY_S, RgwServer, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason="needs Ceph: apt-get install radosgw ceph-mon ceph-osd ceph-common"),
]


@pytest.fixture(scope="module")
def rgw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RgwServer]:
    """One gateway for these tests."""
    server = RgwServer(tmp_path_factory.mktemp("rgw"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def bucket(rgw: RgwServer) -> str:
    """An empty bucket."""
    return rgw.bucket(f"rules-{uuid.uuid4().hex[:12]}")


def _room(rgw: RgwServer, bucket: str, folder: Path) -> Room:
    store = open_store(f"{bucket}/run", storage_options=rgw.options)
    return room_of(folder, store, part_bytes=5 * MIB)


def _rule(rgw: RgwServer, bucket: str, **what: Any) -> None:
    import s3fs

    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "run/"}, **what}
    fs = s3fs.S3FileSystem(**rgw.options, skip_instance_cache=True)
    fs.call_s3(
        "put_bucket_lifecycle_configuration",
        Bucket=bucket.removeprefix("s3://"),
        LifecycleConfiguration={"Rules": [rule]},
    )


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30 * DAY_S
    while not done():
        assert time.monotonic() < deadline, "the rule was not carried out"
        time.sleep(0.2)


def test_a_copy_that_a_rule_moved_to_another_class_is_the_same(rgw: RgwServer, bucket: str, tmp_path: Path) -> None:
    """One part and several: tag and bytes are as before, the hot copy may go, and it comes back whole."""
    room = _room(rgw, bucket, tmp_path)
    data = {"a.ckpt": b"small", "b.ckpt": os.urandom(11 * MIB)}
    ids = [saved(room, name, content) for name, content in data.items()]
    saved(room, "newest.ckpt")
    for id in ids:
        demote(room, id)
    _rule(rgw, bucket, Transitions=[{"Days": 1, "StorageClass": "STANDARD_IA"}])
    keys = [key for id in ids for key in room.cold.listing(f"run-7/{id}/data/")]
    assert len(keys) == 2

    def moved() -> bool:
        return {getattr(room.cold.head(key), "storage_class", None) for key in keys} == {"STANDARD_IA"}

    _until(moved)
    for id, (name, content) in zip(ids, data.items(), strict=True):
        assert check_copy(room, id) == len(content)
        release(room, id)
        assert not path_of(room, name).exists()
        assert Path(restore(room, id)).read_bytes() == content


def test_a_copy_that_a_rule_deleted_keeps_the_hot_one(rgw: RgwServer, bucket: str, tmp_path: Path) -> None:
    """An owner's rule that expires what we have committed is seen before anything is let go."""
    room = _room(rgw, bucket, tmp_path)
    id = saved(room, "a.ckpt", b"content")
    saved(room, "newest.ckpt")
    demote(room, id)
    _rule(rgw, bucket, Expiration={"Days": 1})
    _until(lambda: not room.cold.listing("run-7/"))
    with pytest.raises(MismatchError, match="manifest of its cold copy is gone"):
        release(room, id)
    assert path_of(room, "a.ckpt").read_bytes() == b"content"


def test_an_upload_that_was_left_is_aborted_by_a_rule(rgw: RgwServer, bucket: str, tmp_path: Path) -> None:
    """What we recommend for a bucket does what we say of it."""
    import s3fs

    room = _room(rgw, bucket, tmp_path)
    fs = s3fs.S3FileSystem(**rgw.options, skip_instance_cache=True)
    where = {"Bucket": bucket.removeprefix("s3://"), "Key": "run/run-7/a/data/b/file"}
    begun = fs.call_s3("create_multipart_upload", **where)
    fs.call_s3("upload_part", Body=bytes(5 * MIB), UploadId=begun["UploadId"], PartNumber=1, **where)
    assert len(room.cold.uploads("run-7/")) == 1  # type: ignore[attr-defined]
    _rule(rgw, bucket, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1})
    _until(lambda: not room.cold.uploads("run-7/"))
