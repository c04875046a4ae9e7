"""Where the output of ranks and of torch's launcher goes.

Rank 0 keeps the terminal, for its progress bar; every other rank writes both streams to its log.
The redirection itself happens in the rank (see `rank_entry`): torch's own truncates the file at
every restart, and gives each stream an offset of its own, so that they overwrite each other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

NOISY_LOGGERS = (
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.multiprocessing",
    "torchelastic-events-null",
)


class RankLogs(LogsSpecs):
    """Tells torch's launcher to leave the streams and the errors of ranks alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(log_dir=str(folder))

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Inherit both streams in every local rank, and turn torch's own error files off."""
        for variables in envs.values():
            variables["TORCHELASTIC_ERROR_FILE"] = ""
        return LogsDest(
            stdouts=dict.fromkeys(envs, ""),
            stderrs=dict.fromkeys(envs, ""),
            error_files=dict.fromkeys(envs, ""),
        )

    @property
    def root_log_dir(self) -> str:
        """The folder of the logs."""
        return str(self._root_log_dir)


@contextmanager
def torch_launcher_log(path: Path) -> Iterator[None]:
    """Send what torch's launcher logs to a file instead of the terminal, which has our own errors."""
    handler = logging.FileHandler(path, delay=True)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.propagate = propagate
            logger.removeHandler(handler)
        handler.close()
