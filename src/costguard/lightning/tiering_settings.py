"""What the user said to CheckpointTiering, checked once: where to, which rules, and how fast."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from costguard.checkpoints.cabinet import Cold
from costguard.checkpoints.manifest import Level
from costguard.errors import config_error
from costguard.keep import Rule, parse
from costguard.policies.retention import FOR_EVER_NS, Retention, Tiers
from costguard.prices.storage import StorageClass, storage_class
from costguard.units import parse_bytes, parse_duration_ns, parse_share

Demote = Literal["rest", "none"]
Verify = Literal["size", "etag", "content"]

BYTES_PER_S_PER_CORE: Final = 6e6
"""Default bandwidth of a demotion for each core that this process may use.

An S3 client takes 3 to 4 CPU-seconds for a GiB (`benchmarks/demotion.py`), so this is about 2% of the cores.
"""
MOST_BYTES_PER_S: Final = 200e6
"""Most of the default: beyond it the network of a machine is noticed: chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The arguments of `CheckpointTiering`, see there; plain data that goes along into copies and other processes."""

    cold: Cold
    retention: Retention
    tiers: Tiers
    finish_timeout: float


def default_bytes_per_s() -> float:
    """Bandwidth of demotions beside training, unless another one is given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_BYTES_PER_S, BYTES_PER_S_PER_CORE * cores)


def checked(
    *,
    cold: str | None,
    keep: Rule | str | None,
    demote: Demote,
    expire_after: str | None,
    on_failed_run: str | None,
    expire_tagged: Mapping[str, str] | None,
    strip_optimizer_after: str | None,
    hot_quota: str | float | None,
    min_free: str | float | None,
    storage_class: str | StorageClass | None,
    hot_class: str | StorageClass | None,
    verify: Verify,
    bandwidth: float | str,
    storage_options: Mapping[str, Any] | None,
    allow_plain_http: bool,
    finish_timeout: float,
) -> Settings:
    """Check every argument.

    Raises:
        ConfigError: With option, value and remedy of the first that cannot be used.
    """
    if cold is None and keep is None:
        raise config_error(
            "CheckpointTiering(cold=None, keep=None): nothing to do; name a cold store, such as "
            "cold='s3://bucket/run', and rules, such as keep=last(3)."
        )
    if keep is not None and not isinstance(keep, (Rule, str)):
        raise config_error(f"CheckpointTiering(keep={keep!r}): expected rules of costguard.keep, such as last(3).")
    given = {"expire_after": expire_after, "on_failed_run": on_failed_run, "expire_tagged": expire_tagged}
    more = {"strip_optimizer_after": strip_optimizer_after, "hot_quota": hot_quota, "min_free": min_free}
    _check_needs_rules(keep, {**given, **more})
    if not finish_timeout >= 0:
        raise config_error(f"CheckpointTiering(finish_timeout={finish_timeout!r}): expected seconds of at least 0.")
    if verify not in ("size", "etag", "content"):
        raise config_error(f"CheckpointTiering(verify={verify!r}): expected 'size', 'etag' or 'content'.")
    retention = Retention(
        keep=parse(keep) if isinstance(keep, str) else keep,
        demote=demote,
        expire_after_ns=_duration("expire_after", expire_after),
        failed_expire_after_ns=_of_failed(on_failed_run),
        tagged_expire_after_ns={str(tag): _life(tag, text) for tag, text in (expire_tagged or {}).items()},
        strip_after_ns=_duration("strip_optimizer_after", strip_optimizer_after),
        hot_quota_bytes=_bytes("hot_quota", hot_quota),
        min_free=_floor(min_free),
    )
    return Settings(
        cold=Cold(
            url=cold,
            storage_options=storage_options,
            storage_class=storage_class,
            bytes_per_s=_bandwidth(bandwidth),
            allow_plain_http=allow_plain_http,
            required=Level[verify.upper()],
        ),
        retention=retention,
        tiers=Tiers(
            hot=_class(hot_class),
            cold=_class(storage_class),
            has_cold=cold is not None and demote == "rest" and keep is not None,
        ),
        finish_timeout=finish_timeout,
    )


def _check_needs_rules(keep: object, given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if keep is None and value is not None:
            raise config_error(
                f"CheckpointTiering({option}={value!r}) without keep: say first what stays, such as keep=last(3), or "
                "keep=by_model_checkpoint() for what ModelCheckpoint keeps."
            )


def _duration(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise config_error(f"CheckpointTiering({option}={text!r}): {error}.") from None


def _life(tag: str, text: str) -> int:
    life_ns = _duration(f"expire_tagged[{tag!r}]", text)
    assert life_ns is not None
    return life_ns


def _of_failed(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "keep":
        return FOR_EVER_NS
    verb, _, rest = text.partition(" ") if isinstance(text, str) else ("", "", "")
    if verb != "expire":
        raise config_error(f"CheckpointTiering(on_failed_run={text!r}): expected 'keep' or such as 'expire 7d'.")
    return _duration("on_failed_run", rest)


def _bytes(option: str, value: str | float | None) -> int | None:
    if value is None:
        return None
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise config_error(f"CheckpointTiering({option}={value!r}): {error}.") from None


def _floor(value: str | float | None) -> int | float | None:
    """Bytes that are to stay free, or their share of the disk below 1."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return parse_share(value)
        except ValueError as error:
            raise config_error(f"CheckpointTiering(min_free={value!r}): {error}.") from None
    return _bytes("min_free", value)


def _bandwidth(value: float | str) -> float:
    if value == "auto":
        return default_bytes_per_s()
    found = _bytes("bandwidth", value)
    if not found:
        raise config_error(f"CheckpointTiering(bandwidth={value!r}): expected bytes a second above 0, or 'auto'.")
    return found


def _class(which: str | StorageClass | None) -> StorageClass | None:
    return None if which is None else storage_class(which)
