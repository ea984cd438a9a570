"""A second count of the same step, by torch's own formulas for what it executes, and what these cannot see."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_ARITHMETIC = (
    *("scaled_dot_product", "flash_attention", "efficient_attention", "flex_attention"),
    *("rnn", "lstm", "gru", "native_multi_head_attention", "transformer_encoder_layer_fwd", "_grouped_mm"),
    *("::matmul", "::mv", "addmv", "addbmm", "_trilinear"),
)
"""What is in the name of operators that multiply matrices in one piece."""
_SIZES = frozenset(
    {
        *("is_contiguous", "sym_is_contiguous", "is_non_overlapping_and_dense", "is_strides_like_format"),
        *("size", "sym_size", "stride", "sym_stride", "storage_offset", "sym_storage_offset", "numel", "sym_numel"),
        *("dim", "layout", "sym_storage_offset"),
    }
)
_OF_TORCH = frozenset({"aten", "prim", "prims", "fsdp", "c10d", "_c10d_functional", "c10d_functional", "_dtensor"})


class TorchCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch executes as `torch.utils.flop_counter.FlopCounterMode` does, by the same table of formulas.

    Unlike that mode a formula that fails costs a note and not the step, and what has no formula is named.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self._missed: Counter[str] = Counter()

    @property
    def missed(self) -> tuple[str, ...]:
        """Operators that multiply and have no formula, or one that fails, by name."""
        return tuple(sorted(self._missed))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the operator run, then count it."""
        kwargs = kwargs or {}
        packet = getattr(func, "_overloadpacket", func)
        if getattr(packet, "__name__", "") in _SIZES:
            return NotImplemented  # subclasses of tensors answer these themselves
        out = func(*args, **kwargs)
        formula = flop_registry.get(packet)
        name = str(getattr(packet, "_qualified_op_name", packet))
        if formula is not None:
            try:
                self.flops += int(formula(*args, **kwargs, out_val=out)) // _mesh_size(args)
            except Exception:  # formulas assert what they do not handle, such as grouped queries
                self._missed[name] += 1
        elif name.partition("::")[0] not in _OF_TORCH or any(part in name for part in _ARITHMETIC):
            self._missed[name] += 1
        return out


def _mesh_size(args: Any) -> int:
    return max((mesh.size() for a in args if (mesh := getattr(a, "device_mesh", None)) is not None), default=1)
