"""What a watch is told to do, as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import get_args

from costguard.errors import config_error
from costguard.watchdog.ending import When

WHENS: tuple[str, ...] = get_args(When)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """What a watch is told.

    Args:
        folder: The run's folder.
        attempt: The attempt to watch.
        pid: The training process (of global rank 0).
        pid_start: When it was created, as `costguard.clock.process_start_ns` says; `None` where nothing says.
        command: Shell command that gives the machine back.
        when: Endings after which it is run.
        disk_survives: The user's word that the disk outlives the machine.
        webhook: URL to which alerts are posted as JSON.
        mirror: URL of the run's folder on a store, to which the journal is copied.
        grace_s: How long a launcher may take to start the training again.
        poll_s: Time between two looks.
        pause_s: Pause after the first try that failed; each one is twice as long as the one before.
        longest_pause_s: The longest one.
        command_cap_s: How long the command may take.
        remind_s: Time after which the same alert is given again.
    """

    folder: str
    attempt: int
    pid: int
    pid_start: int | None
    command: str
    when: Sequence[str] = ("breach",)
    disk_survives: bool = False
    webhook: str | None = None
    mirror: str | None = None
    grace_s: float = 120.0
    poll_s: float = 2.0
    pause_s: float = 10.0
    longest_pause_s: float = 600.0
    command_cap_s: float = 600.0
    remind_s: float = 3600.0

    def to_json(self) -> str:
        """JSON that `from_json` reads back."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Orders:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: If it cannot be used.
        """
        try:
            orders = Orders(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise config_error(f"costguard.watchdog: expected orders as one JSON object ({error}).") from None
        check_release("costguard.watchdog", orders.command, orders.when, ("command", "when"))
        return orders


def check_release(
    owner: str, command: str, when: Sequence[str], names: tuple[str, str] = ("on_stop", "on_stop_when")
) -> None:
    """Refuse a command or endings that cannot be used.

    Args:
        owner: Who was given them, for the error.
        command: Shell command.
        when: Endings.
        names: What the two are called there.

    Raises:
        ConfigError: With the remedy.
    """
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise config_error(
            f"{owner}({names[0]}={command!r}): expected a shell command that gives the machine back, such as "
            "'sudo poweroff'."
        )
    if isinstance(when, str) or not when or any(each not in WHENS for each in when):
        raise config_error(f"{owner}({names[1]}={when!r}): expected some of {', '.join(WHENS)}, such as ['breach'].")
