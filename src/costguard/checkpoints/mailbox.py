"""What the nodes of one run say to each other: small objects in the cold store, and nothing else between them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from costguard.checkpoints.faults import CheckpointError, MismatchError, StoreError
from costguard.checkpoints.manifest import Manifest, check_name, check_relative
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room, clear

SCHEMA: Final = 1
GATHER: Final = "GATHER"
"""Beside the ids of checkpoints: few objects, so that a look at what is new is one short list."""
Verb = Literal["release", "expire"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathering:
    """Asks every node for its shards of one checkpoint.

    Args:
        id: The checkpoint's identity.
        attempt: Names the upload that all send to.
        path: Where it is on the disk of its owner.
        below: The same from the folder of the owner's list, empty if it is not below that.
        step: Optimizer step, so that shards of another save at the same path are not taken for these.
        shards: Relative paths of all shards that its `.metadata` names.
    """

    id: str
    attempt: str
    path: str
    below: str
    step: int
    shards: tuple[str, ...]

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, sort_keys=True).encode()

    @staticmethod
    def decode(data: bytes) -> Gathering:
        """Read a gathering, trusting nothing in it.

        Raises:
            CheckpointError: If it is damaged or of a newer version.
        """
        raw = _plain(data, "a gathering")
        try:
            texts = [raw["id"], raw["attempt"], raw["path"], raw["below"], *raw["shards"]]
            if not all(isinstance(text, str) for text in texts) or not isinstance(raw["step"], int):
                raise ValueError("another kind of value")
            for name in texts[:2]:
                check_name(name)
            for path in raw["shards"]:
                check_relative(path)
            return Gathering(**{**raw, "shards": tuple(raw["shards"])})
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable("a gathering", error) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one node has sent, or why it has not.

    Args:
        node: The node.
        manifest: Its files, all of them verified in the store; `None` if it has sent none.
        problem: Why it has not; empty if it has.
    """

    node: str
    manifest: Manifest | None = None
    problem: str = ""

    def encode(self) -> bytes:
        """As JSON."""
        files = None if self.manifest is None else json.loads(self.manifest.encode())
        told = {"schema": SCHEMA, "node": self.node, "problem": self.problem, "manifest": files}
        return json.dumps(told, sort_keys=True).encode()

    @staticmethod
    def decode(data: bytes, id: str, attempt: str, node: str) -> Part:
        """Read the part of a node, trusting nothing in it.

        Raises:
            CheckpointError: If it is damaged, of a newer version, or another one's.
        """
        raw = _plain(data, "a part")
        try:
            files = raw["manifest"]
            manifest = None if files is None else Manifest.decode(json.dumps(files).encode())
            part = Part(node=str(raw["node"]), manifest=manifest, problem=str(raw["problem"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable("a part", error) from None
        own = manifest is None or (manifest.id, manifest.attempt, manifest.nodes) == (id, attempt, (node,))
        if not own or part.node != node or (manifest is None and not part.problem):
            raise MismatchError(f"the part of {id} under {node} is another one's; nothing was touched.")
        return part


def _plain(data: bytes, what: str) -> dict[str, Any]:
    try:
        raw = json.loads(data)
        if raw.pop("schema") != SCHEMA:
            raise CheckpointError(f"{what} of a newer version: update costguard on this node; nothing was touched.")
        return dict(raw)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(what, error) from None


def _unreadable(what: str, error: Exception) -> CheckpointError:
    return CheckpointError(f"{what} cannot be read ({type(error).__name__}); nothing was touched.")


# -- gatherings ------------------------------------------------------------------------------------------------------


def gathering_key(room: Room, id: str) -> str:
    """Of the open gathering of a checkpoint."""
    return f"{_open(room)}{id}.json"


def _open(room: Room) -> str:
    return f"{room.run}/{GATHER}/open/"


def read_gathering(room: Room, id: str) -> Gathering | None:
    """The open gathering of a checkpoint by a fresh look, `None` if there is none.

    Raises:
        CheckpointError: If it is damaged, newer, or another one's.
    """
    data = read_small(room, gathering_key(room, id))
    if data is None:
        return None
    found = Gathering.decode(data)
    if found.id != id:
        raise MismatchError(f"the gathering under {id} is that of {found.id}; nothing was touched.")
    return found


def open_ids(room: Room, keys: list[str]) -> list[str]:
    """Ids of the gatherings among some keys."""
    start = _open(room)
    return [key[len(start) : -len(".json")] for key in keys if key.startswith(start) and key.endswith(".json")]


def close_gathering(room: Room, id: str, attempt: str) -> None:
    """Take back what the nodes were asked, and what they have answered."""
    room.cold.delete(gathering_key(room, id))
    for key in room.cold.listing(parts_prefix(room, id, attempt)):
        room.cold.delete(key)


# -- parts -----------------------------------------------------------------------------------------------------------


def parts_prefix(room: Room, id: str, attempt: str) -> str:
    """Of the parts of one upload."""
    return f"{room.prefix(id)}parts/{attempt}/"


def part_key(room: Room, id: str, attempt: str, node: str) -> str:
    """Of one node's part."""
    return f"{parts_prefix(room, id, attempt)}{node}.json"


def part_data(room: Room, record: Record) -> str:
    """Of the objects that this node sends of a part: no other node writes to these keys."""
    return f"{room.data_prefix(record.id, record.attempt or '')}{room.node}/"


def clear_part(room: Room, record: Record) -> None:
    """Delete what this node has sent to an upload of several."""
    clear(room, part_data(room, record))
    room.cold.delete(part_key(room, record.id, record.attempt or "", room.node))


def read_part(room: Room, id: str, attempt: str, node: str) -> Part | None:
    """One node's part by a fresh look, `None` if there is none.

    Raises:
        CheckpointError: If it is damaged, newer, or another one's.
    """
    data = read_small(room, part_key(room, id, attempt, node))
    return None if data is None else Part.decode(data, id, attempt, node)


# -- words -----------------------------------------------------------------------------------------------------------


def tell_nodes(room: Room, record: Record, verb: Verb) -> None:
    """Leave word with every node that has a part: let go of it, or delete it. Told twice is told once."""
    for node in _others(room, record):
        room.cold.create(_word_key(room, node, record.id, verb), json.dumps({"schema": SCHEMA}).encode())


def withdraw(room: Room, record: Record, verb: Verb) -> None:
    """Take a word back from those who have not heeded it yet; of a part, from this node."""
    for node in (room.node,) if record.part else _others(room, record):
        room.cold.delete(_word_key(room, node, record.id, verb))


def words(room: Room, keys: list[str]) -> list[tuple[str, str, str]]:
    """The words for this node among some keys: key, id and verb of each."""
    start = f"{room.run}/{GATHER}/to/{room.node}/"
    split = [(key, *key[len(start) :].rpartition(".")) for key in keys if key.startswith(start)]
    return [(key, id, verb) for key, id, _, verb in split]


# -- sessions --------------------------------------------------------------------------------------------------------


def begin_session(room: Room, session: str) -> None:
    """Say that the owner may ask for parts from now on; what an owner that was killed has left is taken back."""
    for before in sessions(room, look(room)):
        room.cold.delete(_session_key(room, before))
    room.cold.create(_session_key(room, session), json.dumps({"schema": SCHEMA}).encode())


def end_session(room: Room, session: str) -> None:
    """Say that nothing more is asked for: nodes need not stay for it."""
    room.cold.delete(_session_key(room, session))


def sessions(room: Room, keys: list[str]) -> list[str]:
    """Sessions among some keys."""
    start = _session_key(room, "")
    return [key[len(start) :] for key in keys if key.startswith(start)]


def _session_key(room: Room, session: str) -> str:
    return f"{room.run}/{GATHER}/session/{session}"


def look(room: Room) -> list[str]:
    """Keys of all that is said now."""
    return room.cold.listing(f"{room.run}/{GATHER}/")


def _others(room: Room, record: Record) -> list[str]:
    return [node for node in record.nodes if node != room.node and not record.part]


def _word_key(room: Room, node: str, id: str, verb: Verb) -> str:
    return f"{room.run}/{GATHER}/to/{node}/{id}.{verb}"


def read_small(room: Room, key: str) -> bytes | None:
    """A small object by a fresh look, `None` if there is none, also if it goes while it is looked at."""
    fact = room.cold.head(key)
    if fact is None:
        return None
    try:
        return room.cold.read(key, 0, fact.size)
    except StoreError:
        if room.cold.head(key) is not None:
            raise
        return None
