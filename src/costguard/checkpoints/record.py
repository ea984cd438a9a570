"""What is known of one checkpoint, as it is written down."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from costguard.checkpoints.faults import CheckpointError, RefusedError
from costguard.checkpoints.hot import FileFact
from costguard.keep import Checkpoint, Tier

SCHEMA = 1

State = Literal["hot", "demoting", "both", "releasing", "cold", "restoring", "stripping", "expiring"]
_TIERS: Final[dict[str, Tier]] = {
    "hot": "hot",
    "demoting": "hot",
    "both": "both",
    "releasing": "cold",
    "cold": "cold",
    "restoring": "cold",
    "stripping": "cold",
    "expiring": "cold",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What is known of one checkpoint.

    Args:
        id: Its identity: made when it was first seen, whatever it is called.
        path: Where it is, or was, on the hot disk.
        order: The how manyth checkpoint of the run it is.
        state: Where it is on its way between the tiers.
        fingerprint: What its files looked like when it was taken up.
        step: Optimizer step.
        saved_ns: When it was saved, ns since the epoch.
        epochs: Epochs done.
        tokens: Tokens trained.
        metrics: Values at the save.
        stage_end: Stage that it ends.
        complete: Whether its save is known to have ended.
        pinned: Whether a user pinned it.
        resumed_from: Whether this run was resumed from it.
        released: Whether the user's own `ModelCheckpoint` has let it go.
        blocked_ns: Nanoseconds that its save held up training, `None` if unknown.
        aliases: Names beside it that are links to it.
        attempt: Upload that is going on.
        cold_since_ns: When its manifest was written.
        manifest_sha256: Hash of its manifest.
        level: How far its cold copy was verified.
        storage_class: Class of its cold copy.
        problem: What went wrong last, empty if nothing did.
        run: The training that it belongs to, restarts included.
        stripped: Whether its optimizer state was left away.
        stripped_from: Id of the checkpoint that it was made from by that.
        kept_whole: Why its optimizer state cannot be left away, empty as long as that was not tried in vain.
        origin: Where a checkpoint that was found in the cold store says it was; shown, never written to.
        tags: The run's labels at the save, its stage among them.
        reads: How many times it was brought back from its cold copy.
        hot_since_ns: When it was last brought back to the hot disk, `None` if it has been there since its save.
        hot_before_ns: Nanoseconds on the hot disk that are over, `None` if nobody saw them end.
        part: Whether it is only what this node has of a checkpoint whose `.metadata` is on another node.
        nodes: Nodes that have parts of it, or are asked for them; none where one disk has all of it.
        hashes: SHA-256 of each file of a part, by its path, as it was sent.
    """

    id: str
    path: str
    order: int
    state: State = "hot"
    fingerprint: tuple[FileFact, ...] = ()
    step: int = 0
    saved_ns: int = 0
    epochs: int | None = None
    tokens: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    stage_end: str | None = None
    complete: bool = True
    pinned: bool = False
    resumed_from: bool = False
    released: bool = False
    blocked_ns: int | None = None
    aliases: tuple[str, ...] = ()
    attempt: str | None = None
    cold_since_ns: int | None = None
    manifest_sha256: str | None = None
    level: int = 0
    storage_class: str | None = None
    problem: str = ""
    run: str = ""
    stripped: bool = False
    stripped_from: str | None = None
    kept_whole: str = ""
    origin: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    reads: int = 0
    hot_since_ns: int | None = None
    hot_before_ns: int | None = None
    part: bool = False
    nodes: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def tier(self) -> Tier:
        """Where it can be had now."""
        return _TIERS[self.state]

    @property
    def size_bytes(self) -> int:
        """Bytes of its files."""
        return sum(fact.size for fact in self.fingerprint)

    def hot_ended(self, now_ns: int) -> dict[str, int]:
        """What changes when its hot copy goes: its time there so far is summed up."""
        since_ns = self.saved_ns if self.hot_since_ns is None else self.hot_since_ns
        return {"hot_before_ns": (self.hot_before_ns or 0) + max(0, now_ns - since_ns)}

    def as_checkpoint(self) -> Checkpoint:
        """What a rule may know of it."""
        return Checkpoint(
            id=self.id,
            step=self.step,
            order=self.order,
            saved_ns=self.saved_ns,
            epochs=self.epochs,
            tokens=self.tokens,
            metrics=self.metrics,
            size_bytes=self.size_bytes,
            tier=self.tier,
            cold_since_ns=self.cold_since_ns,
            # What is being made of another one is no checkpoint yet, that one is; nor is what one node has of it.
            complete=self.complete and not self.part and self.state != "stripping",
            pinned=self.pinned,
            resumed_from=self.resumed_from,
            released=self.released,
            stage_end=self.stage_end,
            stripped=self.stripped,
            strippable=not self.kept_whole,
            run=self.run,
            tags=self.tags,
        )

    def encode(self) -> bytes:
        """As JSON."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["fingerprint"] = [fact.to_json() for fact in self.fingerprint]
        return json.dumps({"schema": SCHEMA, **data}, sort_keys=True).encode()

    @staticmethod
    def decode(data: bytes) -> Record:
        """Read a record.

        Raises:
            CheckpointError: If it is damaged or of a newer version.
        """
        try:
            raw = json.loads(data)
            if raw.pop("schema") != SCHEMA:
                raise CheckpointError("it is of a newer version")
            raw["fingerprint"] = tuple(FileFact.from_json(each) for each in raw["fingerprint"])
            raw["aliases"] = tuple(raw["aliases"])
            raw["nodes"] = tuple(raw.get("nodes", ()))
            record = Record(**raw)
            return record if record.state in _TIERS else _unreadable()
        except (ValueError, TypeError, KeyError, AttributeError):
            return _unreadable()


def _unreadable() -> Record:
    raise CheckpointError("it cannot be read")


FACTS: Final = (
    *("step", "saved_ns", "epochs", "tokens", "metrics", "stage_end", "complete", "order", "pinned", "run", "tags"),
    *("stripped", "stripped_from"),
)
"""What a manifest repeats of a record, so that a run can be rebuilt from its cold store alone."""


def check_kinds(path: str, fingerprint: tuple[FileFact, ...]) -> None:
    """Refuse what is no checkpoint: nothing, a device, a link that leads out.

    Raises:
        RefusedError: If it is.
    """
    if not fingerprint:
        raise RefusedError(f"{path}: there is no such checkpoint.")
    for fact in fingerprint:
        if fact.kind == "other" or (not fact.path and fact.kind == "link"):
            raise RefusedError(f"{os.path.join(path, fact.path)}: neither a file nor a folder.")
