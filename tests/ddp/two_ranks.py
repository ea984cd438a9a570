"""A script that Lightning starts twice, one process a rank: `two_ranks.py FOLDER [one]`.

It trains several times; with `one`, it trains once and rank 1 alone fails. Each rank leaves `rank-N.json` with the
begin and the end of its own process.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

RANK = int(os.environ.get("LOCAL_RANK", "0"))
STEPS = 4
WIDTHS = (8, 24)
"""Tokens in a batch of rank 0 and of rank 1."""


def leave() -> None:
    from costguard.clock import process_start_ns
    from helpers import now_ns

    times = {"begin_ns": process_start_ns(), "end_ns": now_ns()}
    Path(sys.argv[1], f"rank-{RANK}.json").write_text(json.dumps(times))


if __name__ == "__main__":
    atexit.register(leave)  # before anything is imported, so that it runs after every other handler

import torch  # noqa: E402
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402

from helpers import Saves, Tiny, loader, monitor, quiet_trainer  # noqa: E402


class Late(Callback):
    """Makes one rank come to the begin of training after the other."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_rank == self.rank:
            time.sleep(0.5)


def train(folder: Path, *callbacks: Callback, fails_at: int | None = None, ckpt_path: Path | None = None) -> None:
    batches: list[Any] = [torch.ones(1, WIDTHS[RANK], dtype=torch.int64)] * STEPS
    trainer = quiet_trainer(folder, *callbacks, strategy="ddp", devices=2, use_distributed_sampler=False)
    trainer.fit(Tiny(fails_at=fails_at), loader(batches), ckpt_path=ckpt_path)


def main(folder: Path) -> None:
    train(folder / "unequal", Late(0), monitor(usd_per_hour="7.2"))
    train(folder / "idle", Late(1), monitor(usd_per_hour="7.2", gpus=4))
    train(folder / "resumed", monitor(), Saves(folder, 2))
    train(folder / "resumed", monitor(), ckpt_path=folder / "step-2.ckpt")
    try:
        train(folder / "fails", monitor(), fails_at=2)
    except RuntimeError as error:
        print(RANK, error, flush=True)


if __name__ == "__main__":
    if sys.argv[2:] == ["one"]:
        train(Path(sys.argv[1]), monitor(), fails_at=2 if RANK == 1 else None)
    else:
        main(Path(sys.argv[1]))
