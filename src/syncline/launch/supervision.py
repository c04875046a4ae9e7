"""Waits for the launchers of several nodes, passes signals on, and ends all when one has failed."""

from __future__ import annotations

import math
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from syncline.launch.node_task import EXIT_FAILED, EXIT_STOPPED
from syncline.launch.stopping import stop_signals

POLL_S = 0.05
FAILURE_GRACE_S = 10.0
"""How long the other nodes may take to end after a rank has failed."""
KILL_GRACE_S = 5.0
"""How long a launcher may take to end after it has killed its ranks."""


@dataclass(slots=True, kw_only=True)
class Ending:
    """How the launchers of all nodes ended."""

    signal_number: int | None = None
    """The signal that stopped this process, if one did."""
    dead_node: int | None = None
    """The first node whose launcher died by itself, rather than of a failed rank."""
    death_time_s: float = 0.0
    """When that was, in seconds since the epoch."""
    exit_codes: list[int] = field(default_factory=list)
    """By node."""


def supervise(
    launchers: Sequence[subprocess.Popen[bytes]], has_failed: Callable[[], bool], *, stop_timeout_s: float
) -> Ending:
    """Wait until every launcher has ended.

    Args:
        launchers: The running launchers, by node.
        has_failed: Whether a rank has failed, wherever it was.
        stop_timeout_s: How long ranks may take to save and end after a signal.
    """
    watch = _Watch(launchers, has_failed, stop_timeout_s)
    with stop_signals(watch.stop, watch.insist):
        while watch.step():
            time.sleep(POLL_S)
    watch.ending.exit_codes = [launcher.wait() for launcher in launchers]
    return watch.ending


class _Watch:
    """Ends launchers in three steps: a signal, a second one that has them kill their ranks, SIGKILL."""

    def __init__(
        self,
        launchers: Sequence[subprocess.Popen[bytes]],
        has_failed: Callable[[], bool],
        stop_timeout_s: float,
    ) -> None:
        self.ending = Ending()
        self._launchers = launchers
        self._has_failed = has_failed
        self._stop_timeout_s = stop_timeout_s
        self._insist_at_s = math.inf
        self._kill_at_s = math.inf
        self._is_ending = False

    def stop(self, number: int) -> None:
        self.ending.signal_number = number
        self._end(number, self._stop_timeout_s + KILL_GRACE_S)

    def insist(self) -> None:
        self._insist_at_s = math.inf
        self._kill_at_s = time.monotonic() + KILL_GRACE_S
        self._signal(signal.SIGTERM)

    def step(self) -> bool:
        """Look once; says whether a launcher still runs."""
        codes = [launcher.poll() for launcher in self._launchers]
        if not self._is_ending:
            self._note_death(codes)
            if any(codes) or self._has_failed():
                self._end(signal.SIGTERM, FAILURE_GRACE_S)
        if time.monotonic() >= self._insist_at_s:
            self.insist()
        if time.monotonic() >= self._kill_at_s:
            self._signal(signal.SIGKILL)
        return None in codes

    def _note_death(self, codes: Sequence[int | None]) -> None:
        for node, code in enumerate(codes):
            if code not in (None, 0, EXIT_FAILED, EXIT_STOPPED):
                self.ending.dead_node = node
                self.ending.death_time_s = time.time() - POLL_S
                return

    def _end(self, number: int, grace_s: float) -> None:
        self._is_ending = True
        self._insist_at_s = time.monotonic() + grace_s
        self._signal(number)

    def _signal(self, number: int) -> None:
        for launcher in self._launchers:
            launcher.send_signal(number)
