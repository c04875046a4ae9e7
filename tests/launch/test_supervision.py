"""Several launchers under one roof, with small stand-ins for them."""

import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from syncline.launch import supervision
from syncline.launch.node_task import EXIT_FAILED
from syncline.launch.stopping import holding_stop_signals
from syncline.launch.supervision import supervise


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(supervision, "FAILURE_GRACE_S", 0.5)
    monkeypatch.setattr(supervision, "KILL_GRACE_S", 0.5)
    with ExitStack() as stack:

        def run(*scripts, has_failed=lambda: False, stop_timeout_s=0.5):
            commands = [["sh", "-c", script] for script in scripts]
            launchers = [stack.enter_context(subprocess.Popen(command)) for command in commands]
            start = time.monotonic()
            try:
                ending = supervise(launchers, has_failed, stop_timeout_s=stop_timeout_s)
            finally:
                for launcher in launchers:
                    launcher.kill()
            assert time.monotonic() - start < 10
            return ending

        yield run


def test_all_end_well(run):
    ending = run("sleep 0.1", "true")
    assert (ending.exit_codes, ending.signal_number, ending.dead_node) == ([0, 0], None, None)


def test_a_failed_node_ends_the_others(run):
    ending = run("exec sleep 60", f"sleep 0.1; exit {EXIT_FAILED}")
    assert (ending.exit_codes, ending.dead_node) == ([-signal.SIGTERM, EXIT_FAILED], None)


def test_a_failed_rank_ends_all_nodes(run):
    ending = run("exec sleep 60", "exec sleep 60", has_failed=lambda: True)
    assert ending.exit_codes == [-signal.SIGTERM] * 2


def test_a_deaf_launcher_is_killed(run):
    ending = run("trap '' TERM; while :; do sleep 0.1; done", "sleep 0.3; exit 70")
    assert ending.exit_codes == [-signal.SIGKILL, EXIT_FAILED]


def test_a_launcher_that_dies_is_named(run):
    ending = run("exec sleep 60", "sleep 0.1; kill -9 $$")
    assert (ending.dead_node, ending.exit_codes) == (1, [-signal.SIGTERM, -signal.SIGKILL])
    assert abs(ending.death_time_s - time.time()) < 10


def test_a_launcher_gets_a_second_signal_before_it_is_killed(run):
    script = "trap 'trap \"exit 4\" TERM' TERM; while :; do sleep 0.1; done"
    assert run(script, "sleep 0.3; exit 70").exit_codes == [4, EXIT_FAILED]


@pytest.mark.usefixtures("_handlers_come_back")
def test_signals_are_passed_on(run):
    ending = run(
        "trap 'exit 3' INT; sleep 0.5; kill -INT $PPID; while :; do sleep 0.1; done",
        "exec sleep 60",
        stop_timeout_s=8,
    )
    assert (ending.signal_number, ending.exit_codes) == (signal.SIGINT, [3, -signal.SIGINT])


def test_a_stop_signal_waits_until_a_starting_launcher_handles_it():
    """Python itself would answer it with a traceback on the user's screen."""
    code = (
        "import time\nprint('up', flush=True)\ntime.sleep(0.5)\n"
        "from syncline.launch.stopping import stop_signals\n"
        "with stop_signals(lambda number: print(number), lambda: None):\n    time.sleep(0.1)\n"
    )
    command = [sys.executable, "-c", code]
    with holding_stop_signals():
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        launcher.send_signal(signal.SIGINT)
        told, _ = launcher.communicate(timeout=60)
    assert told == f"{signal.SIGINT.value}\n"
    assert launcher.returncode == 0
