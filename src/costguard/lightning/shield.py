"""Keeps costguard's own failures away from training: they are told once, and training goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from costguard.errors import ConfigError, warn

_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def metering() -> Iterator[None]:
    """Run a block of costguard's own work; whatever goes wrong in it is a warning, what the user can mend an error."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        tell("metering", error)


def shielded(hook: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """Do for a whole hook what `metering` does for a block; a failed hook returns `None`."""

    @functools.wraps(hook)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        try:
            return hook(*args, **kwargs)
        except ConfigError:
            raise
        except Exception as error:
            tell(hook.__name__, error)
            return None

    return call


def tell(where: str, error: Exception) -> None:
    """Warn of a failure of our own."""
    # Python shows a warning of one text and place once, so a hook that fails at each batch does not flood.
    warn(f"{where} failed ({type(error).__name__}: {error}); training goes on without what it would have metered.")
