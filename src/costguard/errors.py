"""What can go wrong, and how it is said: who, what, why, and the remedy, in one sentence.

CostguardError
├── ConfigError        an argument, environment variable or option has a value that cannot be used
├── RunNotFoundError   a folder or URL holds no run, several runs, or something that is not ours
├── JournalError       a journal cannot be created where it was asked for
└── PotError           a shared budget cannot be read, or does not allow what was asked
    └── PotAwayError   its store gave no answer in time; what was asked may have been done or not
CostguardWarning       something is lost or unknown, and training goes on
"""

from __future__ import annotations

import sys
import warnings


class CostguardError(Exception):
    """Base of every error that costguard raises on purpose."""


class ConfigError(CostguardError, ValueError):
    """A value given by the user cannot be used; the message names option, value and remedy."""


class RunNotFoundError(CostguardError, LookupError):
    """A place was named that does not hold exactly one readable run."""


class PotError(CostguardError):
    """A shared budget is missing, unreadable or newer than this costguard, or does not allow what was asked."""


class PotAwayError(PotError):
    """The store of a shared budget gave no answer; what was asked of it may have been done or not."""


STOPPED_CODE = 93
"""Exit code of a process that was stopped for good; NVIDIA's resiliency launcher reads it as "do not start again"."""


class StartRefused(SystemExit):
    """A run must not start: its budget is spent, or it was stopped for good. Ends the process with code 93.

    Args:
        message: One sentence with the reason and the remedy.
    """

    def __init__(self, message: str) -> None:
        super().__init__(STOPPED_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


class StoppedForGood(SystemExit):
    """A run was stopped in order and must not be taken for finished. Ends the process with its code.

    Args:
        message: One sentence with the reason.
        code: Exit code.
    """

    def __init__(self, message: str, code: int = STOPPED_CODE) -> None:
        super().__init__(code)
        self.message = message

    def __str__(self) -> str:
        return self.message


class CostguardWarning(UserWarning):
    """Something is lost, unknown or estimated; training goes on."""


def config_error(message: str) -> BaseException:
    """Make the error of a value that cannot be used, to be raised by the caller.

    Args:
        message: One sentence with option, value and remedy.

    Returns:
        A `ConfigError`. While a command line is being parsed (LightningCLI's jsonargparse), the `SystemExit` with
        code 2 that its own errors end in, the sentence printed: it would catch a `ConfigError` and bury the sentence
        under some 80 lines about every type that it tried.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "jsonargparse._typehints":
            print(f"error: {message}", file=sys.stderr)
            return SystemExit(2)
        frame = frame.f_back  # type: ignore[assignment]
    return ConfigError(message)


def warn(message: str) -> None:
    """Tell the user once, at the place that called costguard (Python folds repeats of one text)."""
    warnings.warn(f"costguard: {message}", CostguardWarning, stacklevel=3)
