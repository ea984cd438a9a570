"""Which gradients flow, as seen at the moment of a call."""

from __future__ import annotations

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
