"""What runs first in every rank: it ties the rank to its launcher, sends its output to the log, and
writes down how it failed."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import NoReturn

from syncline.launch.failures import START_MARK, describe_exception, log_path, write_failure
from syncline.launch.stopping import take_stop_signals

PR_SET_PDEATHSIG = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of a node that was started by itself, so that it can be lost and started again."""

    first_rank: int
    """Of this node."""
    world_size: int
    address: str
    """Of the first node, where the first rank keeps the store."""
    port: int

    def apply(self) -> None:
        """Set the torchrun variables of this rank."""
        os.environ["RANK"] = str(self.first_rank + int(os.environ["LOCAL_RANK"]))
        os.environ["WORLD_SIZE"] = str(self.world_size)
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = self.address, str(self.port)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgram:
    """What every rank runs."""

    entry: str
    """`package.module:function`, called with `argument`."""
    argument: str
    logs: Path
    launcher: int
    """The process that started the rank; a rank never outlives it."""
    watcher: Connection
    """Where a rank says that it lives, and that its work is done (see `watch`)."""
    restart: int
    """How often the ranks have been started before."""
    place: RankPlace | None = None
    """Where this node's ranks are in a larger run that torch's launcher knows nothing of."""


def run_rank(program: RankProgram) -> None:
    """Run the program as the rank that the torchrun variables say."""
    if program.place is not None:
        program.place.apply()
    rank = int(os.environ["RANK"])
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(program.restart)
    die_with_parent(program.launcher)
    # A group of its own: Ctrl-C then reaches the launcher only, which passes it on once.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program.watcher.send((rank, os.getpid(), False))
    log = _open_log(program.logs, rank, program.restart)
    try:
        take_stop_signals()
        resolve_entry(program.entry)(program.argument)
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            _on_stop_signal(signal.SIG_DFL)
            failure = describe_exception(error, rank=rank, restart=program.restart)
            write_failure(failure, program.logs)
            sys.stdout.flush()
            os.write(log, failure.traceback.encode())
            if isinstance(error, KeyboardInterrupt):
                # Torch would take a rank that ends so for one that still works.
                sys.exit(EXIT_INTERRUPTED)
            raise
    sys.stdout.flush()
    # From here torch has the rank wait for the others, unless it is told to end.
    _on_stop_signal(_end)
    program.watcher.send((rank, os.getpid(), True))


def resolve_entry(entry: str) -> Callable[[str], object]:
    """The function that `package.module:function` names."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, however that ended (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _end(number: int, _: FrameType | None) -> NoReturn:
    # Not by an exception: while it waits, torch holds a lock that it shares between ranks, and one that is
    # interrupted there keeps the others from ending.
    os._exit(128 + number)


def _on_stop_signal(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _open_log(logs: Path, rank: int, restart: int) -> int:
    log = os.open(log_path(logs, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    now = datetime.now().isoformat(sep=" ", timespec="seconds")
    os.write(log, f"{START_MARK}{now}, restart {restart} ---\n".encode())
    if rank != 0:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout.reconfigure(line_buffering=True)  # pyrefly: ignore[missing-attribute]
    return log
