"""Watches the ranks of one launcher: who died first, and an end for those that do not stop.

Torch's launcher notices a dead rank, asks the others to end, and waits 30 s before it kills them.
That is too long for ranks that hang in a collective, and it reports any of the ranks that it finds
dead, which need not be the first. This thread waits on the processes themselves (pidfd), without
reaping them. Where the system has no pidfd, torch's own behaviour remains.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from syncline.launch.failures import RankFailure, read_failures, write_failure

FAILURE_GRACE_S = 10.0
"""How long the other ranks may take to end after one has failed."""
NOTICE_DELAY_S = 0.1
"""A death is noticed a moment after it happened, when a peer may have reported the lost connection."""

REMIND_S = 0.5
"""How often a rank that is done is told to end: one that is just about to wait may not notice a signal."""

ASKED_TO_END = (-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM)


@dataclass(slots=True, kw_only=True)
class _Watched:
    rank: int
    pid: int


class RankWatcher(threading.Thread):
    """Records ranks that die silently, and kills the rest a while after the first failure.

    Use as a context manager; ranks announce through `announcements` that they live and that they are
    done, as `(rank, pid, is_done)`.
    """

    def __init__(self, logs: Path, *, restart: int) -> None:
        super().__init__(name="rank-watcher", daemon=True)
        self.announcements: Connection
        self._inbox, self.announcements = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self._logs = logs
        self._restart = restart
        self._ranks: dict[int, _Watched] = {}
        self._deaths_s: dict[int, float] = {}
        self._kill_at_s: float | None = None
        self._has_failed = False
        self._is_stopping = False
        self._to_end: set[int] = set()

    def __enter__(self) -> RankWatcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.announcements.send(None)
        self.join()
        self.announcements.close()
        self._inbox.close()
        for pidfd in self._ranks:
            os.close(pidfd)

    def expect_stop(self) -> None:
        """The user asked the ranks to end: their deaths are no failures any more."""
        self._is_stopping = True

    def kill_ranks(self) -> None:
        """Kill every rank at once."""
        for pidfd in list(self._ranks):
            _send(pidfd, signal.SIGKILL)

    def record(self, rank: int, exit_code: int) -> None:
        """Write down that a rank died, unless it has said itself how it failed."""
        known = read_failures(self._logs)
        if any(failure.rank == rank and failure.restart == self._restart for failure in known):
            return
        died_s = self._deaths_s.get(rank, time.time())
        write_failure(
            RankFailure(rank=rank, restart=self._restart, time_s=died_s, exit_code=exit_code), self._logs
        )

    def run(self) -> None:
        """Wait for announcements, deaths and the deadline until the context ends."""
        while True:
            for item in wait([self._inbox, *self._ranks], self._timeout_s()):
                if isinstance(item, int):
                    self._on_death(item)
                elif not self._on_announcement(self._inbox.recv()):
                    return
            for pidfd in self._to_end:
                _send(pidfd, signal.SIGTERM)
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                self._kill_at_s = None
                if not self._is_stopping:
                    self.kill_ranks()

    def _timeout_s(self) -> float | None:
        """Until something is to be done even if nothing happens."""
        if self._to_end:
            return REMIND_S
        return None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())

    def _on_announcement(self, news: tuple[int, int, bool] | None) -> bool:
        if news is None:
            return False
        rank, pid, is_done = news
        if not is_done:
            if hasattr(os, "pidfd_open"):
                with contextlib.suppress(OSError):
                    self._ranks[os.pidfd_open(pid)] = _Watched(rank=rank, pid=pid)
        elif self._is_stopping:
            # Torch sends the stop signal once, and this rank spent it on saving.
            self._to_end |= {pidfd for pidfd, watched in self._ranks.items() if watched.pid == pid}
        return True

    def _on_death(self, pidfd: int) -> None:
        noticed_s = time.time()
        dead = self._ranks.pop(pidfd)
        self._to_end.discard(pidfd)
        os.close(pidfd)
        exit_code = _exit_code(dead.pid)
        self._deaths_s[dead.rank] = noticed_s - NOTICE_DELAY_S
        if not exit_code or self._is_stopping:
            return
        # After the first failure torch's launcher sends SIGTERM, and this watcher SIGKILL.
        was_asked = self._has_failed and exit_code in ASKED_TO_END
        if not self._has_failed:
            self._has_failed = True
            self._kill_at_s = time.monotonic() + FAILURE_GRACE_S
        if not was_asked:
            self.record(dead.rank, exit_code)


def _send(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def _exit_code(pid: int) -> int | None:
    """The exit code of a child that is not reaped yet; None when someone else was faster."""
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
