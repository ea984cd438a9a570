"""A run's checkpoints where a training or a command finds them: listed in its folder, with their cold store."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.manifest import Level
from costguard.checkpoints.pace import Pace
from costguard.checkpoints.remote import open_store
from costguard.checkpoints.room import Room, new_id
from costguard.errors import ConfigError, CostguardError, RunNotFoundError, config_error
from costguard.policies.retention import Retention, Tiers
from costguard.prices.storage import StorageClass, storage_class

FOLDER = "costguard-checkpoints"
_NAME = "room"
"""Not `.json`, which the records are."""
_WORD = ".costguard-checkpoints"
"""Beside checkpoints that lie outside of the folder that was trained in: says which folder that is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cold:
    """Where what is demoted goes.

    Args:
        url: A folder, or any URL that fsspec can write to; `None` for nowhere.
        storage_options: Given to fsspec; never written down.
        storage_class: A class of the price table, such as `s3:GLACIER_IR`, or one of the user's own; on S3 large
            objects are written in it.
        bytes_per_s: Most bytes a second, as fast as it goes if `None`.
        allow_plain_http: Whether a host that is not this machine may be spoken to without TLS.
        required: How far a cold copy is verified before the hot one goes; as was written down before if `None`, and
            where nothing was, `ETAG`.
    """

    url: str | None = None
    storage_options: Mapping[str, Any] | None = None
    storage_class: str | StorageClass | None = None
    bytes_per_s: float | None = None
    allow_plain_http: bool = False
    required: Level | None = None

    @property
    def prices(self) -> StorageClass | None:
        """Prices of the class, `None` if it was not named."""
        return None if self.storage_class is None else storage_class(self.storage_class)


def open_room(root: str, cold: Cold, run: str | None = None, part_of: str | None = None) -> Room:
    """Open the checkpoints of a folder, which are listed there from now on.

    Args:
        root: Folder that the training's checkpoints lie in or below.
        cold: Where what is demoted goes.
        run: Name in the cold store of a folder that has none yet; a new one if `None`.
        part_of: On a node that only has shards of another one's checkpoints, the name of that one's `Room.run`: both
            say it in the cold store.

    Raises:
        ConfigError: If the cold store cannot be opened, or copies of another run are known here.
    """
    folder = os.path.join(os.path.abspath(root), FOLDER)
    said = _read(folder)
    _check_same_run(folder, said.get("run"), part_of)
    own = said.get("run") or run or f"{os.path.basename(os.path.abspath(root)) or 'run'}-{new_id()[:8]}"
    name = part_of or own
    url = cold.url or said.get("cold")
    place = None if url is None else _plain(url)
    _check_same_place(folder, said.get("cold"), place)
    chosen = said.get("storage_class") if cold.storage_class is None else _said(cold.storage_class)
    prices = _class(chosen)  # what cannot be used is not written down
    required = cold.required or _level(folder, said)
    said = _note(
        folder,
        run=name,
        cold=place,
        storage_class=chosen,
        verify=required.name.lower(),
        node=said.get("node") or new_id()[:8],
        owner=part_of is None and said.get("owner", True),
    )
    store = None
    if url is not None:
        store = open_store(
            url,
            storage_options=cold.storage_options,
            storage_class=prices.name if prices is not None and url.startswith("s3") else None,
            allow_plain_http=cold.allow_plain_http,
        )
    files = HotFiles()
    return Room(
        inventory=Inventory(folder, files),
        files=files,
        store=store,
        run=name,
        required=required,
        pace=Pace(cold.bytes_per_s),
        storage_class=prices,
        node=said["node"],
        owner=said["owner"],
    )


