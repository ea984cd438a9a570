"""A process that trains without and with the monitor into wandb offline: run by a test as `wandb_rows.py FOLDER`.

It prints one JSON object: for each training its history rows and its summary, read back from the `.wandb` file.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch import Callback
from lightning.pytorch.loggers import WandbLogger
from wandb.proto.wandb_internal_pb2 import Record

from helpers import Multiplying, loader, monitor, quiet_trainer

BLOCK = 32 * 1024
HEADER = 7


def records(data: bytes) -> Iterator[Record]:
    """Read the records of a `.wandb` file: LevelDB's log format behind seven bytes of its own."""
    assert data[:4] == b":W&B"
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        room = BLOCK - at % BLOCK
        if room < HEADER:
            at += room
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def _values(items: Iterable[Any]) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _train(folder: Path, name: str, *costs: Callback) -> dict[str, Any]:
    folder.mkdir(parents=True)
    logger = WandbLogger(name=name, save_dir=folder, offline=True, settings=wandb.Settings(console="off"))
    quiet_trainer(folder, *costs, logger=logger, log_every_n_steps=2).fit(Multiplying(), loader(12), loader(2))
    wandb.finish()
    return {"folder": str(folder)}


def _read(folder: str) -> dict[str, Any]:
    (path,) = Path(folder).rglob("*.wandb")
    history, summary = [], {}
    for record in records(path.read_bytes()):
        if record.HasField("history"):
            history.append(_values(record.history.item))
        if record.HasField("summary"):
            summary.update(_values(record.summary.update))
    return {"history": history, "summary": summary}


def main(folder: Path) -> None:
    trained = {
        "without": _train(folder / "without", "without"),
        "with": _train(folder / "with", "with", monitor(planned_tokens=1000)),
        "always": _train(folder / "always", "always", monitor(planned_tokens=1000, log_every_s=0)),
    }
    wandb.teardown()
    print(json.dumps({name: _read(run["folder"]) for name, run in trained.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
