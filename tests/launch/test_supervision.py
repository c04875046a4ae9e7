"""Several launchers under one roof, with small stand-ins for them."""

import signal
import subprocess
import time
from contextlib import ExitStack

import pytest

from syncline.launch import supervision
from syncline.launch.node_task import EXIT_FAILED
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
def test_an_interrupt_ends_launchers_without_one_of_their_own(run):
    """A launcher that is still being imported would answer SIGINT with a traceback on the user's screen."""
    ending = run(
        "trap 'exit 3' TERM; sleep 0.5; kill -INT $PPID; while :; do sleep 0.1; done",
        "exec sleep 60",
        stop_timeout_s=8,
    )
    assert (ending.signal_number, ending.exit_codes) == (signal.SIGINT, [3, -signal.SIGTERM])
