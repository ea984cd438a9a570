"""Run a watch with `python -m costguard.watchdog`: orders as JSON on standard input, its process id on standard output.

The process that reads the orders ends at once; the watch goes on as a child of nobody, so that neither the training
nor what started it waits for it, and a signal to them is none to it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Any, NoReturn

from costguard.errors import ConfigError
from costguard.watchdog.orders import Orders
from costguard.watchdog.release import LOG_NAME, Release, say


def main() -> int:
    """Read the orders and leave a watch behind.

    Returns:
        Exit code: 0, or 2 if the orders cannot be used.
    """
    try:
        orders = Orders.from_json(sys.stdin.read())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    child = os.fork()
    if child:
        print(child, flush=True)
        return 0
    _watch(orders)


def _watch(orders: Orders) -> NoReturn:
    log = os.path.join(orders.folder, LOG_NAME)
    code, release = 1, Release(orders)
    try:
        _let_go(log)
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        release.run()
        code = 0
    except SystemExit:
        say(log, "the watch was ended from outside; on_stop is not run.")
    except BaseException as error:  # nobody else would hear of it
        release.broke(error)
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _let_go(log: str) -> None:
    """Hold nothing of whoever started this: no session, whose end would send a signal, and no descriptor."""
    os.setsid()
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        out = os.open(os.devnull, os.O_WRONLY)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(out)
    os.close(empty)


def _end(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
