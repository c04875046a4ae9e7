"""The launcher of one emulated node: `python -m syncline.launch.node`, started inside the node.

It reads its task from standard input, and says by its exit code how that ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch.distributed.launcher import LaunchConfig

from syncline.errors import SynclineError
from syncline.launch.agent import run_agent
from syncline.launch.node_task import EXIT_FAILED, EXIT_STOPPED, NodeTask, decode_task, node_log_path
from syncline.launch.rank_entry import RankPlace, die_with_parent
from syncline.launch.stopping import LaunchStopped


def run_node(task: NodeTask) -> int:
    """Run the ranks of one node; gives the exit code."""
    logs = Path(task.logs)
    place = _place(task) if task.alone else None
    config = _config(task)
    try:
        run_agent(task.entry, task.argument, logs=logs, config=config, restart=task.restart, place=place)
    except LaunchStopped:
        return EXIT_STOPPED
    except SynclineError as error:
        with node_log_path(logs, task.node).open("a") as log:
            print(error, file=log)
        return EXIT_FAILED
    return 0


def _config(task: NodeTask) -> LaunchConfig:
    endpoint = f"{task.address}:0" if task.alone else task.rendezvous
    return LaunchConfig(
        min_nodes=1 if task.alone else task.nodes,
        max_nodes=1 if task.alone else task.nodes,
        nproc_per_node=task.ranks,
        run_id=task.run_id,
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs={"is_host": task.alone or task.node == 0},
        local_addr=task.address,
        shutdown_timeout=task.stop_timeout_s,
    )


def _place(task: NodeTask) -> RankPlace:
    address, _, port = task.rendezvous.rpartition(":")
    return RankPlace(
        first_rank=task.node * task.ranks,
        world_size=task.nodes * task.ranks,
        address=address,
        port=int(port),
    )


def main() -> int:
    """Read the task and run it."""
    task = decode_task(sys.stdin.read())
    die_with_parent(task.parent)
    sys.path[:] = task.python_path
    return run_node(task)


if __name__ == "__main__":
    sys.exit(main())
