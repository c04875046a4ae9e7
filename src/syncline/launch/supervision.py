"""Waits for the launchers of several nodes, passes signals on, and ends all when one has failed."""

from __future__ import annotations

import math
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

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


Replace: TypeAlias = Callable[[int], "subprocess.Popen[bytes] | None"]
"""Starts the launcher of a node again, or says that it shall stay lost."""


def supervise(
    launchers: list[subprocess.Popen[bytes]],
    has_failed: Callable[[], bool],
    *,
    stop_timeout_s: float,
    replace: Replace | None = None,
) -> Ending:
    """Wait until every launcher has ended.

    Args:
        launchers: The running launchers, by node.
        has_failed: Whether a rank has failed, wherever it was, so that the run must end.
        stop_timeout_s: How long ranks may take to save and end after a signal.
        replace: What to do about a lost node, other than the first; without it the run ends.
    """
    watch = _Watch(launchers, has_failed, stop_timeout_s, replace)
    with stop_signals(watch.stop, watch.insist):
        while watch.step():
            time.sleep(POLL_S)
    watch.ending.exit_codes = [launcher.wait() for launcher in launchers]
    return watch.ending


class _Watch:
    """Ends launchers in three steps: a signal, a second one that has them kill their ranks, SIGKILL."""

    def __init__(
        self,
        launchers: list[subprocess.Popen[bytes]],
        has_failed: Callable[[], bool],
        stop_timeout_s: float,
        replace: Replace | None,
    ) -> None:
        self.ending = Ending()
        self._launchers = launchers
        self._has_failed = has_failed
        self._stop_timeout_s = stop_timeout_s
        self._insist_at_s = math.inf
        self._kill_at_s = math.inf
        self._is_ending = False
        self._replace = replace
        self._lost: set[int] = set()

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
            if self._replace is not None:
                codes = self._go_on(codes, self._replace)
            self._note_death(codes)
            is_over = self._replace is not None and codes[0] == 0
            if is_over or any(codes) or self._has_failed():
                self._end(signal.SIGTERM, FAILURE_GRACE_S)
        if time.monotonic() >= self._insist_at_s:
            self.insist()
        if time.monotonic() >= self._kill_at_s:
            self._signal(signal.SIGKILL)
        return None in codes

    def _go_on(self, codes: list[int | None], replace: Replace) -> list[int | None]:
        """Have lost nodes started again; what to take for the launchers' exit codes."""
        for node, code in enumerate(codes):
            if node == 0 or not code or node in self._lost or self._has_failed():
                continue
            launcher = replace(node)
            if launcher is None:
                self._lost.add(node)
            else:
                self._launchers[node] = launcher
                codes[node] = None
        return [0 if node in self._lost else code for node, code in enumerate(codes)]

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
