"""Runs torch's elastic agent for the ranks of one node, and turns its endings into our own."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher import LaunchConfig, elastic_launch

from syncline.errors import ClusterError, SynclineError
from syncline.launch.failures import failure_error, first_failure
from syncline.launch.logs import RankLogs, torch_launcher_log
from syncline.launch.rank_entry import RankPlace, RankProgram, run_rank
from syncline.launch.stopping import LaunchStopped, holding_stop_signals, stop_signals
from syncline.launch.variables import environment
from syncline.launch.watch import RankWatcher


def run_agent(
    entry: str,
    argument: str,
    *,
    logs: Path,
    config: LaunchConfig,
    restart: int,
    place: RankPlace | None = None,
) -> None:
    """Start the ranks of this node and wait for their end.

    Args:
        entry: `package.module:function`, called in every rank.
        argument: What the function is called with.
        logs: The folder of logs and errors, which exists.
        config: What torch's launcher is told, except for logs and signals, which are set here.
        restart: How often the ranks have been started before.
        place: Where this node's ranks are in the run, when this launcher knows of no other node.

    Raises:
        SynclineError: A rank failed; the first one's error.
        LaunchStopped: A signal ended the ranks.
    """
    # SIGQUIT stays with torch, which wants one: the others are handled here, for a second Ctrl-C.
    config = replace(config, logs_specs=RankLogs(logs), signals_to_handle="SIGQUIT", max_restarts=0)
    with torch_launcher_log(logs / "launcher.log"), RankWatcher(logs, restart=restart) as watcher:
        program = RankProgram(
            entry=entry,
            argument=argument,
            logs=logs,
            launcher=os.getpid(),
            watcher=watcher.announcements,
            restart=restart,
            place=place,
        )
        ending = _run(program, config, watcher)
    # Torch leaves its rendezvous to the garbage collector when stopped; it has a thread and a port.
    gc.collect()
    if ending is not None:
        raise ending


def _run(program: RankProgram, config: LaunchConfig, watcher: RankWatcher) -> Exception | None:
    """How it ended: returned and not raised, so that no traceback keeps torch's objects alive."""
    stopped_by: list[int] = []

    def stop(number: int) -> NoReturn:
        stopped_by.append(number)
        watcher.expect_stop()
        # Ranks that save before they end listen to these two.
        passed_on = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        raise SignalException(f"stopped by signal {number}", sigval=passed_on)

    try:
        with environment({}), stop_signals(stop, watcher.kill_ranks):
            # It lets stop signals through when it starts, which would otherwise be with the first rank.
            resource_tracker.ensure_running()
            with holding_stop_signals():
                elastic_launch(config, run_rank)(program)
    except SignalException as error:
        return LaunchStopped(stopped_by[0] if stopped_by else error.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        first = 0 if program.place is None else program.place.first_rank
        watcher.record(first + rank, failure.exitcode)
        return _failure(program)
    except RendezvousError as error:
        return _failure(program) or ClusterError(f"The ranks cannot find each other: {error}")
    return None


def _failure(program: RankProgram) -> SynclineError | None:
    failure = first_failure(program.logs, program.restart)
    return failure_error(failure, program.logs) if failure else None
