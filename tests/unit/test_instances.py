"""Wrapping on instances, and putting back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from costguard.lightning.instances import Instances


class Thing:
    """Has a method."""

    def say(self, word: str) -> str:
        return word


def louder(original: Callable[..., str]) -> Callable[..., str]:
    """Wraps a method so that it shouts."""
    return lambda word: original(word).upper()


def test_a_wrap_is_taken_out_without_a_trace() -> None:
    """After `put_back` the instance has no attribute of ours."""
    thing, instances = Thing(), Instances()
    instances.wrap(thing, "say", louder)
    assert thing.say("a") == "A"
    instances.put_back()
    assert thing.say("a") == "a"
    assert vars(thing) == {}


def test_twice_is_the_same_as_once() -> None:
    """A second wrap of one method, and a second `put_back`, change nothing."""
    thing, instances = Thing(), Instances()
    instances.wrap(thing, "say", lambda original: lambda word: original(word) + "!")
    instances.wrap(thing, "say", lambda original: lambda word: original(word) + "!")
    assert thing.say("a") == "a!"
    instances.put_back()
    instances.put_back()
    assert thing.say("a") == "a"


def test_an_attribute_of_the_instance_comes_back() -> None:
    """Somebody's own replacement that was there before is there again."""
    thing, instances = Thing(), Instances()
    mine = str.title
    thing.say = mine  # type: ignore[method-assign,assignment]
    instances.wrap(thing, "say", louder)
    instances.put_back()
    assert vars(thing)["say"] is mine


def test_a_wrapper_on_top_of_ours_stays_and_ours_falls_silent() -> None:
    """Whoever wrapped on ours keeps their wrap; ours only passes through."""
    thing, instances = Thing(), Instances()
    instances.wrap(thing, "say", louder)
    ours = thing.say
    thing.say = lambda word: "<" + ours(word) + ">"  # type: ignore[method-assign]
    instances.put_back()
    assert thing.say("a") == "<a>"


def test_what_is_not_there_is_left_alone() -> None:
    """A method that an object lacks is no error."""
    thing, instances = Thing(), Instances()
    instances.wrap(thing, "sing", louder)
    assert not hasattr(thing, "sing")


def test_an_exception_passes_through_a_wrap() -> None:
    """The original's exception is the caller's."""

    def fail(*_: Any) -> str:
        raise KeyError("x")

    thing, instances = Thing(), Instances()
    thing.say = fail  # type: ignore[method-assign]
    instances.wrap(thing, "say", louder)
    with pytest.raises(KeyError):
        thing.say("a")
