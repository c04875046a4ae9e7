"""Runs the command line as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SYNCLINE = (sys.executable, "-m", "syncline")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run_command(
    *command: str, folder: Path, paths: tuple[Path, ...] = (), timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder to its end; both streams are kept."""
    with started(*command, folder=folder, paths=paths) as process:
        out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def started(*command: str, folder: Path, paths: tuple[Path, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """A command that runs in a folder, killed at the end if it still does."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": _path(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _path(paths: tuple[Path, ...]) -> str:
    """Where the command imports from: these folders, and whatever the tests themselves were told."""
    return os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])


def wait_until(
    claim: Callable[[], bool],
    what: str,
    *,
    process: subprocess.Popen[str] | None = None,
    timeout_s: float = 90,
) -> None:
    """Wait for something that a process does."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{what}: the process has ended before, with {process.communicate()}")
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
