"""Ceph's S3 gateway as a server of its own: one monitor, one disk, one gateway, on free ports, gone at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from servers import KEY, SECRET, free_ports

PROGRAMS = ("radosgw", "radosgw-admin", "ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool")
READY_S = 90
CLASSES = ("STANDARD_IA", "GLACIER", "DEEP_ARCHIVE")
DAY_S = 2
"""Seconds that a day of a lifecycle rule lasts here."""

CONF = """[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon2},v1:127.0.0.1:{mon1}]
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd objectstore = bluestore
bluestore block size = 10737418240
bluestore cache autotune = false
bluestore cache size = 134217728
osd memory target = 939524096
admin socket = {d}/run/$name.asok
pid file = {d}/run/$name.pid
log file = {d}/log/$name.log
run dir = {d}/run
keyring = {d}/keyring
mon data = {d}/mon
osd data = {d}/osd0
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{s3}
rgw data = {d}/rgw
rgw lc debug interval = {day}
"""


def missing() -> list[str]:
    """Programs that are not there; on Debian `radosgw ceph-mon ceph-osd ceph-common` bring them."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class RgwServer:
    """A RADOS Gateway with real storage classes and lifecycle rules that run, a day lasting two seconds.

    Args:
        folder: Where its disk (10 GB, sparse), keys and logs lie.

    Source:
        Debian's packages of Ceph; the steps are those of Ceph's manual deployment guide, without systemd.
    """

    def __init__(self, folder: Path) -> None:
        self._d = folder
        for name in ("mon", "osd0", "run", "log", "rgw"):
            (folder / name).mkdir(parents=True)
        self._mon2, self._mon1, self._port = free_ports(3)
        self._fsid = str(uuid.uuid4())
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = {"mon2": self._mon2, "mon1": self._mon1, "s3": self._port}
        (folder / "ceph.conf").write_text(CONF.format(fsid=self._fsid, d=folder, day=DAY_S, **ports))

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def options(self) -> dict[str, Any]:
        """What fsspec needs to reach it."""
        return {"endpoint_url": self.endpoint, "key": KEY, "secret": SECRET}

    def start(self) -> None:
        """Make a cluster and a user, and return when it takes objects."""
        try:
            self._start_cluster()
            self._make_user()
            self._end("radosgw")
            self._spawn("radosgw", "-n", "client.rgw")  # classes are read at its start
            self._wait()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End it, the gateway first."""
        for name in ("radosgw", "ceph-osd", "ceph-mon"):
            self._end(name)
        shutil.rmtree(self._d / "osd0", ignore_errors=True)

    def bucket(self, name: str) -> str:
        """Make a bucket and return its URL."""
        import s3fs

        s3fs.S3FileSystem(**self.options, skip_instance_cache=True).call_s3("create_bucket", Bucket=name)
        return f"s3://{name}"

    def _start_cluster(self) -> None:
        ring, everything = str(self._d / "keyring"), "allow *"
        for name, caps in (
            ("mon.", {"mon": everything}),
            ("client.admin", {"mon": everything, "osd": everything, "mgr": everything}),
            ("client.rgw", {"mon": "allow rw", "osd": "allow rwx"}),
            ("osd.0", {"mon": "allow profile osd", "osd": everything}),
        ):
            create = [] if os.path.exists(ring) else ["--create-keyring"]
            wanted = [word for kind, cap in caps.items() for word in ("--cap", kind, cap)]
            self._call("ceph-authtool", *create, ring, "--gen-key", "-n", name, *wanted)
        monmap = str(self._d / "monmap")
        address = f"[v2:127.0.0.1:{self._mon2},v1:127.0.0.1:{self._mon1}]"
        self._call("monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", address, monmap)
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", ring)
        self._spawn("ceph-mon", "-i", "a")
        disk = str(uuid.uuid4())
        self._run("ceph", "osd", "new", disk)
        self._run("ceph", "auth", "import", "-i", ring)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=localhost")
        self._spawn("ceph-osd", "-i", "0")
        self._spawn("radosgw", "-n", "client.rgw")

    def _make_user(self) -> None:
        keys = (f"--access-key={KEY}", f"--secret-key={SECRET}")
        self._admin("user", "create", "--uid=tests", "--display-name=tests", *keys)
        for kind in CLASSES:
            where = ("placement", "add", "--placement-id", "default-placement", "--storage-class", kind)
            self._admin("zonegroup", *where, "--rgw-zonegroup", "default")
            self._admin("zone", *where, "--rgw-zone", "default", "--data-pool", "default.rgw.buckets.cold")

    def _admin(self, *words: str) -> None:
        self._run("radosgw-admin", "-n", "client.rgw", *words)

    def _run(self, program: str, *words: str) -> None:
        self._call(program, "-c", str(self._d / "ceph.conf"), *words)

    def _call(self, program: str, *words: str) -> None:
        found = subprocess.run([program, *words], capture_output=True, text=True, timeout=READY_S, check=False)
        assert found.returncode == 0, f"{program} {' '.join(words)}: {found.stderr[-2000:]}"

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self.bucket(f"ready-{uuid.uuid4().hex[:8]}")
                return
            except Exception as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the gateway does not answer: {error}") from error
                time.sleep(0.3)

    def _spawn(self, program: str, *words: str) -> None:
        command = [program, "-c", str(self._d / "ceph.conf"), *words, "-f"]
        with (self._d / "log" / program).open("ab") as output:
            self._daemons[program] = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def _end(self, program: str) -> None:
        daemon = self._daemons.pop(program, None)
        if daemon is not None:
            daemon.kill()
            daemon.wait()
