"""Decides with all ranks which run this process belongs to, and claims its seat there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from costguard.deadline import within
from costguard.errors import ConfigError, CostguardError, config_error, warn
from costguard.ledger.allocation import Allocation
from costguard.ledger.files import Files
from costguard.ledger.layout import Seat, run_folder
from costguard.ledger.mirror import PATIENCE_S, Mirror
from costguard.ledger.opening import (
    Claim,
    Identity,
    check_run_id,
    claim_attempt,
    claim_rank,
    file_mark,
    identify,
    run_that_saved,
)

Broadcast = Callable[[Any], Any]
"""Gives every rank what rank 0 has; called by all ranks at the same point, never in an exception path."""
_T = TypeVar("_T")


class Membership:
    """Which run this process belongs to, as it comes to be known.

    Args:
        root: Local folder in which runs lie.
        rank: Global rank.
        run_id: The user's word, if any.
        mirror: URL under which journals are mirrored, if any.
        allocation: What the environment says.
        files: The file layer.
    """

    def __init__(
        self, root: str, rank: int, run_id: str | None, mirror: str | None, allocation: Allocation, files: Files
    ) -> None:
        self._root = root
        self._rank = rank
        self._run_id = run_id
        self._mirror = mirror
        self._allocation = allocation
        self._files = files
        self._identity: Identity | None = None

    @property
    def decided(self) -> bool:
        """Whether the user or the scheduler has said which run this is, so that no checkpoint can say otherwise."""
        return self._identity is not None and self._identity.decided

    @property
    def asked(self) -> bool:
        """Whether it was asked which run this is."""
        return self._identity is not None

    @property
    def why(self) -> str:
        """What decided, for the journal."""
        return self._identity.why if self._identity else "unknown"

    def decide(self, broadcast: Broadcast) -> Claim | None:
        """Decide as far as it can be without a checkpoint.

        Returns:
            The seat, or `None` if a checkpoint may still say which run this is.

        Raises:
            ConfigError: On all ranks, if a given run id cannot be used.
        """
        self._identity = self._agree(
            broadcast, lambda: identify(self._run_id, os.environ, self._allocation, self._root, self._files)
        )
        return self._join(self._identity.run_id, broadcast, 0) if self._identity.decided else None

    def decide_by_file(self, path: str, broadcast: Broadcast) -> Claim | None:
        """Before a checkpoint is read: does a journal tell for certain which run wrote it?"""
        found = self._agree(broadcast, lambda: run_that_saved(self._root, path, file_mark(path), self._files))
        return self._join(found, broadcast, 0) if found else None

    def decide_by_content(self, word: Mapping[str, Any], broadcast: Broadcast, current: str | None) -> Claim | None:
        """After a checkpoint was read: it says which run wrote it.

        Args:
            word: The checkpoint's word, empty if it has none.
            broadcast: See `Broadcast`.
            current: The run that is open already, `None` if none is.
        """
        known = self._agree(broadcast, lambda: (word["run"], word["attempt"]) if word else None)
        if known is None or known[0] == current:
            return None
        return self._join(known[0], broadcast, known[1])

    def new(self) -> Claim | None:
        """The seat in a new run; needs no other rank, so it may be asked for in an exception path.

        Returns:
            The seat, or `None` if the ranks have not agreed on a name for it.
        """
        if self._identity is None:
            return None
        return self._claim(self._identity.run_id, Seat(1, self._rank))

    def _claim(self, run_id: str, seat: Seat) -> Claim:
        return claim_rank(self._files, self._root, run_id, seat)

    def _join(self, run_id: str, broadcast: Broadcast, known_attempts: int) -> Claim:
        claims: list[Claim] = []

        def claim() -> int:
            self._fetch_mirror(run_id)
            claims.append(claim_attempt(self._files, self._root, run_id, known_attempts=known_attempts))
            _warn_of_missing(claims[0], known_attempts)
            return claims[0].seat.attempt

        attempt = self._agree(broadcast, claim)
        return claims[0] if claims else self._claim(run_id, Seat(attempt, self._rank))

    def _agree(self, broadcast: Broadcast, work: Callable[[], _T]) -> _T:
        """Do on rank 0 what may fail, and give every rank its result or the same error, so that none waits in vain."""
        value: _T | None = None
        failed: Exception | None = None
        if self._rank == 0:
            try:
                value = work()
            except Exception as error:  # the other ranks wait for word, whatever happened
                failed = error
        told, problem, users = broadcast((value, str(failed) if failed else None, isinstance(failed, ConfigError)))
        if failed is not None:
            raise failed
        if problem is not None:
            # Of the same kind on all ranks: what is the user's ends training everywhere, what is ours nowhere.
            raise config_error(problem) if users else CostguardError(problem)
        agreed: _T = told
        return agreed

    def _fetch_mirror(self, run_id: str) -> None:
        if self._mirror is None:
            return
        folder = run_folder(self._root, run_id)
        try:
            within(PATIENCE_S, lambda: Mirror(f"{self._mirror}/{run_id}", self._files).restore(folder))
        except Exception as error:  # a store may raise anything
            warn(
                f"the mirror {self._mirror} is away ({type(error).__name__}: {error}): what earlier attempts "
                f"spent on other machines is unknown for now; what {folder} knows counts."
            )


def _warn_of_missing(claim: Claim, known_attempts: int) -> None:
    here, run_id = len(claim.earlier.attempts), os.path.basename(claim.folder)
    if here < known_attempts:
        warn(
            f"the checkpoint was written by attempt {known_attempts} of run {run_id}, of which {here} are known here: "
            "what the others spent is unknown; give CostMonitor the dir they used."
        )
    if any(r.status == "running" for r in claim.earlier.ranks):
        warn(
            f"another live process is writing run {run_id}: this one is attempt {claim.seat.attempt} and both are "
            "metered; give each experiment a run_id of its own."
        )


def checked_word(word: Any) -> Mapping[str, Any]:
    """What a checkpoint says of the account, empty if it says nothing that can be used.

    Args:
        word: Whatever stands in the checkpoint under our key; anybody may have written it.
    """
    if not isinstance(word, Mapping) or not all(isinstance(word.get(k), int) for k in ("v", "attempt", "save")):
        return {}
    try:
        check_run_id("checkpoint", str(word.get("run")))
    except CostguardError:
        return {}
    return word
