"""Rooms, checkpoints and ways to servers that several tests use."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.manifest import Level
from costguard.checkpoints.remote import open_store
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import Store
from servers import KEY, SECRET

MIB = 1 << 20


def options(endpoint: str) -> dict[str, Any]:
    """What fsspec needs to reach a server of ours."""
    return {"endpoint_url": endpoint, "key": KEY, "secret": SECRET}


def file_system(endpoint: str) -> Any:
    """A file system of the test's own."""
    import s3fs

    return s3fs.S3FileSystem(**options(endpoint), skip_instance_cache=True, use_listings_cache=False)


def s3_store(endpoint: str, **more: Any) -> Store:
    """An empty prefix on a server."""
    url = f"s3://tests/{uuid.uuid4().hex}"
    return open_store(url, storage_options=options(endpoint), **more)


def room_of(folder: Path, store: Store | None, **more: Any) -> Room:
    """A run in a folder with a cold store."""
    files = more.pop("files", HotFiles())
    inventory = Inventory(str(folder / "inventory"), files)
    return Room(inventory=inventory, files=files, store=store, run="run-7", **{"required": Level.ETAG, **more})


def saved(room: Room, name: str = "step=1.ckpt", data: bytes = b"0123456789", **facts: Any) -> str:
    """A checkpoint of one file, adopted; returns its id."""
    path = Path(room.inventory.folder).parent / name
    path.write_bytes(data)
    id = facts.pop("id", room.new_id())
    return room.inventory.adopt(str(path), id, **facts).id


def path_of(room: Room, name: str) -> Path:
    """A path beside a room's inventory."""
    return Path(room.inventory.folder).parent / name
