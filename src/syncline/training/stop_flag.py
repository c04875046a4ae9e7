"""A wish to stop, from Ctrl-C or SIGTERM, kept until the loop can act on it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Set by a signal; read once a step."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether someone wants this rank to stop."""
        return self.signal_number is not None

    def set(self, number: int, _: FrameType | None = None) -> None:
        """Ask to stop, as the handler of a signal."""
        self.signal_number = number


@contextmanager
def catch_stop_signals() -> Iterator[StopFlag]:
    """Within, the stop signals set the flag instead of ending the process."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.signal(number, flag.set) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
