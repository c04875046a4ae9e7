"""Ray Train: its own workers and process group, and its way to prepare a model.

Ray starts its processes itself. So its peers have a launch of their own: a process that starts a cluster on
this machine, hands the ranks' entry to a `TorchTrainer`, and takes the cluster down with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist
from peer import ENTRY, Task, Trainer, plain_loop
from torch.distributed.device_mesh import init_device_mesh
from torch_loops import shard_model

from syncline.errors import RankFailedError
from syncline.launch.failures import tail_text
from syncline.launch.local import LOOPBACK
from syncline.launch.rank_entry import die_with_parent, resolve_entry
from syncline.launch.variables import rank_variables

STORE_BYTES = 100_000_000
"""Of Ray's object store: nothing but an order goes through it."""


def ray_ddp(task: Task) -> Trainer:
    """Ray's own wrapping, which is DDP."""
    from ray.train.torch import prepare_model  # pyrefly: ignore[missing-import]

    return plain_loop(task, prepare_model(task.model), task.optimizer)


def ray_fsdp2(task: Task) -> Trainer:
    """`fully_shard` inside Ray's workers, as its documentation has it."""
    from ray.train.torch import get_device  # pyrefly: ignore[missing-import]

    mesh = init_device_mesh(get_device().type, (dist.get_world_size(),))
    return plain_loop(task, shard_model(task, task.model, mesh), task.optimizer)


def launch_ray(argument: str, ranks: int, logs: Path) -> None:
    """Run the ranks' entry on Ray's workers."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / "ray.log"
    command = [sys.executable, __file__, argument, str(ranks), str(logs), str(os.getpid())]
    with log.open("wb") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if ended.returncode:
        message = f"Ray's workers failed.\n{tail_text(log)}"
        raise RankFailedError(message, rank=0, exit_code=ended.returncode)


def _drive(argument: str, ranks: int, logs: Path) -> None:
    """What the process that is Ray's driver does."""
    import ray  # pyrefly: ignore[missing-import]
    from ray.train import RunConfig, ScalingConfig  # pyrefly: ignore[missing-import]
    from ray.train.torch import TorchConfig, TorchTrainer  # pyrefly: ignore[missing-import]

    def work(order: dict[str, str]) -> None:
        resolve_entry(ENTRY)(order["argument"])

    variables = {**rank_variables(ranks, LOOPBACK), "PYTHONPATH": os.environ["PYTHONPATH"]}
    ray.init(
        address="local",
        num_cpus=ranks + 1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=STORE_BYTES,
        runtime_env={"env_vars": variables},
    )
    try:
        TorchTrainer(
            work,
            train_loop_config={"argument": argument},
            scaling_config=ScalingConfig(num_workers=ranks, resources_per_worker={"CPU": 1}),
            torch_config=TorchConfig(backend="gloo"),
            run_config=RunConfig(name="peer", storage_path=str(logs.absolute())),
        ).fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    given, count, folder, parent = sys.argv[1:]
    die_with_parent(int(parent))
    _drive(given, int(count), Path(folder))
