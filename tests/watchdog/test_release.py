"""Watches beside trainings, all real processes: the command is run or not, and the time until then is paid."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from light_training import DEVICES
from watching import Place, posted, tell, wait_until

from costguard import load_receipt
from costguard.clock import is_alive, process_start_ns
from helpers import receipt_of


def _ended(place: Place, how: str, **orders: Any) -> None:
    """A watched training that ended, and its watch with it."""
    process = place.train()
    pid = place.watch(process, **orders)
    if how == "killed":
        process.kill()
        process.wait()
    else:
        tell(process, how)
    place.gone(pid)


@pytest.mark.parametrize(
    ("how", "when"), [("breach", "breach"), ("killed", "crash"), ("fail", "crash"), ("end", "end")]
)
def test_the_command_runs_after_the_ending_it_is_for(place: Place, how: str, when: str) -> None:
    """A stop by budget, a death, an exception, an end in order: each runs the command that was ordered for it."""
    _ended(place, how, when=[when], command=f'echo "$COSTGUARD_ENDED" > {place.done}')
    assert place.done.read_text() == f"{when}\n"
    assert place.verdicts() == ["released"]


@pytest.mark.parametrize(
    ("how", "when"),
    [
        ("end", ["breach", "crash", "stall"]),
        ("killed", ["breach", "end", "stall"]),
        ("breach", ["crash", "end", "stall"]),
        ("interrupt", ["breach", "crash", "end", "stall"]),
    ],
)
def test_the_command_does_not_run_after_other_endings(place: Place, how: str, when: list[str]) -> None:
    """Nothing is run, metered or alerted for what was not ordered; Ctrl-C is no ending at all, somebody is there."""
    _ended(place, how, when=when)
    assert not place.done.exists()
    assert place.account().attempts == [1]
    assert "nothing is to be done" in place.log()


def test_time_until_the_release_is_idle_and_paid(place: Place) -> None:
    """All paid devices are idle from the end of the training to the release, in an attempt that adds up in money."""
    begin = time.monotonic()
    _ended(place, "end", when=["end"], command="sleep 0.5")
    seen_s = time.monotonic() - begin
    receipt = receipt_of(place.root)
    first, second = receipt["run"]["attempts"]
    idle_ns = receipt["time"]["activities_ns"]["idle"] - (DEVICES - 1) * first["elapsed_device_ns"] // DEVICES
    assert idle_ns == second["elapsed_device_ns"]
    assert 0.8 * DEVICES <= idle_ns / 1e9 <= seen_s * DEVICES
    assert float(receipt["spend"]["by_activity"]["idle"]) >= 0.8 * DEVICES
    assert (second["ended"], second["releases"], first["releases"]) == ("closed", 1, None)
    text = load_receipt(str(place.root)).text()
    assert "idle until the machine was given back" in text
    assert "\nlog (release): The machine was given back" in text
    assert receipt["time"]["released_s"] < 0.1


def test_no_second_of_a_killed_training_is_lost_or_paid_twice(place: Place) -> None:
    """From the begin of the training to the release each device is paid once, over a kill."""
    process = place.train()
    begin_ns = process_start_ns(process.pid)
    pid = place.watch(process, when=["crash"])
    process.kill()
    process.wait()
    place.gone(pid)
    last = place.account().ranks[-1]
    assert begin_ns is not None
    assert receipt_of(place.root)["time"]["elapsed_device_ns"] == DEVICES * (last.final.at_ns - begin_ns)


def test_a_checkpoint_on_this_disk_alone_refuses(place: Place, tmp_path: Path, webhook: Any) -> None:
    """The newest checkpoint would die with the disk: told in the log, the journal and the webhook, metered, not run."""
    checkpoint = tmp_path / "last.ckpt"
    checkpoint.write_bytes(b"weights")
    process = place.train(checkpoint=checkpoint)
    url, bodies = webhook
    pid = place.watch(process, webhook=url)
    tell(process, "breach")
    wait_until(lambda: place.log().count("on_stop is not run") >= 3)
    assert is_alive(pid)
    assert not place.done.exists()
    assert place.verdicts() == ["unsafe_checkpoint"]
    (alert,) = posted(bodies)
    assert (alert["kind"], alert["action"], alert["reason"]) == ("release", "alert", "unsafe_checkpoint")
    assert str(checkpoint) in alert["message"]
    assert "$14,400.00 an hour" in alert["message"]
    receipt = receipt_of(place.root)
    assert receipt["run"]["state"] == "running"
    assert receipt["time"]["activities_ns"]["idle"] > 0
    os.kill(pid, signal.SIGTERM)
    place.gone(pid)
    assert place.account().ranks[-1].reason == "the watch ended before the machine was given back"


def test_a_disk_that_survives_is_released(place: Place, tmp_path: Path) -> None:
    """The user's word that the disk outlives the machine is enough."""
    checkpoint = tmp_path / "last.ckpt"
    checkpoint.write_bytes(b"weights")
    process = place.train(checkpoint=checkpoint)
    pid = place.watch(process, disk_survives=True)
    tell(process, "breach")
    place.gone(pid)
    assert place.done.exists()


