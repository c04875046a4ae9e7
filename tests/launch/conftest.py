"""What the tests of launchers share: programs for ranks, and looking at processes."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent


@pytest.fixture(autouse=True)
def _programs_importable(monkeypatch):
    monkeypatch.syspath_prepend(PROGRAMS)


@pytest.fixture
def program_environment():
    """For a launcher that runs in a process of its own."""
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(PROGRAMS), given)))}


class Ready:
    """Waits for ranks that run a program which says that it is ready, and signals this process."""

    def __init__(self, folder):
        self._files = [folder / f"ready-{rank}" for rank in (0, 1)]

    def wait(self, timeout_s=60):
        end = time.monotonic() + timeout_s
        while not all(path.exists() and path.read_text() for path in self._files):
            assert time.monotonic() < end, "the ranks did not get ready"
            time.sleep(0.05)
        return [int(path.read_text()) for path in self._files]

    def then_signal(self, *numbers):
        def run():
            self.wait()
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(1)

        thread = threading.Thread(target=run)
        thread.start()
        return thread


@pytest.fixture
def ready(tmp_path):
    return Ready(tmp_path)


@pytest.fixture
def _handlers_come_back():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert before == [signal.getsignal(number) for number in numbers]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def expect_dead():
    def wait(pids, timeout_s=10):
        end = time.monotonic() + timeout_s
        while alive := [pid for pid in pids if is_alive(pid)]:
            assert time.monotonic() < end, f"{alive} still live"
            time.sleep(0.05)

    return wait


@pytest.fixture
def descendants():
    """The processes that descend from one, by the kernel's list."""

    def collect(pid):
        found = []
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                found += [child, *collect(child)]
        return found

    return collect
