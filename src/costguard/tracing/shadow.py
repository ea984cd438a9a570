"""Runs a module on a copy whose tensors have shapes and no contents, so that nothing is computed or compiled."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from costguard.tracing.unsharded import copy_whole

_LEFT_BEHIND = ("__compiled_fn", "__resume_at")
"""What torch.compile puts into the files of what it has compiled, and leaves there."""


def compiled_part(module: nn.Module) -> str | None:
    """Name what of a module runs compiled, `None` if nothing is known to.

    Watching from Python would be compiled into it, or make it run uncompiled. Looked at are the module and its parts,
    their attributes, and what stands in the files that define them.
    """
    if "torch._dynamo" not in sys.modules:
        return None
    files = set()
    for name, part in module.named_modules():
        where = name or type(module).__name__
        if type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None:
            return where
        for attribute, value in vars(part).items():
            if _is_compiled(value):
                return f"{where}.{attribute}"
        files.add(type(part).__module__)
    for file in sorted(files):
        if not file.startswith(("torch.", "lightning.", "pytorch_lightning.")) and file in sys.modules:
            for name, value in list(vars(sys.modules[file]).items()):
                if _is_compiled(value) and not name.startswith(_LEFT_BEHIND):
                    return f"{file}.{name}"
    return None


def _is_compiled(value: Any) -> bool:
    if type(value).__name__ == "OptimizedModule":
        return True
    named = getattr(value, "__name__", None) == "flex_attention" and str(getattr(value, "__module__", "")).startswith(
        "torch."
    )
    return callable(value) and (named or "_torchdynamo_orig_callable" in getattr(value, "__dict__", {}))


def uncompiled() -> AbstractContextManager[Any]:
    """Within it compiled code runs as it was written."""
    stack = ExitStack()
    if "torch._dynamo" in sys.modules:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
    return stack


def run_on_shadow(
    module: nn.Module,
    batch: Any,
    step: Callable[[nn.Module, Any], Tensor],
    *,
    prepare: Callable[[nn.Module], None],
    watch: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Run forward and backward on a shadow of a module.

    Args:
        module: The module; neither it nor its buffers, gradients or random numbers are touched.
        batch: Any nest of tensors.
        step: Computes the loss of a module and a batch.
        prepare: Makes the copied module ready to run, such as undoing what of it was compiled.
        watch: Opens what watches.

    Raises:
        Exception: Whatever a module raises whose way depends on the contents of its tensors.
    """
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    # Plain fake tensors: one that depends on contents raises, which is the honest answer.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), uncompiled():
        warnings.simplefilter("ignore")
        with FakeCopyMode(mode):
            shadow = copy_whole(module, mode)
        prepare(shadow)
        with mode:
            fake = tree_map_only(Tensor, mode.from_tensor, batch)
            with watch():
                loss = step(shadow, fake)
                if isinstance(loss, Tensor) and loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
