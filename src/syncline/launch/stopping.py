"""How a launcher is stopped: a first signal lets ranks save and end, a second one kills them."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_TIMEOUT_S = 30
"""How long ranks may take to save and end."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WAKE_SIGNAL = signal.SIGUSR2
"""Sent by a thread of the launcher to its main thread."""


class LaunchStopped(Exception):  # noqa: N818 (the user's wish, no error)
    """The launcher was told to stop, and all ranks have ended."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")


@contextmanager
def stop_signals(first: Callable[[int], None], again: Callable[[], None]) -> Iterator[None]:
    """Call `first` with the first stop signal and `again` with every later one.

    What is started within holds stop signals back, as `holding_stop_signals` says; those that waited since
    this process was itself started so come now. Handlers that were there before come back afterwards, those
    that torch replaced too. Off the main thread nothing happens, since Python allows handlers there only.
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
        with holding_stop_signals(), _listening():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def holding_stop_signals() -> Iterator[None]:
    """What is started within keeps stop signals waiting until it says `take_stop_signals`.

    A process that is still being imported has no handlers, and Python answers SIGINT with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_stop_signals() -> None:
    """Get the stop signals that were held back, and those to come, in this thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def _listening() -> Iterator[None]:
    """A thread that gets the stop signals which the main thread holds back from what it starts.

    Python calls handlers in the main thread, whichever thread the system interrupts, but only when that
    thread is awake: so the listener wakes it, from joining a process for example.
    """
    main = threading.get_ident()
    told, tells = socket.socketpair()
    tells.setblocking(False)

    def listen() -> None:
        take_stop_signals()
        while number := told.recv(1):
            if number[0] in STOP_SIGNALS:
                signal.pthread_kill(main, WAKE_SIGNAL)

    before_fd = signal.set_wakeup_fd(tells.fileno())
    before = signal.signal(WAKE_SIGNAL, lambda *_: None)
    listener = threading.Thread(target=listen, name="stop-signals", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before_fd)
        tells.close()
        listener.join()
        told.close()
        signal.signal(WAKE_SIGNAL, signal.SIG_DFL if before is None else before)
