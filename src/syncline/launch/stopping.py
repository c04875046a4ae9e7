"""How a launcher is stopped: a first signal lets ranks save and end, a second one kills them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_TIMEOUT_S = 30
"""How long ranks may take to save and end."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LaunchStopped(Exception):  # noqa: N818 (the user's wish, no error)
    """The launcher was told to stop, and all ranks have ended."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")


@contextmanager
def stop_signals(first: Callable[[int], None], again: Callable[[], None]) -> Iterator[None]:
    """Call `first` with the first stop signal and `again` with every later one.

    Signals that wait since the process was started `holding_stop_signals` come now. Handlers that were
    there before come back afterwards, those that torch replaced too. Off the main thread nothing happens,
    since Python allows handlers there only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            first(number)
        else:
            again()

    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGQUIT)}
    for number in STOP_SIGNALS:
        signal.signal(number, handle)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def holding_stop_signals() -> Iterator[None]:
    """What is started within keeps stop signals waiting until it handles them.

    Python answers SIGINT with a traceback, and the system SIGTERM with a sudden end, while a launcher is
    still being imported.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
