"""What is known of a product only at the moment of the call: which gradients will flow, and what it runs in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def needs_gradient(*tensors: Any) -> bool:
    """Whether backward computes a gradient of one of them."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def parameter_of(tensor: Any) -> nn.Parameter | None:
    """The parameter that a tensor is or is a view of."""
    if isinstance(tensor, nn.Parameter):
        return tensor
    base = getattr(tensor, "_base", None)
    return base if isinstance(base, nn.Parameter) else None


def computed_in(tensors: Sequence[Tensor]) -> str:
    """The dtype that a product of tensors runs in, such as `bfloat16`: autocast's, where that is on."""
    if not tensors:
        return "unknown"
    where, dtype = tensors[0].device.type, tensors[0].dtype
    if where != "meta" and torch.is_autocast_enabled(where):
        dtype = torch.get_autocast_dtype(where)
    return str(dtype).removeprefix("torch.")