def test_a_refused_command_runs_when_the_reason_is_gone(place: Place, tmp_path: Path) -> None:
    """Whoever moved the checkpoint away need do nothing else."""
    checkpoint = tmp_path / "last.ckpt"
    checkpoint.write_bytes(b"weights")
    process = place.train(checkpoint=checkpoint)
    pid = place.watch(process)
    tell(process, "breach")
    wait_until(lambda: "on_stop is not run" in place.log())
    checkpoint.unlink()
    place.gone(pid)
    assert place.done.exists()
    assert place.verdicts() == ["unsafe_checkpoint", "released"]


def test_a_command_that_fails_is_tried_again_and_told(place: Place, webhook: Any) -> None:
    """Exit code 3 twice, then success: one alert, its output in the log, all the time until then idle and paid."""
    url, bodies = webhook
    tries = place.root / "tries"
    command = f'echo "no quota"; echo x >> {tries}; [ $(wc -l < {tries}) -ge 3 ] || exit 3'
    _ended(place, "breach", command=command, webhook=url)
    assert tries.read_text() == "x\n" * 3
    assert place.verdicts() == ["command_failed", "released"]
    assert ["exit code 3" in alert["message"] for alert in posted(bodies)] == [True]
    assert place.log().splitlines().count("no quota") == 3
    assert command not in place.log()
    receipt = receipt_of(place.root)
    assert receipt["run"]["attempts"][1]["elapsed_device_ns"] >= (0.3 + 0.2 + 0.4) * DEVICES * 1e9


def test_a_command_that_hangs_is_ended_and_tried_again(place: Place) -> None:
    """It is ended with all that it has started when its time is up."""
    started = place.root / "started"
    process = place.train()
    pid = place.watch(process, command=f"echo $$ >> {started}; sleep 1000 & wait", command_cap_s=0.2)
    tell(process, "breach")
    wait_until(lambda: place.log().count("not done in 0.2 s") >= 2)
    first = int(started.read_text().splitlines()[0])
    assert not is_alive(first)
    os.kill(pid, signal.SIGTERM)
    place.gone(pid)


def test_a_restart_within_the_grace_keeps_the_machine(place: Place) -> None:
    """A launcher starts the training again: the new one looks after the machine, and nothing is metered twice."""
    first = place.train()
    pid = place.watch(first, when=["crash"], grace_s=30)
    first.kill()
    first.wait()
    second = place.train()
    place.gone(pid)
    assert second.poll() is None
    assert not place.done.exists()
    assert place.account().attempts == [1, 2]
    assert "attempt 2 was begun" in place.log()


def test_a_restart_that_is_refused_leaves_the_machine_to_the_first_watch(place: Place) -> None:
    """An attempt that never trained has no watch of its own: the command runs when it has ended too."""
    process = place.train()
    pid = place.watch(process, when=["breach"], grace_s=1)
    tell(process, "breach")
    code = "import sys, light_training as l; l.begin(sys.argv[1], 'r', train=False)[1].close('StartRefused', 0)"
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", code, str(place.root)], check=True, env=here)
    place.gone(pid)
    assert place.done.exists()
    assert place.account().trainings == [1, 2]
    receipt_of(place.root)


