"""One of several processes that race on a pot: claims, spends, and writes each claim that it won beside it.

Usage: racing.py URL ENDPOINT OWN_FILE SEED
Ends when the pot is empty. What it has spent stands in OWN_FILE, flushed before the next claim, so that it is
known what a process did that was killed.
"""

from __future__ import annotations

import random
import sys
import time

import fsspec

from costguard.pots import Pot

PATIENCE_S = 300


def main(url: str, endpoint: str, own: str, seed: str) -> None:
    """Race until the pot is empty."""
    if endpoint:
        fsspec.config.conf["s3"] = {"endpoint_url": endpoint, "key": "testkey", "secret": "testsecret"}
    rng = random.Random(int(seed))
    pot = Pot.open(url, deadline_s=5)
    credit = pot.hold(f"run {seed}", burn_per_hour=1)
    ends = time.monotonic() + PATIENCE_S
    with open(own, "a", buffering=1) as log:
        print("holder", credit.holder, file=log)
        print("ready", flush=True)
        sys.stdin.readline()
        while time.monotonic() < ends:
            # Uneven parts, so that credit is left over and given back, for others to claim again.
            part = rng.choice(("1", "0.5", "0.123456789012"))
            if not credit.allows(part):
                outcome = credit.claim(1).outcome
                if outcome == "empty":
                    break
                if outcome == "away":
                    print("away", file=log)
                    time.sleep(0.2)
            if credit.allows(part):
                credit.spend(part)
                print("spent", part, file=log)
        print("refund", credit.refund(), file=log)


if __name__ == "__main__":
    main(*sys.argv[1:])
