"""The monitor that a guard adds to a Trainer that has none, and takes out again when the fit has ended."""

from __future__ import annotations

from lightning.pytorch import Trainer

from costguard.lightning.cost_monitor import CostMonitor
from costguard.lightning.joining import callbacks_of


class OwnMonitor(CostMonitor):
    """The monitor of a Trainer that has none of its own; it is taken out of the list when the fit has ended.

    Not before: an exception's checkpoint must still say which run wrote it. The list is replaced, since Lightning may
    be going through it.
    """

    trainer: Trainer | None = None

    def _leave(self) -> None:
        super()._leave()
        self.withdraw()

    def withdraw(self) -> None:
        """Be in the list no more."""
        trainer, self.trainer = self.trainer, None
        if trainer is not None:
            trainer.callbacks = [each for each in callbacks_of(trainer) if each is not self]  # type: ignore[attr-defined]
