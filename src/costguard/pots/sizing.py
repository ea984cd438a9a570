"""How much one claim takes: enough to be undisturbed for a while, so little that a crash strands next to nothing."""

from __future__ import annotations

from costguard.pots.state import SOFT, State, Terms

VOUCHERS = 1000
"""Usual claims in a pot."""

MINUTES = 10
"""Minutes of burn that a claim should last where the pot is large enough."""

IN_HANDS = 100
"""All holders together are to have no more than this part of the limit unspent: 1%."""

LEAST = 10_000
"""What a claim may always take is this part of the limit, 0.01%: up to 100 runs strand less than 1% more."""


def usual_amount(state: State, burn_per_hour: int | None, at_least: int = 0) -> int:
    """What a holder should claim next, in parts.

    With it no more than 2% of the limit is unspent in the hands of up to 100 holders, and so no more can be stranded
    by their crashes, except where one needs more than that at once (`at_least`, the price of stopping).

    Args:
        state: The pot.
        burn_per_hour: What the holder spends in an hour, in parts, `None` if unknown.
        at_least: What it cannot do without, in parts.
    """
    wanted = max(state.terms.voucher, (burn_per_hour or 0) * MINUTES // 60)
    room = state.limit // IN_HANDS - state.live
    return max(at_least, min(wanted, max(room, state.limit // LEAST, 1)))


def grant(state: State, wanted: int, at_least: int = 0) -> int:
    """What of a claim the pot can give, in parts: nothing rather than less than is needed.

    Args:
        state: The pot, with the claimant in it and what it has spent told.
        wanted: What is asked for.
        at_least: What the claimant cannot do without, no more than `wanted`.
    """
    most = wanted
    if state.terms.mode == SOFT:  # its bound counts on so many runs and no more than a voucher each
        most = min(wanted, state.terms.voucher) if len(state.accounts) <= state.terms.soft_runs else 0
    given = max(0, min(most, state.free))
    return given if given >= at_least else 0


def overshoot_bound(terms: Terms) -> int:
    """By how much the sum of all claims may pass the limit, in parts: nothing in hard mode.

    In soft mode each of the other runs may have claimed one voucher that this one was not shown.
    """
    return max(0, terms.soft_runs - 1) * terms.voucher if terms.mode == SOFT else 0


def presumed_spend(live: int, burn_per_hour: int | None, lease_s: int) -> int:
    """What a crashed holder may have spent since it last told, in parts: all of it where its burn is unknown.

    Its credit ended at the latest `lease_s` after its last sign of life.
    """
    return live if burn_per_hour is None else min(live, -(-burn_per_hour * lease_s // 3600))
