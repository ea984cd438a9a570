"""Which checkpoints of a run are worth keeping: rules, combined by `|`, over the facts of each checkpoint.

```python
from costguard.keep import best, every, last, pinned
keep = last(3) | best("val_loss", n=2) | every(steps=10_000) | pinned()
```
In a YAML each rule is `{class_path: costguard.keep.last, init_args: {n: 3}}`, and `costguard.keep.any_of` joins them.
On a command line the text is what Python's would be, which `parse` reads and `Rule.label` writes.
"""

from costguard.keep.facts import Checkpoint, History, Tier
from costguard.keep.rules import (
    DAY_NS,
    HOUR_NS,
    AnyOf,
    BeforeAnomaly,
    Best,
    ByModelCheckpoint,
    Every,
    Last,
    Mode,
    Pinned,
    Rule,
    StageEnd,
    Thin,
    any_of,
    before_anomaly,
    best,
    by_model_checkpoint,
    every,
    last,
    pinned,
    stage_end,
    thin,
)
from costguard.keep.text import parse

__all__ = [
    "DAY_NS",
    "HOUR_NS",
    "AnyOf",
    "BeforeAnomaly",
    "Best",
    "ByModelCheckpoint",
    "Checkpoint",
    "Every",
    "History",
    "Last",
    "Mode",
    "Pinned",
    "Rule",
    "StageEnd",
    "Thin",
    "Tier",
    "any_of",
    "before_anomaly",
    "best",
    "by_model_checkpoint",
    "every",
    "last",
    "parse",
    "pinned",
    "stage_end",
    "thin",
]