def reopen_room(root: str, cold: Cold, run: str | None = None, *, holds_any: bool = True) -> Room:
    """Open a folder at a cold store that may know its checkpoints already, as after the loss of the hot disk.

    Args:
        root: Folder that the checkpoints shall come back to.
        cold: Where their cold copies are.
        run: Name of the run there, `None` if it is the only one.
        holds_any: Whether there must be one.

    Raises:
        RunNotFoundError: If there is none, or several and none is named.
        ConfigError: If the store cannot be opened.
    """
    if "run" not in _read(os.path.join(os.path.abspath(root), FOLDER)):
        store = open_store(cold.url or "", storage_options=cold.storage_options, allow_plain_http=cold.allow_plain_http)
        there = sorted({key.split("/")[0] for key in store.listing("") if key.endswith("/MANIFEST.json")})
        if run is None and len(there) > 1:
            raise RunNotFoundError(f"{store.url} holds {len(there)} runs: {', '.join(there)}; name one of them.")
        run = run or next(iter(there), None)
        if holds_any and run not in there:
            raise RunNotFoundError(f"{store.url} holds no checkpoint of {run or 'any run'}; is it the right place?")
    return open_room(root, cold, run)


def part_room(path: str, root: str, cold: Cold, run: str) -> Room:
    """Open the list of a node that has a part of a checkpoint on its own disk.

    Args:
        path: The checkpoint.
        root: Folder that was trained in. Where all nodes share it, the owner's list lies there, and the node's own
            beside the checkpoint.
        cold: Where what is demoted goes.
        run: Name of the owner's `Room.run`.

    Raises:
        ConfigError: If the cold store cannot be opened, or copies of another run are known here.
    """
    said = _read(os.path.join(os.path.abspath(root), FOLDER))
    shared = said.get("run") == run and said.get("owner", True)
    return open_room(os.path.dirname(os.path.abspath(path)) if shared else root, cold, part_of=run)


def has_parts(root: str, run: str) -> bool:
    """Whether there is a list of parts of a run's checkpoints in a folder."""
    said = _read(os.path.join(os.path.abspath(root), FOLDER))
    return said.get("run") == run and not said.get("owner", True)


def room_above(path: str, **options: Any) -> Room:
    """Open the checkpoints that a path belongs to: those of the nearest folder above it that has such a list.

    Args:
        path: A checkpoint, hot or not, or a folder; where it lies elsewhere, the word that was left there is followed.
        options: Fields of `Cold`, in place of what was written down.

    Raises:
        RunNotFoundError: If no folder above has one.
        ConfigError: If the cold store cannot be opened.
    """
    place = os.path.abspath(path)
    while True:
        if os.path.isfile(os.path.join(place, FOLDER, _NAME)):
            return open_room(place, Cold(**options))
        root = _word_in(place)
        if root is not None and os.path.isfile(os.path.join(root, FOLDER, _NAME)):
            return open_room(root, Cold(**options))
        above = os.path.dirname(place)
        if above == place:
            raise RunNotFoundError(
                f"{path!r}: no {FOLDER} folder there or above it; give the folder that was trained in with "
                "CheckpointTiering, or a checkpoint of it."
            )
        place = above


def remember_policy(room: Room, retention: Retention, hot_class: str | StorageClass | None = None) -> None:
    """Write down in a room's file what a training wants of its checkpoints, for the commands.

    Args:
        room: The checkpoints.
        retention: What the user wants. With a rule of the user's own, which no text can say, none is remembered.
        hot_class: The hot disk's class, of the price table or of the user's own; `None` if unknown.

    Raises:
        OSError: If it cannot be written.
    """
    try:
        policy = retention.to_json()
    except ConfigError:
        policy = None
    _note(room.inventory.folder, policy=policy, hot_class=_said(hot_class))


def _said(which: str | StorageClass | None) -> Any:
    """A class as it is written down: by its name in the table, or with all its prices."""
    return which.to_json() if isinstance(which, StorageClass) else which


def _class(said: Any) -> StorageClass | None:
    return None if said is None else StorageClass.from_json(said) if isinstance(said, dict) else storage_class(said)


