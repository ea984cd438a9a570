"""Eight processes race on one pot, on a disk and on a real S3 server; some are killed, and the store goes away."""

from __future__ import annotations

import random
import time
from decimal import Decimal
from pathlib import Path

import pytest
from racers import Racer, assert_no_voucher_won_twice, racers

from costguard.pots import Pot, PotStatus
from costguard.pots.store import open_store
from servers import SeaweedServer, configured

PROCESSES = 8


def assert_closed(status: PotStatus) -> None:
    """What the pot promises about its figures."""
    assert status.claimed == status.spent + status.refunded + status.live
    assert status.spent <= status.limit
    assert status.claimed - status.refunded <= status.limit
    assert status.overspent == 0


def assert_all_is_spent(url: str, raced: list[Racer]) -> None:
    """Every racer ended by itself: the pot says what they say, and nothing that could be claimed is left."""
    status = Pot.open(url).status()
    assert_closed(status)
    assert_no_voucher_won_twice(open_store(url))
    assert status.spent == sum(each.spent for each in raced)
    assert (status.live, status.stranded, status.presumed) == (0, 0, 0)
    assert status.free == status.limit - status.spent
    assert status.free < 1 * PROCESSES, "what the last ones gave back"


def race(url: str, endpoint: str, folder: Path, limit: int) -> list[Racer]:
    """Let them empty the pot."""
    Pot.create(url, limit_usd=limit)
    with racers(url, endpoint, folder, PROCESSES) as raced:
        for each in raced:
            each.finish()
    return raced


def test_eight_processes_race_on_a_local_disk(tmp_path: Path) -> None:
    """200 dollars in vouchers of one: no voucher is won twice, and all is spent or given back."""
    url = str(tmp_path / "pot")
    assert_all_is_spent(url, race(url, "", tmp_path, 200))


@pytest.mark.slow
def test_eight_processes_race_on_2000_vouchers_on_a_local_disk(tmp_path: Path) -> None:
    """2,000 dollars in vouchers of one."""
    url = str(tmp_path / "pot")
    raced = race(url, "", tmp_path, 2000)
    assert_all_is_spent(url, raced)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_eight_processes_race_on_2000_vouchers_on_s3(tmp_path: Path, seaweed: SeaweedServer, seaweed_url: str) -> None:
    """2,000 dollars in vouchers of one, on a real S3 server."""
    raced = race(seaweed_url, seaweed.endpoint, tmp_path, 2000)
    assert_all_is_spent(seaweed_url, raced)


def assert_kept_after_kills(url: str, folder: Path, endpoint: str, limit: int, kills: int) -> None:
    """Kill racers at random instants; the rest empties the pot; sweeps with the truth give back what is left."""
    rng = random.Random(7)
    pot = Pot.create(url, limit_usd=limit, lease_s=1)
    with racers(url, endpoint, folder, PROCESSES) as raced:
        doomed = raced[:kills]
        for each in doomed:
            time.sleep(rng.uniform(0.05, 0.4))
            each.kill()
        for each in raced[kills:]:
            each.finish()
    before = pot.status()
    assert_closed(before)
    assert before.spent <= sum(each.spent for each in raced)
    assert before.live <= Decimal("0.02") * limit, "what the dead held, before anybody swept it"
    truth = {each.holder: each.spent for each in doomed}
    pot.sweep(lambda holder, run: truth.get(holder), dead=list(truth))
    after = pot.status()
    assert_closed(after)
    assert_no_voucher_won_twice(open_store(url))
    assert (after.live, after.stranded) == (0, 0)
    assert after.spent == sum(each.spent for each in raced)


def test_processes_killed_on_a_local_disk_strand_nothing(tmp_path: Path) -> None:
    """Five of eight are killed by SIGKILL while they race."""
    assert_kept_after_kills(str(tmp_path / "pot"), tmp_path, "", 500, 5)


@pytest.mark.slow
def test_processes_killed_on_s3_strand_nothing(tmp_path: Path, seaweed: SeaweedServer, seaweed_url: str) -> None:
    """Five of eight are killed by SIGKILL while they race on a real S3 server."""
    assert_kept_after_kills(seaweed_url, tmp_path, seaweed.endpoint, 500, 5)


@pytest.mark.slow
def test_a_store_that_is_killed_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    """The S3 server is killed twice in the middle of the race: racers wait, no claim is lost or doubled."""
    server = SeaweedServer(tmp_path / "server")
    server.start()
    try:
        with configured("s3", server.options):
            url = f"{server.bucket('tests')}/pot"
            Pot.create(url, limit_usd=400)
            with racers(url, server.endpoint, tmp_path, 4) as raced:
                for _ in range(2):
                    time.sleep(1.5)
                    server.kill()
                    time.sleep(2)
                    server.start()
                for each in raced:
                    each.finish()
            status = Pot.open(url).status()
            assert_closed(status)
            assert_no_voucher_won_twice(open_store(url))
            assert any(each.was_away for each in raced)
            assert status.spent == sum(each.spent for each in raced)
            assert status.live == 0
    finally:
        server.kill()