def test_a_training_begun_while_the_command_fails_ends_the_idle_time(place: Place) -> None:
    """Somebody uses the machine again: idle time ends where the new attempt begins, and the command is not run."""
    process = place.train()
    pid = place.watch(process, command="false")
    tell(process, "breach")
    wait_until(lambda: "on_stop failed" in place.log())
    again = place.train()
    place.gone(pid)
    account = place.account()
    idle, second = account.ranks[1], account.ranks[2]
    assert idle.final.at_ns == second.start_ns
    assert again.poll() is None
    receipt_of(place.root)


def test_another_run_on_the_machine_is_waited_for(place: Place) -> None:
    """The machine is not taken from a second training in the same folder; its time is not idle for the first."""
    other = place.train("other")
    process = place.train()
    pid = place.watch(process)
    tell(process, "breach")
    wait_until(lambda: "run 'other' works on this machine" in place.log())
    assert not place.done.exists()
    tell(other, "end")
    place.gone(pid)
    assert place.done.exists()
    assert place.account().ranks[-1].start_ns == place.account("other").ranks[0].final.at_ns


def test_idle_time_reaches_the_mirror(place: Place) -> None:
    """The disk dies with the machine: the store has the training, its end, and the time until the release."""
    url = (place.root / "mirror").as_uri()
    _ended(place, "breach", mirror=f"{url}/r")
    assert (
        load_receipt(url).data["run"]["attempts"] == load_receipt(str(place.root / "costguard")).data["run"]["attempts"]
    )


def test_decisions_that_cannot_be_read_are_told(place: Place, webhook: Any) -> None:
    """How the run ended is unknown then: nothing is run, and somebody hears of it."""
    process = place.train()
    url, bodies = webhook
    pid = place.watch(process, when=["breach", "crash", "end"], webhook=url)
    (place.folder() / "control-0001.json").write_text("{")
    tell(process, "end")
    place.gone(pid)
    assert not place.done.exists()
    assert [alert["reason"] for alert in posted(bodies)] == ["unknown"]


def test_a_watch_that_breaks_is_told(place: Place, webhook: Any) -> None:
    """Whatever went wrong in it, somebody must now do by hand what it does not: here it cannot even wait."""
    url, bodies = webhook
    pid = place.watch(place.train(), webhook=url, poll_s=-1)
    place.gone(pid)
    assert [alert["reason"] for alert in posted(bodies)] == ["broken"]
    assert "Traceback" in place.log()


def test_the_watch_is_a_process_of_its_own(place: Place) -> None:
    """Child of nobody, in another session, holding nothing of whoever started it."""
    process = place.train()
    pid = place.watch(process)
    wait_until(lambda: os.getsid(pid) == os.getpgid(pid) == pid)

    def held() -> set[str]:
        return {os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}

    wait_until(lambda: held() == {"/dev/null", str(place.folder() / "release.log")})
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent not in (process.pid, os.getpid())


def test_the_watch_knows_no_torch() -> None:
    """It lives as long as the machine, so it must be light."""
    code = "import sys, costguard.watchdog.__main__; sys.exit(bool({'torch', 'lightning', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"surprise": 1}'])
def test_orders_that_are_none_are_refused(text: str) -> None:
    """One sentence and exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "costguard.watchdog"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("costguard.watchdog: expected orders")
    assert len(done.stderr.splitlines()) == 1


def test_a_log_that_cannot_be_written_stops_nothing(place: Place) -> None:
    """The command is run all the same, its output dropped."""
    (place.folder() / "release.log").mkdir(parents=True)
    process = place.train()
    pid = place.watch(process, command=f"echo lost; touch {shlex.quote(str(place.done))}")
    tell(process, "breach")
    place.gone(pid)
    assert place.done.exists()