def policy_of(room: Room) -> tuple[Retention, Tiers] | None:
    """What the training that last used a room wants of its checkpoints, and its two tiers.

    Args:
        room: The checkpoints.

    Returns:
        The rules and the tiers by their prices; `None` if none are written down.

    Raises:
        CheckpointError: If they are damaged or of a newer costguard.
    """
    path = os.path.join(room.inventory.folder, _NAME)
    said = _read(room.inventory.folder)
    if said.get("policy") is None:
        return None
    try:
        retention = Retention.from_json(said["policy"])
        tiers = Tiers(
            hot=_class(said.get("hot_class")),
            cold=room.storage_class,
            has_cold=room.store is not None and retention.demote == "rest",
            part_bytes=room.part_bytes,
        )
    except (CostguardError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    return retention, tiers


def leave_word(path: str, room: Room) -> None:
    """Say beside a checkpoint that lies outside of the folder that was trained in where its list is.

    Args:
        path: The checkpoint.
        room: The list.
    """
    root, place = os.path.dirname(os.path.abspath(room.inventory.folder)), os.path.dirname(os.path.abspath(path))
    if place == root or place.startswith(root + os.sep) or _word_in(place) == root or not os.path.isdir(place):
        return
    room.files.write(os.path.join(place, _WORD), root.encode())


def _word_in(place: str) -> str | None:
    try:
        with open(os.path.join(place, _WORD), encoding="utf-8") as file:
            return file.read(4096)
    except (OSError, ValueError):
        return None


def _plain(url: str) -> str:
    """A place as it is written down: without credentials, and the same from any folder."""
    if "://" not in url:
        return os.path.abspath(url)
    return re.sub(r"://[^/@]+@", "://", url).rstrip("/")


def _check_same_place(folder: str, before: str | None, now: str | None) -> None:
    """Refuse another cold store while something lies in the one before."""
    if before is None or now is None or _plain(before) == now:
        return
    there = [r for r in Inventory(folder, HotFiles()).records() if r.cold_since_ns is not None]
    if there:
        raise config_error(
            f"cold={now!r}: {len(there)} checkpoints of this folder are in {before}; go on with that, or train in "
            "another default_root_dir."
        )


def _check_same_run(folder: str, before: str | None, now: str | None) -> None:
    """Refuse to hold parts of another run while copies of the one before are known: their keys begin with its name."""
    if before is None or now is None or before == now:
        return
    there = [r for r in Inventory(folder, HotFiles()).records() if r.cold_since_ns is not None]
    if there:
        raise config_error(
            f"{folder}: {len(there)} checkpoints of the run {before} are listed on this node, and its first node goes "
            f"by {now}; train in another default_root_dir, or move that folder aside."
        )


def _read(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, _NAME), encoding="utf-8") as file:
            said = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CheckpointError(f"{os.path.join(folder, _NAME)} cannot be read ({error}); mend or remove it.") from error
    if said.get("v") != 1:
        raise CheckpointError(f"{os.path.join(folder, _NAME)} is of a newer costguard; use that.")
    return dict(said)


def _level(folder: str, said: Mapping[str, Any]) -> Level:
    """What a command must not verify less far than the training did."""
    try:
        return Level[str(said.get("verify", Level.ETAG.name)).upper()]
    except KeyError:
        raise CheckpointError(f"{os.path.join(folder, _NAME)} is of a newer costguard; use that.") from None


def _note(folder: str, **said: Any) -> dict[str, Any]:
    """Write some of what the room's file says; the rest of it stays, whoever wrote it meanwhile."""
    before = _read(folder)
    now = {**before, "v": 1, **said}
    if now != before:
        os.makedirs(folder, exist_ok=True)
        draft = os.path.join(folder, f".{_NAME}.{os.getpid()}")
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(now, file)
        os.replace(draft, os.path.join(folder, _NAME))
    return now
