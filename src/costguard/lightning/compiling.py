"""How often torch has compiled something in this process."""

from __future__ import annotations

import sys


def compilations() -> int:
    """Graphs that torch.compile has made so far; 0 as long as it was not used.

    Source: `torch._dynamo.utils.counters`, which `torch._dynamo` documents for looking at recompiles.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return counters["stats"]["unique_graphs"] if counters else 0
