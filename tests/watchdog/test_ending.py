"""How a run is said to have ended, from journals on a clock that the test moves."""

from __future__ import annotations

import os
import socket

import pytest

from builders import Attempt, Journal
from costguard.clock import boot_id, process_start_ns
from costguard.ledger.control import Decision
from costguard.watchdog.ending import Ending, how_it_ended

HOST = "host-a"
STOP = Decision(1, "stop", {"judged": "budget"})
HERE = {"host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid(), "pid_start": process_start_ns()}


def _trained(journal: Journal, **header: object) -> Attempt:
    return journal.attempt(**header).train(5)


def _of(journal: Journal, *decisions: Decision, attempt: int = 1, host: str = HOST) -> Ending:
    return how_it_ended(journal.account(), decisions, attempt, host)


@pytest.mark.parametrize(
    ("reason", "how"),
    [(None, "end"), ("RuntimeError: no", "crash"), ("SIGTERMException", "crash"), ("KeyboardInterrupt", "interrupted")],
)
def test_what_was_closed_says_how_it_ended(reason: str | None, how: str) -> None:
    """In order, with an exception, or by somebody's hand."""
    journal = Journal()
    _trained(journal).close(reason=reason)
    assert _of(journal).how == how


def test_what_was_not_closed_has_crashed() -> None:
    """A process that is gone without a last line."""
    journal = Journal()
    _trained(journal).die()
    assert _of(journal).how == "crash"


@pytest.mark.parametrize(("judged", "how"), [("budget", "breach"), ("pot", "breach"), ("stall", "stall")])
def test_a_stop_that_stands_is_what_counts(judged: str, how: str) -> None:
    """Also where the process closed with the exit that follows a stop, or was killed while it stopped."""
    journal = Journal()
    _trained(journal).die()
    assert _of(journal, Decision(1, "stop", {"judged": judged})).how == how


@pytest.mark.parametrize("kind", ["raise", "resume"])
def test_a_stop_that_was_lifted_counts_no_more(kind: str) -> None:
    """After a raised limit or a resume the run ended as its last attempt did."""
    journal = Journal()
    _trained(journal).close()
    assert _of(journal, STOP, Decision(2, kind, {})).how == "end"  # type: ignore[arg-type]


def test_a_rank_that_runs_keeps_the_run_running() -> None:
    """The first rank has closed and another is still there."""
    journal = Journal()
    first = _trained(journal, world_size=2, **HERE)
    journal.attempt(1, 1, world_size=2, **HERE)
    first.close()
    assert _of(journal, host=socket.gethostname()).how == "running"


def test_ranks_on_other_machines_say_nothing_by_their_silence() -> None:
    """From here nobody can tell whether they live: a closed first rank ended in order."""
    journal = Journal()
    first = _trained(journal, world_size=2)
    journal.attempt(1, 1, world_size=2, host="host-b")
    first.close()
    assert _of(journal).how == "end"


def test_a_later_attempt_that_trained_takes_over() -> None:
    """Whoever trains again decides for the machine, also when it has ended since."""
    journal = Journal()
    _trained(journal).die()
    _trained(journal).close()
    ending = _of(journal)
    assert (ending.how, ending.attempt, ending.taken_over) == ("restarted", 2, True)


def test_a_later_attempt_that_never_trained_is_judged_itself() -> None:
    """A restart that was refused, or crashed at once, has nobody else to give the machine back."""
    journal = Journal()
    _trained(journal).close()
    journal.attempt().close(reason="ImportError: no")
    ending = _of(journal)
    assert (ending.how, ending.attempt, ending.taken_over) == ("crash", 2, False)


def test_a_later_attempt_that_starts_is_waited_for() -> None:
    """It runs, and whether it will train is not known yet."""
    journal = Journal()
    _trained(journal).close()
    journal.attempt(**HERE)
    ending = _of(journal, host=socket.gethostname())
    assert (ending.how, ending.taken_over) == ("restarted", False)


def test_a_later_attempt_elsewhere_takes_over() -> None:
    """On another machine it may live or not: what is not known is left alone."""
    journal = Journal()
    _trained(journal).die()
    journal.attempt(host="host-b").die()
    assert _of(journal).taken_over


def test_waiting_for_the_release_is_no_training() -> None:
    """The attempt that meters the idle machine says nothing of how the run ended."""
    journal = Journal()
    _trained(journal).close()
    journal.attempt(releases=1).close()
    assert (_of(journal).how, _of(journal).attempt) == ("end", 1)


def test_a_run_that_cannot_be_read_is_unknown() -> None:
    """Nothing is left, nothing is known."""
    assert _of(Journal()).how == "unknown"
