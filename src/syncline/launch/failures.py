"""What a rank that failed leaves behind, and the exception that the launcher makes of it.

A rank that raises writes `rank-N.error.json` itself; for one that dies without a word (a signal,
`os._exit`) the process that watches over it writes the file. The earliest file of the latest start
is the cause: what other ranks report afterwards, broken connections mostly, only follows from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from syncline.errors import NodeLostError, RankFailedError, SynclineError

LOG_TAIL_LINES = 15
START_MARK = "--- started "
"""How the line begins that separates the starts of a rank in its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """How one rank failed."""

    rank: int
    restart: int
    """How often the ranks had been restarted when it failed."""
    time_s: float
    """When, in seconds since the epoch."""
    classes: tuple[str, ...] = ()
    """The exception's class and its bases, by name; empty when the rank died without raising."""
    message: str = ""
    traceback: str = ""
    exit_code: int = 1
    """Negative when a signal killed the rank."""


def log_path(logs: Path, rank: int) -> Path:
    """The file with everything that a rank printed."""
    return logs / f"rank-{rank}.log"


def error_path(logs: Path, rank: int) -> Path:
    """The file that says how a rank failed."""
    return logs / f"rank-{rank}.error.json"


def describe_exception(error: BaseException, *, rank: int, restart: int) -> RankFailure:
    """The failure of a rank whose entry raised `error`; the launcher's own frames are left out."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    exit_code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    return RankFailure(
        rank=rank,
        restart=restart,
        time_s=time.time(),
        classes=tuple(base.__name__ for base in type(error).__mro__),
        message=str(error),
        traceback="".join(traceback.format_exception(type(error), error, trace)),
        exit_code=exit_code,
    )


def write_failure(failure: RankFailure, logs: Path) -> None:
    """Write a failure's file, whole or not at all."""
    path = error_path(logs, failure.rank)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(failure), indent=2))
    unfinished.replace(path)


def clear_failures(logs: Path) -> None:
    """Forget the failures of an earlier run in the same folder."""
    for path in logs.glob("rank-*.error.json"):
        path.unlink(missing_ok=True)


def read_failures(logs: Path) -> list[RankFailure]:
    """All failures in a folder, the earliest first."""
    return sorted(_parse_all(logs), key=lambda failure: failure.time_s)


def first_failure(logs: Path, restart: int | None = None) -> RankFailure | None:
    """The earliest failure of one start, or None when no rank failed.

    Args:
        logs: The folder of the logs.
        restart: Which start, counted from 0; the latest that had a failure when not given.
    """
    failures = read_failures(logs)
    if restart is None:
        restart = max((failure.restart for failure in failures), default=0)
    return next((failure for failure in failures if failure.restart == restart), None)


def failure_error(failure: RankFailure, logs: Path) -> SynclineError:
    """The exception to raise for a failure.

    An error that the user can act upon keeps its class and message; anything else becomes a
    `RankFailedError` with the rank's traceback, or its exit code or signal, and where its log is.
    """
    known = {kind.__name__: kind for kind in _error_classes(SynclineError)}
    kind = next((known[name] for name in failure.classes if name in known), None)
    if kind is None:
        return RankFailedError(_message(failure, logs), rank=failure.rank, exit_code=failure.exit_code)
    # Not every class takes just a message.
    error = kind.__new__(kind)
    error.args = (failure.message,)
    error.add_note(f"raised by rank {failure.rank}; its log: {log_path(logs, failure.rank)}")
    return error


def is_mistake(failure: RankFailure) -> bool:
    """Whether a rank failed by something that every rank would fail by: what the user can act upon."""
    known = {kind.__name__ for kind in _error_classes(SynclineError)}
    is_known = any(name in known for name in failure.classes)
    return is_known and NodeLostError.__name__ not in failure.classes


def death_text(exit_code: int) -> str:
    """What became of a process, to follow its name in a sentence."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    causes = {"SIGKILL": ": perhaps out of memory", "SIGBUS": ": perhaps the shared memory is full"}
    return f"was killed by {name}{causes.get(name, '')}"


def tail_text(log: Path) -> str:
    """The last lines that a process wrote since its last start, with a heading; or nothing."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    _, mark, latest = text.rpartition(START_MARK)
    lines = latest.splitlines()[1 if mark else 0 :][-LOG_TAIL_LINES:]
    return "The end of its log:\n" + "".join(f"  {line}\n" for line in lines) if lines else ""


def _parse_all(logs: Path) -> Iterator[RankFailure]:
    for path in logs.glob("rank-*.error.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            values: dict[str, Any] = json.loads(path.read_text())
            yield RankFailure(**values | {"classes": tuple(values["classes"])})


def _error_classes(kind: type[SynclineError]) -> Iterator[type[SynclineError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _error_classes(child)


def _message(failure: RankFailure, logs: Path) -> str:
    log = log_path(logs, failure.rank)
    if failure.classes:
        first = f"Rank {failure.rank} raised {failure.classes[0]}: {failure.message}"
        return f"{first}\n\n{failure.traceback.rstrip()}\n\nIts log: {log}"
    return f"Rank {failure.rank} {death_text(failure.exit_code)}.\n{tail_text(log)}Its log: {log}"
