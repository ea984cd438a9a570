"""What a user wants of the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from costguard.errors import CostguardError, config_error
from costguard.keep import Checkpoint, History, Rule, parse

VERSION: Final = 1
"""Of what `Retention.to_json` writes."""
FOR_EVER_NS: Final = 1 << 80
"""A life that does not end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """What a user wants of the checkpoints of a run.

    Args:
        keep: What stays; without a rule all does, but for what the user's own `ModelCheckpoint` deletes.
        demote: `rest` moves to the cold tier what no rule keeps; `none` leaves it where it is, or deletes it if
            `ModelCheckpoint` has let it go.
        expire_after_ns: Nanoseconds after the save at which what no rule keeps is deleted everywhere; never if `None`.
        failed_expire_after_ns: The same for a run that failed, `None` for no difference, `FOR_EVER_NS` for never.
        tagged_expire_after_ns: The same by tag of the run, `name` or `name=value`; the shortest that fits holds.
        strip_after_ns: Nanoseconds after the save at which what no rule keeps is kept without its optimizer state, in
            the cold tier; never if `None`.
        hot_quota_bytes: Bytes on the hot disk above which also what a rule keeps is demoted, the oldest first.
        min_free: Bytes of the hot disk that stay free by the same means, or below 1 their share of it; see `on_disk`.
        run: The run whose rules these are: over the checkpoints of others they delete and strip nothing. `None` where
            they are meant for all.
        keep_hot: So many of the newest complete checkpoints never leave the hot disk, >= 1.

    Raises:
        ConfigError: If a value cannot be used.
    """

    keep: Rule | None = None
    demote: Literal["rest", "none"] = "rest"
    expire_after_ns: int | None = None
    failed_expire_after_ns: int | None = None
    tagged_expire_after_ns: Mapping[str, int] = field(default_factory=dict)
    strip_after_ns: int | None = None
    hot_quota_bytes: int | None = None
    min_free: int | float | None = None
    run: str | None = None
    keep_hot: int = 1

    def __post_init__(self) -> None:
        if self.demote not in ("rest", "none"):
            raise config_error(f"Retention(demote={self.demote!r}): expected 'rest' or 'none'.")
        for option in ("expire_after_ns", "failed_expire_after_ns", "strip_after_ns", "hot_quota_bytes", "min_free"):
            value = getattr(self, option)
            if value is not None and value < 0:
                raise config_error(f"Retention({option}={value!r}): expected at least 0.")
        if any(life < 0 for life in self.tagged_expire_after_ns.values()):
            raise config_error(
                f"Retention(tagged_expire_after_ns={self.tagged_expire_after_ns!r}): expected at least 0."
            )
        if self.keep_hot < 1:
            raise config_error(f"Retention(keep_hot={self.keep_hot!r}): expected at least 1.")

    def on_disk(self, history: History, free_bytes: int, total_bytes: int) -> Retention:
        """The same on a hot disk as full as it is: what is to stay free becomes a quota.

        Args:
            history: Every known checkpoint.
            free_bytes: Bytes of the hot disk that are free now.
            total_bytes: All its bytes.
        """
        floor = self.min_free or 0
        quota = quota_within(
            round(floor * total_bytes) if floor < 1 else int(floor),
            free_bytes=free_bytes,
            hot_bytes=sum(c.size_bytes or 0 for c in history.checkpoints if c.tier != "cold"),
            hot_quota_bytes=self.hot_quota_bytes,
        )
        return replace(self, hot_quota_bytes=quota)

    def life_ns(self, c: Checkpoint, failed: bool) -> int | None:
        """How long after its save what no rule keeps lives, for ever if `None`.

        Args:
            c: The checkpoint.
            failed: Whether its run ended in failure.
        """
        of_failed = failed and self.failed_expire_after_ns is not None
        lives = [self.failed_expire_after_ns if of_failed else self.expire_after_ns]
        for tag, life_ns in self.tagged_expire_after_ns.items():
            name, equals, value = tag.partition("=")
            if name in c.tags and (not equals or c.tags[name] == value):
                lives.append(life_ns)
        shortest = min((life for life in lives if life is not None), default=FOR_EVER_NS)
        return None if shortest >= FOR_EVER_NS else shortest

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back, the rules as the text that `costguard.keep.parse` reads.

        Raises:
            ConfigError: If a rule is one of the user's own, which no text can say.
        """
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["tagged_expire_after_ns"] = dict(self.tagged_expire_after_ns)
        if self.keep is not None:
            data["keep"] = self.keep.label
            if list(parse(self.keep.label).parts()) != list(self.keep.parts()):
                raise config_error(f"Retention(keep={self.keep.label}): a rule of one's own cannot be written down.")
        return {"v": VERSION, **data}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Retention:
        """Read what `to_json` wrote.

        Raises:
            CostguardError: If it is damaged or of a newer costguard.
        """
        try:
            given = dict(data)
            if given.pop("v") != VERSION or not set(given) <= {f.name for f in fields(Retention)}:
                raise CostguardError("the rules written down are of a newer costguard; use that, or give rules anew.")
            keep = given.pop("keep", None)
            return Retention(keep=None if keep is None else parse(keep), **given)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise CostguardError(f"the rules written down cannot be read ({error}); give rules anew.") from error


def quota_within(
    min_free_bytes: int, *, free_bytes: int, hot_bytes: int, hot_quota_bytes: int | None = None
) -> int | None:
    """The quota of the hot disk that leaves so much of it free.

    Args:
        min_free_bytes: Bytes that are to be free when all has moved.
        free_bytes: Bytes free now.
        hot_bytes: Bytes of the checkpoints that are there now.
        hot_quota_bytes: The user's own quota, `None` for none.

    Returns:
        The quota, the user's own where that is smaller or enough is free already.
    """
    if free_bytes >= min_free_bytes:
        return hot_quota_bytes
    allowed = max(0, hot_bytes + free_bytes - min_free_bytes)
    return allowed if hot_quota_bytes is None else min(allowed, hot_quota_bytes)
