"""Replaces methods on instances for a while, and puts everything back exactly as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

Method = Callable[..., Any]


class Instances:
    """Wraps methods on single objects; wrapping one twice is the same as once, and so is putting back.

    A wrapper on which somebody else has wrapped meanwhile cannot be taken out without taking theirs too: it stays
    in place and from then on only passes calls through.
    """

    def __init__(self) -> None:
        self._wrapped: dict[tuple[int, str], _Wrapped] = {}

    def wrap(self, instance: Any, name: str, make: Callable[[Method], Method], *, direct: bool = False) -> None:
        """Replace `instance.name` by what `make` makes of it; nothing happens if it is not there.

        Args:
            instance: Any object that takes attributes.
            name: Name of a method.
            make: Gets the bound original and returns the replacement.
            direct: Put the replacement itself in place, for the step path: it falls silent by itself.
        """
        original = getattr(instance, name, None)
        if original is None or (id(instance), name) in self._wrapped:
            return
        wrapped = _Wrapped(instance, name, original, make(original), direct=direct)
        setattr(instance, name, wrapped.call)
        self._wrapped[id(instance), name] = wrapped

    def put_back(self) -> None:
        """Undo every wrap, the last first."""
        while self._wrapped:
            _, wrapped = self._wrapped.popitem()
            wrapped.put_back()


class _Wrapped:
    """One replaced method."""

    def __init__(self, instance: Any, name: str, original: Method, replacement: Method, *, direct: bool) -> None:
        self._instance = instance
        self._name = name
        self._original = original
        self._was_own = name in vars(instance)
        active = replacement

        def call(*args: Any, **kwargs: Any) -> Any:
            return active(*args, **kwargs)

        def fall_silent() -> None:
            nonlocal active
            active = original

        call.__name__ = call.__qualname__ = name
        self.call = replacement if direct else call
        self._fall_silent = fall_silent
        self._silent = False
        with suppress(AttributeError):  # a bound method takes no attributes
            self.call.costguard_wrapped = self  # type: ignore[attr-defined]

    def put_back(self) -> None:
        """Take the replacement out, or make it pass calls through where somebody has wrapped on it."""
        self._fall_silent()
        self._silent = True
        if vars(self._instance).get(self._name) is not self.call:
            return
        below = self._below()
        if below._was_own:
            setattr(self._instance, self._name, below._original)
        else:
            delattr(self._instance, self._name)

    def _below(self) -> _Wrapped:
        """The lowest of the wrappers under this one that another callback of ours could not take out."""
        under = getattr(self._original, "costguard_wrapped", None)
        return under._below() if isinstance(under, _Wrapped) and under._silent else self
