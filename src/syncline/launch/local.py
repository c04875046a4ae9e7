"""Starts ranks on this machine."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from torch.distributed.launcher import LaunchConfig

from syncline.errors import ConfigError
from syncline.launch.agent import run_agent
from syncline.launch.failures import clear_failures
from syncline.launch.restarting import with_restarts
from syncline.launch.stopping import STOP_TIMEOUT_S
from syncline.launch.variables import environment, rank_variables

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def launch_local(
    entry: str,
    argument: str,
    *,
    ranks: int,
    logs: Path,
    max_restarts: int = 0,
    stop_timeout_s: int = STOP_TIMEOUT_S,
) -> None:
    """Run a function on `ranks` processes of this machine, with the torchrun variables set.

    Rank 0 keeps the terminal; every other rank writes to `logs/rank-N.log`. As always with spawned
    processes, a script that calls this needs `if __name__ == "__main__":`.

    Args:
        entry: `package.module:function`, imported in every rank and called with `argument`.
        argument: One string; what is more complex goes into a file or JSON.
        ranks: How many processes.
        logs: The folder of the ranks' logs, made when missing.
        max_restarts: How often all ranks are started again after one failed.
        stop_timeout_s: How long ranks may take to save and end after Ctrl-C or SIGTERM.

    Raises:
        SynclineError: A rank failed: its own error when it is one that the user can act upon, else
            `RankFailedError`.
        LaunchStopped: A signal ended the ranks.
    """
    if ranks < 1:
        raise ConfigError(f"{ranks} ranks cannot train: give 1 or more.")
    logs.mkdir(parents=True, exist_ok=True)
    clear_failures(logs)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        shutdown_timeout=stop_timeout_s,
    )

    def start(restart: int) -> None:
        run_agent(entry, argument, logs=logs.absolute(), config=config, restart=restart)

    with environment(rank_variables(ranks, LOOPBACK)):
        with_restarts(start, max_restarts)
