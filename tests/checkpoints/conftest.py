"""Cold stores as users have them: a folder, fsspec's memory, moto (archives) and SeaweedFS (a real disk)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from proxy import Proxy
from rooms import file_system, room_of, s3_store

from costguard.checkpoints.remote import open_store
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore, Store
from servers import SeaweedServer


@pytest.fixture(scope="session")
def weed_endpoint(seaweed: SeaweedServer) -> str:
    """The SeaweedFS server of all tests, with our bucket."""
    with contextlib.suppress(FileExistsError):
        seaweed.bucket("tests")
    return seaweed.endpoint


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """A moto server in this process: the one that knows archives."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    file_system(endpoint).call_s3("create_bucket", Bucket="tests")
    yield endpoint
    server.stop()


@pytest.fixture
def proxy(weed_endpoint: str) -> Iterator[Proxy]:
    """A proxy before SeaweedFS, with no rules yet."""
    standing = Proxy(weed_endpoint)
    standing.start()
    yield standing
    standing.stop()


@pytest.fixture(params=["folder", "memory", "moto", "weed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty cold store of each kind."""
    if request.param == "folder":
        return LocalStore(str(tmp_path / "cold"))
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}")
    return s3_store(request.getfixturevalue(f"{request.param}_endpoint"))


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A run with a folder as cold store, and small parts."""
    (tmp_path / "hot").mkdir()
    return room_of(tmp_path / "hot", LocalStore(str(tmp_path / "cold")), part_bytes=4)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of lives flush their files."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = tempfile.mkdtemp(prefix="costguard-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)
