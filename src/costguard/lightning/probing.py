"""Watches the first batch of each size while it trains, so that the FLOPs of all others follow from their size."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from costguard.flops.sizes import BatchSize, WorkBySize
from costguard.flops.step import NO_WORK, StepFlops, Work, gap_to_6nd
from costguard.lightning import private
from costguard.lightning.instances import Instances, Method
from costguard.lightning.packing import PackedLengths
from costguard.tracing.counter import TorchCounter
from costguard.tracing.shadow import compiled_part, run_on_shadow, uncompiled
from costguard.tracing.trace import FlopTrace

SHADOW_MOST_S = 60.0
"""Time for shadows of a compiled model; sizes that are new after it are not counted."""


@dataclass(slots=True)
class Seen:
    """What the first counted batch showed.

    Args:
        step: Its FLOPs by our count.
        torch_flops: What was executed by torch's own formulas.
        missed: Operators that these do not know.
        how: How it was seen.
        tokens: Its tokens, `None` if it has none that can be counted.
        padding: Its padding.
    """

    step: StepFlops
    torch_flops: int
    missed: tuple[str, ...]
    how: str
    tokens: int | None = None
    padding: int | None = None

    def fact(self, parameters: int, *, frozen: bool) -> dict[str, Any]:
        """Plain data for the journal.

        Args:
            parameters: Of the model, each once.
            frozen: Whether some are not trained.
        """
        step, tokens = self.step, self.tokens
        return {
            "how": self.how,
            "tokens": tokens,
            "padding": self.padding,
            "full": step.work.full,
            "causal": step.work.causal,
            "hardware": step.work.hardware,
            "attention": step.attention.full,
            "recomputed": step.recomputed,
            "gap": gap_to_6nd(step, parameters, tokens, self.padding or 0, frozen=frozen) if tokens else None,
            "torch_flops": self.torch_flops,
            "missed": list(self.missed),
            "unseen": list(step.unseen),
        }


class StepProbe:
    """Counts the FLOPs of batches, each size once.

    While an uncompiled batch is counted, the strategy's `training_step` and `backward` run under watch; with the
    batch everything is put back. A compiled model is never watched while it trains, since that would be compiled
    too: a shadow of it, whose tensors have no contents, runs beforehand.

    Args:
        trainer: The Trainer.
        module: The module that trains.
    """

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._trainer = trainer
        self._module = module
        self._works = WorkBySize()
        self._packing = PackedLengths()
        self._squares = 0
        self._per_square: tuple[Fraction | None, ...] | None = None
        self._packed: dict[Hashable, bool] = {}
        self._instances = Instances()
        self._trainable = _trainable(module)
        self._watch: _Watch | None = None
        self._shadow_s = 0.0
        self.seen: Seen | None = None
        self.problem: str | None = None
        self.news = False

    @property
    def depends_on_contents(self) -> bool:
        """Whether batches of one size may cost differently, as packed sequences do."""
        return self._per_square is not None

    def refresh(self) -> None:
        """Forget everything if other parameters are trained than before, as when layers are thawed."""
        trainable = _trainable(self._module)
        if trainable != self._trainable:
            self._trainable, self._works, self.problem = trainable, WorkBySize(), None
            self._per_square, self._packed = None, {}

    def wants(self, size: BatchSize | None) -> bool:
        """Whether a batch of this size is to be counted."""
        return size is not None and self.problem is None and self._works.wants(size)

    def begin(self, size: BatchSize, batch: Any, batch_idx: int) -> None:
        """Count the batch that is about to train."""
        self.end(None)  # of a batch that was skipped when it had begun
        part = compiled_part(self._module)
        watch = _Watch()
        squares = self._packing.squares(batch)
        self._squares = 0 if squares is None else int(squares)
        if part is None:
            self._watch = watch
            self._instances.wrap(self._trainer.strategy, "training_step", watch.around)
            self._instances.wrap(self._trainer.strategy, "backward", watch.around)
            return
        try:
            self._run_shadow(batch, batch_idx, watch)
        except Exception as error:  # the module is the user's and may do anything
            text = str(error).splitlines()[0][:200] if str(error) else ""
            self._fail(
                f"{part} is compiled, and a copy of {type(self._module).__name__} without contents cannot run its "
                f"training_step ({type(error).__name__}: {text}); train a few steps uncompiled to see them"
            )
            return
        self._counted(size, watch, f"shapes only ({part} is compiled)")

    def end(self, size: BatchSize | None) -> None:
        """The batch is done, or has failed (without a size); everything is put back."""
        self._instances.put_back()
        watch, self._watch = self._watch, None
        if watch is not None and size is not None:
            self._counted(size, watch, "first step")

    def work(self, size: BatchSize | None, batch: Any) -> Work | None:
        """FLOPs of a batch, `None` if unknown."""
        if size is None or self.problem is not None:
            return None
        work = self._works.work(size)
        if work is None or self._per_square is None or not self._packed.get(size.key, True):
            return work
        # Of a size whose sequences were packed, one that does not say them is unknown.
        return None if self._packing.squares(batch) is None else work + self._attention(self._packing.add(batch))

    def late(self, *, wait: bool = False) -> Work:
        """FLOPs of attention over packed sequences whose lengths have arrived from the device since the last call.

        Args:
            wait: Wait for the device; only for the end of training.
        """
        return NO_WORK if self._per_square is None else self._attention(self._packing.late(wait=wait))

    def _attention(self, squares: int) -> Work:
        assert self._per_square is not None
        return Work(*(None if each is None else int(each * squares) for each in self._per_square))  # type: ignore[arg-type]

    def note_tokens(self, tokens: int | None, padding: int | None) -> None:
        """Say what the batch that was just counted holds."""
        if self.seen is not None and self.news and self.seen.tokens is None:
            self.seen.tokens, self.seen.padding = tokens, padding

    def _counted(self, size: BatchSize, watch: _Watch, how: str) -> None:
        step = watch.trace.result()
        if not step.work.full and self.seen is None and size.elements:
            what = ", ".join(step.unseen)
            self._fail("training_step multiplied no matrices that could be seen" + (f" ({what})" if what else ""))
            return
        self._packed[size.key] = packed = self._squares > 0 and step.attention.full > 0
        if packed and self._per_square is None:
            self._per_square = tuple(None if part is None else Fraction(part, self._squares) for part in step.attention)
        self._works.counted(size, step.work - step.attention if packed else step.work)
        if self.seen is None and step.work.full:
            self.news = True
            self.seen = Seen(step, watch.counter.flops, watch.counter.missed, how)

    def _fail(self, reason: str) -> None:
        self.problem, self.news = reason, True

    def _run_shadow(self, batch: Any, batch_idx: int, watch: _Watch) -> None:
        begin = time.monotonic()
        if self._shadow_s > SHADOW_MOST_S:
            raise TimeoutError(f"shadows of earlier sizes took {self._shadow_s:.0f} s")

        def step(shadow: Any, fake: Any) -> torch.Tensor:
            with self._trainer.precision_plugin.train_step_context():
                loss = shadow.training_step(fake, batch_idx)
            loss = loss["loss"] if isinstance(loss, dict) else loss
            if not isinstance(loss, torch.Tensor):
                raise TypeError(f"training_step returned {type(loss).__name__}, expected a loss")
            return loss

        run_on_shadow(self._module, batch, step, prepare=self._prepare, watch=watch.watching)
        self._shadow_s += time.monotonic() - begin

    def _prepare(self, shadow: torch.nn.Module) -> None:
        private.make_shadow(shadow, self._trainer)


class _Watch:
    """One batch under watch, in as many stretches as it takes."""

    def __init__(self) -> None:
        self.trace = FlopTrace()
        self.counter = TorchCounter()
        self._on = False

    def around(self, original: Method) -> Method:
        """Watch a method; one that calls another watched one is watched once."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.watching():
                return original(*args, **kwargs)

        return watched

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch a block."""
        if self._on:
            yield
            return
        self._on = True
        try:
            with ExitStack() as stack:
                for each in (uncompiled(), self.counter, self.trace):
                    stack.enter_context(each)
                yield
        finally:
            self._on = False


def _trainable(module: torch.nn.Module) -> int:
    return hash(tuple(p.requires_grad for p in module.parameters()))
