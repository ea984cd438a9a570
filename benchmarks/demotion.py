"""How fast a checkpoint is demoted to an S3 server, beside s3fs and boto3, and what that does to training steps.

An S3 server of its own on this machine (SeaweedFS, and Ceph's gateway where it is installed) takes the same file from
each in turn: `demote` (with hashing and verification,
without a cap), `s3fs.put_file`, boto3's transfer manager. The figure is the median of the ratios of each round. Then
training steps of a small model are timed while a demotion at the default cap goes on, beside those without one.
Server, client and training share this machine's cores, which is harsher than a store elsewhere.
Run `python benchmarks/demotion.py [--mib 1024] [--rounds 5] [--server seaweed|rgw]`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import boto3
import s3fs
import torch

from costguard.checkpoints.cabinet import Cold, open_room
from costguard.checkpoints.demotion import demote
from costguard.checkpoints.pace import TransferThread
from costguard.lightning.tiering_settings import default_bytes_per_s
from rgw_server import RgwServer, missing
from servers import KEY, SECRET, SeaweedServer

MIB = 1 << 20
OURS, S3FS, BOTO3 = "costguard demote", "s3fs.put_file", "boto3 upload_file"
ASKED = {S3FS: 0.95, BOTO3: 0.8}
"""Least share of a peer's throughput that a demotion is to have."""
ASKED_MIB = 200
"""Most memory that a demotion may add at its peak."""
SERVERS = {"seaweed": SeaweedServer, "rgw": RgwServer}
ASKED_STEPS = 1.03
"""Most that steps may take while a demotion at the default cap goes on, of what they take without."""


class Uploads:
    """The ways to bring one file to a server.

    Args:
        server: Where to.
        folder: The file, and what costguard keeps, lie there.
        mib: Size of the file, MiB.
    """

    def __init__(self, server: SeaweedServer | RgwServer, folder: Path, mib: int) -> None:
        self.path = folder / "step=1.ckpt"
        with self.path.open("wb") as file:
            for _ in range(mib):
                file.write(os.urandom(MIB))
        self.bytes = mib * MIB
        self._folder = folder
        self._bucket = server.bucket("benchmark")
        self._options = server.options
        self._fs = s3fs.S3FileSystem(**server.options, skip_instance_cache=True)
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        self._boto3 = boto3.client("s3", endpoint_url=server.endpoint, **keys)

    def ours(self, bytes_per_s: float | None = None) -> Callable[[], object]:
        """A demotion that is ready to begin."""
        root = self._folder / uuid.uuid4().hex
        root.mkdir()
        hot = root / self.path.name
        os.link(self.path, hot)
        url = f"{self._bucket}/{root.name}"
        room = open_room(str(root), Cold(url=url, storage_options=self._options, bytes_per_s=bytes_per_s))
        record = room.inventory.adopt(str(hot), root.name, complete=True, run=room.run)
        return lambda: demote(room, record.id)

    def s3fs(self) -> Callable[[], object]:
        """What a user of s3fs would write."""
        return lambda: self._fs.put_file(str(self.path), f"{self._bucket}/s3fs-{uuid.uuid4().hex}")

    def boto3(self) -> Callable[[], object]:
        """What a user of boto3 would write."""
        bucket = self._bucket.removeprefix("s3://")
        return lambda: self._boto3.upload_file(str(self.path), bucket, f"boto3-{uuid.uuid4().hex}")


def peak_mib(work: Callable[[], object]) -> float:
    """Memory that some work adds to this process at its peak, MiB; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def throughput(uploads: Uploads, rounds: int) -> None:
    """Print what each way reaches, and the shares."""
    ways: dict[str, Callable[[], Callable[[], object]]] = {
        OURS: uploads.ours,
        S3FS: uploads.s3fs,
        BOTO3: uploads.boto3,
    }
    added = peak_mib(uploads.ours())
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        names = list(ways)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            work = ways[name]()
            began = time.perf_counter()
            work()
            took[name].append(time.perf_counter() - began)
    for name, seconds in took.items():
        print(f"  {name:<20} {uploads.bytes / MIB / statistics.median(seconds):7.1f} MiB/s")
    for peer, asked in ASKED.items():
        ratio = statistics.median(theirs / ours for ours, theirs in zip(took[OURS], took[peer], strict=True))
        print(f"  ratio to {peer:<18} {ratio:.2f}, asked for at least {asked}")
    print(f"  peak extra memory {added:.0f} MiB, asked for under {ASKED_MIB}")


class Steps:
    """Training steps of a small model on one core, timed."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._batch = torch.rand(64, 512)

    def run(self, until: Callable[[], bool]) -> list[float]:
        """Train until something is so, and return what each step took, in seconds."""
        took = []
        while not until():
            began = time.perf_counter()
            self._optimizer.zero_grad()
            self._model(self._batch).square().mean().backward()
            self._optimizer.step()
            took.append(time.perf_counter() - began)
        return took


def step_cost(uploads: Uploads, rounds: int) -> None:
    """Print what steps take while a demotion goes on, of what they take before and after it."""
    steps = Steps()
    steps.run(_after(3.0))
    cap = default_bytes_per_s()
    ways: dict[str, Callable[[], Callable[[], object]]] = {
        f"{OURS}, {cap / 1e6:.0f} MB/s": lambda: uploads.ours(cap),
        f"{S3FS}, no cap": uploads.s3fs,
    }
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            thread, work = TransferThread(_fail), way()  # the one that a training has, for either
            before = steps.run(_after(3.0))
            thread.submit("move", work)
            beside = steps.run(lambda thread=thread: not thread.pending)
            without = before + steps.run(_after(3.0))
            thread.close(0)
            mean = statistics.fmean(beside) / statistics.fmean(without)
            ratios[name].append((mean, statistics.median(beside) / statistics.median(without)))
    for name, found in ratios.items():
        mean, median = (statistics.median(each) for each in zip(*found, strict=True))
        print(f"  beside {name:<32} steps take {mean:.3f} of without on average, {median:.3f} at the median")
    print(f"  asked for at most {ASKED_STEPS} at the default cap")


def _fail(name: str, error: Exception) -> None:
    print(f"  {name} failed: {error}")


def _after(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= end


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the file, MiB")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison")
    parser.add_argument("--server", choices=SERVERS, action="append", help="only this one")
    arguments: Any = parser.parse_args()
    for name in arguments.server or SERVERS:
        if name == "rgw" and missing():
            print("Ceph's gateway is left out: apt-get install radosgw ceph-mon ceph-osd ceph-common")
            continue
        with tempfile.TemporaryDirectory() as folder:
            _measure(SERVERS[name], Path(folder), arguments.mib, arguments.rounds)


def _measure(kind: type[SeaweedServer] | type[RgwServer], folder: Path, mib: int, rounds: int) -> None:
    server = kind(folder / "server")
    server.start()
    try:
        uploads = Uploads(server, folder, mib)
        print(f"one file of {mib} MiB to {kind.__name__.removesuffix('Server')} on this machine, {rounds} rounds")
        throughput(uploads, rounds)
        print(f"training steps on one of {os.cpu_count()} cores")
        step_cost(uploads, rounds)
    finally:
        server.kill()


if __name__ == "__main__":
    main()
