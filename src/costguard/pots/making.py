"""What is agreed when a pot is made, checked: limit and unit, voucher, lease, and a mode that its store can keep."""

from __future__ import annotations

import secrets
from dataclasses import replace

from costguard.errors import config_error
from costguard.pots.amounts import EXPECTED, GPU_HOURS, USD, Amount, argument, shown
from costguard.pots.probe import why_not_exclusive
from costguard.pots.sizing import VOUCHERS, overshoot_bound
from costguard.pots.state import HARD, SOFT, Terms
from costguard.pots.store import Store

LEASE_S = 900
"""Longer than the ten minutes that a usual claim lasts: with the store away, the credit in hand can be spent."""


def terms_of(
    limit_usd: Amount | None,
    limit_gpu_hours: Amount | None,
    voucher: Amount | None,
    lease_s: int,
    soft_runs: int | None,
) -> Terms:
    """Read what the user asks for.

    Raises:
        ConfigError: If it cannot be used.
    """
    unit, limit = _limit(limit_usd, limit_gpu_hours)
    if isinstance(lease_s, bool) or not isinstance(lease_s, int) or lease_s < 1:
        raise config_error(f"Pot(lease_s={lease_s!r}): expected whole seconds, at least 1, such as {LEASE_S}.")
    if soft_runs is not None and (isinstance(soft_runs, bool) or not isinstance(soft_runs, int) or soft_runs < 2):
        raise config_error(f"Pot(soft_runs={soft_runs!r}): expected how many runs share the pot at once, at least 2.")
    size = max(1, limit // VOUCHERS) if voucher is None else argument("Pot", "voucher", voucher, unit)
    if not 0 < size <= limit:
        raise config_error(f"Pot(voucher={voucher!r}): expected more than 0 and no more than the limit.")
    return Terms(
        pot=secrets.token_hex(8),
        unit=unit,
        mode=HARD if soft_runs is None else SOFT,
        limit=limit,
        voucher=size,
        lease_s=lease_s,
        soft_runs=soft_runs or 0,
    )


def _limit(limit_usd: Amount | None, limit_gpu_hours: Amount | None) -> tuple[str, int]:
    if (limit_usd is None) == (limit_gpu_hours is None):
        raise config_error(
            f"Pot(limit_usd={limit_usd!r}, limit_gpu_hours={limit_gpu_hours!r}): expected one of the two."
        )
    unit = USD if limit_usd is not None else GPU_HOURS
    value = limit_usd if limit_usd is not None else limit_gpu_hours
    limit = argument("Pot", f"limit_{unit}", value, unit)  # type: ignore[arg-type]  # one is not None
    if limit == 0:
        raise config_error(f"Pot(limit_{unit}={value!r}): nothing could be spent; expected {EXPECTED[unit]}.")
    return unit, limit


def check_exclusive(store: Store, terms: Terms) -> None:
    """Refuse a hard pot on a store that cannot keep its limit, and say what soft mode would cost.

    Raises:
        ConfigError: If the store does not keep exclusive create.
        PotAwayError: If it gives no answer.
    """
    why = why_not_exclusive(store)
    if why:
        each = shown(terms.voucher, terms.unit)
        pair = shown(overshoot_bound(replace(terms, mode=SOFT, soft_runs=2)), terms.unit)
        raise config_error(
            f"Pot(url={store.url!r}): the store {why}, so two runs could claim the same money; use a store with "
            f"conditional writes (AWS S3, SeaweedFS, a shared folder), or soft mode: with soft_runs=N the limit may be "
            f"passed by {each} for each other run ({pair} for soft_runs=2)."
        )
