"""Does a store keep exclusive create? Asked before a pot is trusted with it."""

from __future__ import annotations

import secrets

from costguard.pots.store import Store


def why_not_exclusive(store: Store) -> str | None:
    """Try to make one object twice.

    It catches stores that ignore the condition (rclone and some gateways overwrite). It cannot catch one that keeps
    it only when nobody races; a local disk, AWS S3 (documented) and SeaweedFS (raced in our tests) do keep it.

    Args:
        store: Where to try; the object is removed again.

    Returns:
        `None` if the second attempt was refused and left the first object alone, else what it did instead.

    Raises:
        PotAwayError: If the store gives no answer.
    """
    key = f"probe/{secrets.token_hex(8)}"
    try:
        made, again = store.create_exclusive(key, b"first"), store.create_exclusive(key, b"second")
        kept = store.read(key)
    except NotImplementedError as error:
        return f"has no exclusive create ({error})"
    finally:
        store.delete(key)
    if not made:
        return "refused to create an object that did not exist"
    if again or kept != b"first":
        return "overwrote an object that it was asked to create exclusively"
    return None
