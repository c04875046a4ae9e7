"""Ranks on this machine: what they get, how they fail, how they are stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from syncline.errors import ConfigError, DataError, RankFailedError
from syncline.launch.local import launch_local
from syncline.launch.stopping import LaunchStopped

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _programs_importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def launch(program, argument, tmp_path, **options):
    launch_local(f"rank_programs:{program}", str(argument), ranks=2, logs=tmp_path / "logs", **options)


def wait_for(*paths, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not all(path.exists() and path.read_text() for path in paths):
        assert time.monotonic() < end, f"{paths} did not appear"
        time.sleep(0.05)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_dead(pids, timeout_s=10):
    end = time.monotonic() + timeout_s
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < end, f"{alive} still live"
        time.sleep(0.05)


def test_ranks_get_their_variables_and_can_talk(tmp_path):
    before = dict(os.environ)
    launch("note_and_sum", tmp_path, tmp_path)
    assert (tmp_path / "sum-0").read_text() == (tmp_path / "sum-1").read_text() == "1.0"
    threads = os.environ.get("OMP_NUM_THREADS", max(1, len(os.sched_getaffinity(0)) // 2))
    assert (tmp_path / "seen-1").read_text() == f"1 2 1 {threads} lo"
    assert dict(os.environ) == before
    assert not list(tmp_path.glob("logs/*.error.json"))


def test_rank_0_keeps_the_terminal_and_the_others_write_logs(tmp_path, capfd):
    launch("write", "$$ is kept", tmp_path)
    launch("write", "$$ is kept", tmp_path)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(["out of rank 0: $$ is kept", "child of rank 0"] * 2)
    assert err == "err of rank 0\n" * 2
    lines = [line for line in (tmp_path / "logs/rank-1.log").read_text().splitlines() if "rank" in line]
    assert lines == ["out of rank 1: $$ is kept", "err of rank 1", "child of rank 1"] * 2


@pytest.mark.parametrize(
    ("kind", "error", "parts"),
    [
        ("raise", RankFailedError, ["Rank 1 raised ValueError: too many cooks", "in fail_now", "rank-1.log"]),
        ("kill", RankFailedError, ["Rank 1 was killed by SIGKILL: perhaps out of memory", "last words"]),
        ("exit", RankFailedError, ["Rank 1 ended with exit code 7", "rank-1.log"]),
        ("sysexit", RankFailedError, ["SystemExit: 5"]),
        ("known", DataError, ["no such corpus"]),
    ],
)
def test_the_first_failing_rank_is_reported(tmp_path, capfd, kind, error, parts):
    with pytest.raises(error) as caught:
        launch("fail", kind, tmp_path)
    assert type(caught.value) is error
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    if isinstance(caught.value, RankFailedError):
        assert (caught.value.rank, caught.value.exit_code) == (
            1,
            {"kill": -9, "exit": 7, "sysexit": 5}.get(kind, 1),
        )
    assert capfd.readouterr() == ("", "")


def test_ranks_deaf_to_sigterm_end_with_the_first_failure(tmp_path):
    start = time.monotonic()
    with pytest.raises(DataError):
        launch("fail", "known+deaf", tmp_path)
    assert time.monotonic() - start < 25


def test_an_error_of_rank_0_is_in_its_log(tmp_path, capfd):
    with pytest.raises(RankFailedError, match="head cook is ill"):
        launch("fail_first_rank", "", tmp_path)
    assert "ValueError: head cook is ill" in (tmp_path / "logs/rank-0.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_restart(tmp_path):
    launch("fail_once", tmp_path, tmp_path, max_restarts=1)
    assert len(list(tmp_path.glob("attempt-*"))) == 4
    log = (tmp_path / "logs/rank-1.log").read_text()
    assert log.index("attempt 0") < log.index("only the first time") < log.index("attempt 1")


def test_the_last_restart_is_reported(tmp_path):
    with pytest.raises(RankFailedError, match="Rank 1 raised ValueError: attempt 1"):
        launch("fail_always", "", tmp_path, max_restarts=1)


def test_no_rank_at_all(tmp_path):
    with pytest.raises(ConfigError, match="0 ranks"):
        launch_local("rank_programs:note", "", ranks=0, logs=tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_lets_ranks_save(tmp_path, number):
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)]

    def stop():
        wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(LaunchStopped) as caught:
        launch("save_when_stopped", tmp_path, tmp_path)
    thread.join()
    assert caught.value.signal_number == number
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in (0, 1)] == [number.name] * 2
    assert handlers == [
        signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    ]


def test_a_second_signal_kills(tmp_path):
    def stop():
        wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    thread = threading.Thread(target=stop)
    thread.start()
    start = time.monotonic()
    with pytest.raises(LaunchStopped):
        launch("never_stop", tmp_path, tmp_path)
    thread.join()
    assert time.monotonic() - start < 20


def test_ranks_die_with_a_killed_launcher(tmp_path):
    code = (
        "from pathlib import Path\n"
        "from syncline.launch.local import launch_local\n"
        f"folder = {str(tmp_path)!r}\n"
        "launch_local('rank_programs:never_stop', folder, ranks=2, logs=Path(folder))\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(HERE)})
    ready = [tmp_path / "ready-0", tmp_path / "ready-1"]
    wait_for(*ready)
    pids = [int(path.read_text()) for path in ready]
    launcher.kill()
    launcher.wait()
    wait_dead(pids)
