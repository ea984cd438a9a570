"""Which of a machine's GPUs this process may use, by the rules of `CUDA_VISIBLE_DEVICES`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_REMEDY = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the devices by UUID in CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Card:
    """One card as NVML lists it.

    Args:
        uuid: `GPU-...`.
        name: The model, `None` if unknown.
        bus: PCI bus id in fixed width, so that its text sorts as the bus does; `None` if unknown.
        slices: UUIDs of its MIG devices, `None` if it is not in MIG mode.
    """

    uuid: str
    name: str | None = None
    bus: str | None = None
    slices: tuple[str, ...] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """What CUDA computes on: the card, or its slices."""
        return (self.uuid,) if self.slices is None else self.slices


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some devices, and what is not known about the others.

    Args:
        uuids: The devices.
        unknown: Why they are not all known, with the remedy; `None` if they are.
    """

    uuids: tuple[str, ...]
    unknown: str | None = None


def visible_devices(cards: Sequence[Card], environ: Mapping[str, str], *, complete: bool = True) -> Chosen:
    """Which devices CUDA shows to a process with these environment variables.

    Args:
        cards: The cards that this process may open.
        environ: With `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`, if set.
        complete: Whether these are all; a card that cannot be opened makes it unclear whom a number means.

    Returns:
        The devices; none, and why, where it would be a guess, since a wrong one shows another job's GPU.

    Source:
        CUDA programming guide 13, 5.2: indices or (shortened) UUIDs, a list ends at its first invalid entry, an empty
        one shows nothing. One that repeats an entry shows nothing: `torch.cuda._parse_visible_devices`, torch 2.13.
    """
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return Chosen(tuple(part for card in cards for part in card.parts))
    words = [word.strip() for word in asked.split(",")]
    if words[0].startswith("MIG-"):
        return Chosen(_starting(words, [part for card in cards for part in card.slices or ()]))
    if words[0].startswith("GPU-"):
        by_uuid = {card.uuid: card for card in cards}
        return _whole([by_uuid[uuid] for uuid in _starting(words, list(by_uuid))])
    return _numbered(cards, _indices(words), environ.get("CUDA_DEVICE_ORDER"), complete)


def named_devices(cards: Sequence[Card], uuids: Sequence[str]) -> Chosen:
    """Find devices by their UUIDs, with or without NVML's prefix (torch leaves it out)."""
    known = {_bare(uuid): uuid for card in cards for uuid in (card.uuid, *(card.slices or ()))}
    missing = [uuid for uuid in uuids if _bare(uuid) not in known]
    found = dict.fromkeys(known[_bare(uuid)] for uuid in uuids if _bare(uuid) in known)
    return Chosen(tuple(found), f"NVML does not know {', '.join(missing)}" if missing else None)


def _bare(uuid: str) -> str:
    return re.sub(r"^(GPU-|MIG-)", "", uuid.strip()).lower()


def _starting(words: Sequence[str], uuids: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for word in words:
        matches = [uuid for uuid in uuids if uuid.startswith(word) and word.startswith(uuid[:4])]
        if len(matches) != 1:
            break
        found += matches
    return tuple(found) if len(set(found)) == len(found) else ()


def _indices(words: Sequence[str]) -> list[int]:
    found: list[int] = []
    for word in words:
        number = re.match(r"[+-]?\d+", word)
        if number is None or int(number[0]) < 0:
            break
        found.append(int(number[0]))
    return found if len(set(found)) == len(found) else []


def _numbered(cards: Sequence[Card], indices: Sequence[int], order: str | None, complete: bool) -> Chosen:
    end = next((at for at, index in enumerate(indices) if index >= len(cards)), len(indices))
    if not indices[:end]:
        return Chosen(())
    unclear = _unclear(cards, order, everything=end == len(cards), complete=complete)
    if unclear:
        return Chosen((), unclear)
    by_slot = sorted(cards, key=lambda card: card.bus or "")
    return _whole([by_slot[index] for index in indices[:end]])


def _unclear(cards: Sequence[Card], order: str | None, *, everything: bool, complete: bool) -> str | None:
    """Why it is not known whom CUDA's numbers mean."""
    if not complete:
        return f"a GPU cannot be opened, so it is unclear whom CUDA's numbers mean; {_REMEDY}"
    if len(cards) > 1 and any(card.slices is not None for card in cards):
        return "CUDA numbers cards beside MIG slices in an order of its own; name the devices by UUID"
    if everything:
        return None
    if any(card.bus is None for card in cards):
        return "NVML does not say in which slots the GPUs sit; name the devices by UUID"
    if order != "PCI_BUS_ID" and len({card.name for card in cards}) > 1:
        return f"CUDA puts the fastest of different GPUs first, and NVML does not know which; {_REMEDY}"
    return None


def _whole(cards: Sequence[Card]) -> Chosen:
    if any(card.slices is not None and len(card.slices) != 1 for card in cards):
        return Chosen((), "CUDA uses one slice of a card in MIG mode, and which is not known; name it as MIG-<uuid>")
    return Chosen(tuple(part for card in cards for part in card.parts))
