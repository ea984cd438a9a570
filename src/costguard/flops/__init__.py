"""How much arithmetic a training step is."""

from costguard.flops.closed_form import six_nd

__all__ = ["six_nd"]
