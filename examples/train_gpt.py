"""Trains a small byte-level GPT on the Python standard library and says what it cost.

It takes about a minute on two CPU cores. After Ctrl-C, --resume goes on from the last checkpoint.
"""

import argparse
import itertools
import os
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from costguard import CostMonitor

Batch = tuple[Tensor, Tensor]
VOCAB = 256  # tokens are bytes: no tokenizer to train or ship
WORKERS: Any = {"num_workers": 2, "persistent_workers": True} if (os.cpu_count() or 1) > 2 else {}  # if cores to spare


class Block(nn.Module):
    """One pre-norm transformer layer: causal attention, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(LightningModule):
    """A decoder-only language model over bytes; the defaults make 3.3 million parameters.

    Args:
        layers: Number of transformer layers.
        heads: Attention heads per layer; must divide `width`.
        width: Size of the residual stream.
        context: Longest sequence, in tokens.
        lr: Learning rate.
    """

    def __init__(self, layers: int = 4, heads: int = 4, width: int = 256, context: int = 128, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.tokens, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(x) + self.positions.weight[: x.shape[1]]))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        loss = F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())
        self.log("val_loss", loss, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, betas=(0.9, 0.95))


class Windows(Dataset[Batch]):
    """Windows of a text, one every `stride` bytes; the target is the input moved by one byte."""

    def __init__(self, text: Tensor, length: int, stride: int) -> None:
        self.windows = text.unfold(0, length + 1, stride)  # a view: the text is not copied

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Batch:
        window = self.windows[index].long()
        return window[:-1], window[1:]


class ResumableLoader(DataLoader[Batch]):
    """Keeps its place in the checkpoint, so that a resumed run goes on with text it has not seen."""

    served = 0

    def __iter__(self) -> Any:
        for batch in itertools.islice(super().__iter__(), self.served, None):
            self.served += 1
            yield batch
        self.served = 0

    def state_dict(self) -> dict[str, int]:
        return {"served": self.served}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.served = state["served"]


class StdlibText(LightningDataModule):
    """The source of the running Python's standard library: real text with no download; the last 5 % are held out.

    Args:
        batch_size: Windows per step.
        context: Tokens per window.
        max_bytes: How much text to use.
    """

    def __init__(self, batch_size: int = 8, context: int = 128, max_bytes: int = 4_000_000) -> None:
        super().__init__()
        self.batch_size, self.context, self.max_bytes = batch_size, context, max_bytes

    def setup(self, stage: str) -> None:
        root, skip = Path(sysconfig.get_paths()["stdlib"]), {"site-packages", "test", "tests"}
        files = [p for p in sorted(root.rglob("*.py")) if skip.isdisjoint(p.relative_to(root).parts)]
        data = bytearray(b"".join(p.read_bytes() for p in files)[: self.max_bytes])
        self.train_text, self.val_text = torch.frombuffer(data, dtype=torch.uint8).tensor_split([len(data) * 19 // 20])

    def train_dataloader(self) -> ResumableLoader:
        windows = Windows(self.train_text, self.context, stride=self.context)
        order = torch.Generator().manual_seed(0)  # the same order again in the process that resumes
        return ResumableLoader(windows, self.batch_size, shuffle=True, generator=order, **WORKERS)

    def val_dataloader(self) -> DataLoader[Batch]:
        sample = Windows(self.val_text, self.context, stride=12 * self.context)  # enough to follow the training
        return DataLoader(sample, self.batch_size, **WORKERS)


def main() -> None:
    """Trains; however that ends, costguard prints the receipt and writes report.html when the process does."""
    parser = argparse.ArgumentParser(description="Train a small GPT and say what it cost.")
    parser.add_argument("--out", default="runs/demo", help="folder of the run (default: %(default)s)")
    parser.add_argument("--max-steps", type=int, default=300, help="optimizer steps in all (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from <out>/checkpoints/last.ckpt")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()
    out, last = args.out, os.path.join(args.out, "checkpoints", "last.ckpt")
    if args.resume != os.path.isfile(last):
        problem = f"there is no {last}; run it once without --resume"
        found = f"{out} holds a run; go on with --resume, or give another --out"
        parser.exit(2, f"train_gpt.py: {problem if args.resume else found}\n")
    seed_everything(0, verbose=False)
    data = StdlibText()
    planned = args.max_steps * data.batch_size * data.context * args.devices
    page = os.path.join(out, "report.html")  # written when the process ends, also after Ctrl-C
    cost = CostMonitor(usd_per_gpu_hour="2.49", planned_tokens=planned, tags={"project": "demo"}, report_html=page)
    checkpoint = ModelCheckpoint(os.path.dirname(last), every_n_train_steps=50, save_last=True, save_top_k=1)
    where: Any = {"accelerator": args.accelerator, "devices": args.devices, "default_root_dir": out}
    logs: Any = {"logger": CSVLogger(out), "log_every_n_steps": 10, "val_check_interval": 100}
    trainer = Trainer(max_steps=args.max_steps, callbacks=[cost, checkpoint], **where, **logs)
    trainer.fit(GPT(), data, ckpt_path=last if args.resume else None)


if __name__ == "__main__":
    main()
