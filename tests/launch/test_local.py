"""Ranks on this machine: what they get, how they fail, how they are stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from syncline.errors import ConfigError, DataError, RankFailedError
from syncline.launch import watch
from syncline.launch.failures import first_failure
from syncline.launch.local import launch_local
from syncline.launch.stopping import LaunchStopped


def launch(program, argument, tmp_path, **options):
    launch_local(f"rank_programs:{program}", str(argument), ranks=2, logs=tmp_path / "logs", **options)


def seconds_since_failure(tmp_path):
    failure = first_failure(tmp_path / "logs")
    assert failure is not None
    return time.time() - failure.time_s


def test_ranks_get_their_variables_and_can_talk(tmp_path, capfd):
    before = dict(os.environ)
    launch("talk", f"{tmp_path} $$ ${{local_rank}}", tmp_path)
    assert (tmp_path / "sum-0").read_text() == (tmp_path / "sum-1").read_text() == "1.0"
    threads = os.environ.get("OMP_NUM_THREADS", max(1, len(os.sched_getaffinity(0)) // 2))
    assert (tmp_path / "seen-1").read_text() == f"1 2 1 {threads} lo"
    assert dict(os.environ) == before
    # Rank 0 keeps the terminal; the other one has both streams, and those of its children, in its log.
    assert capfd.readouterr() == ("out of rank 0: $$ ${local_rank}\nchild of rank 0\n", "err of rank 0\n")
    log = (tmp_path / "logs/rank-1.log").read_text().splitlines()
    assert log[1:] == ["out of rank 1: $$ ${local_rank}", "err of rank 1", "child of rank 1"]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]


@pytest.mark.parametrize(
    ("kind", "exit_code", "parts"),
    [
        ("raise", 1, ["Rank 1 raised ValueError: too many cooks", "in fail_now", "rank-1.log"]),
        ("kill", -9, ["Rank 1 was killed by SIGKILL: perhaps out of memory", "last words", "rank-1.log"]),
    ],
)
def test_the_first_failing_rank_is_reported(tmp_path, capfd, kind, exit_code, parts):
    with pytest.raises(RankFailedError) as caught:
        launch("fail", kind, tmp_path)
    assert seconds_since_failure(tmp_path) < 15
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert (caught.value.rank, caught.value.exit_code) == (1, exit_code)
    assert capfd.readouterr() == ("", "")


def test_an_error_of_rank_0_while_another_rank_is_deaf_to_sigterm(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(watch, "FAILURE_GRACE_S", 1.0)
    with pytest.raises(DataError, match="no such corpus") as caught:
        launch("fail_first_rank", "", tmp_path)
    assert seconds_since_failure(tmp_path) < 15
    assert "rank-0.log" in caught.value.__notes__[0]
    assert "DataError: no such corpus" in (tmp_path / "logs/rank-0.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_restart(tmp_path):
    launch("fail_once", tmp_path, tmp_path, max_restarts=1)
    assert len(list(tmp_path.glob("attempt-*"))) == 4
    log = (tmp_path / "logs/rank-1.log").read_text()
    assert log.index("restart 0") < log.index("last words") < log.index("restart 1")
    failure = first_failure(tmp_path / "logs", 0)
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (1, 7)


def test_no_rank_at_all(tmp_path):
    with pytest.raises(ConfigError, match="0 ranks"):
        launch_local("rank_programs:note", "", ranks=0, logs=tmp_path)


@pytest.mark.usefixtures("_handlers_come_back")
def test_a_stop_lets_ranks_save(tmp_path, ready):
    thread = ready.then_signal(signal.SIGINT)
    with pytest.raises(LaunchStopped) as caught:
        launch("save_when_stopped", tmp_path, tmp_path)
    thread.join()
    # Ranks that have saved end by themselves, long before they would be killed.
    saved = max((tmp_path / f"saved-{rank}").stat().st_mtime for rank in (0, 1))
    assert time.time() - saved < 15
    assert caught.value.signal_number == signal.SIGINT
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in (0, 1)] == ["SIGINT"] * 2


@pytest.mark.usefixtures("_handlers_come_back")
def test_a_second_signal_kills(tmp_path, ready):
    thread = ready.then_signal(signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(LaunchStopped):
        launch("never_stop", tmp_path, tmp_path, stop_timeout_s=1000)
    thread.join()


def test_an_interrupt_while_ranks_start_shows_no_traceback(tmp_path, descendants, program_environment):
    """Ctrl-C in a terminal goes to all processes, and Python answers it so until handlers are set."""
    code = (
        "from pathlib import Path\n"
        "from syncline.launch.local import launch_local\n"
        "from syncline.launch.stopping import LaunchStopped\n"
        "try:\n"
        f"    folder = {str(tmp_path)!r}\n"
        "    launch_local('rank_programs:never_stop', folder, ranks=2, logs=Path(folder))\n"
        "except LaunchStopped as stop:\n"
        "    print(stop)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code],
        env=program_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    with launcher:
        while sum(is_spawned(pid) for pid in descendants(launcher.pid)) < 2:
            assert launcher.poll() is None
            time.sleep(0.02)
        # By now Python has set its own handler in them, and imports what they need.
        time.sleep(0.3)
        os.killpg(launcher.pid, signal.SIGINT)
        told, _ = launcher.communicate(timeout=60)
    assert told == "stopped by SIGINT\n"


def is_spawned(pid):
    try:
        return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_ranks_die_with_a_killed_launcher(tmp_path, ready, expect_dead, program_environment):
    code = (
        "from pathlib import Path\n"
        "from syncline.launch.local import launch_local\n"
        f"folder = {str(tmp_path)!r}\n"
        "launch_local('rank_programs:never_stop', folder, ranks=2, logs=Path(folder))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=program_environment) as launcher:
        pids = ready.wait()
        launcher.kill()
    expect_dead(pids)
