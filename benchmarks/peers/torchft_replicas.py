"""torchft: each rank a replica group, joined by a lighthouse."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from peer import Task, Trainer, plain_evaluation
from torch import Tensor

from syncline.workloads.workload import Batch


def torchft_ddp(task: Task) -> Trainer:
    """torchft's fault-tolerant data parallelism."""
    import torchft  # pyrefly: ignore[missing-import]
    from torchft.coordination import LighthouseServer  # pyrefly: ignore[missing-import]

    rank, world = dist.get_rank(), dist.get_world_size()
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=world) if rank == 0 else None
    told = [lighthouse.address() if lighthouse else None]
    dist.broadcast_object_list(told, src=0)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    # It serves as long as somebody holds it.
    served = [store]

    def load(state: dict[str, Any]) -> None:
        task.model.load_state_dict(state)

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=task.model.state_dict,
        min_replica_size=world,
        replica_id=f"replica-{rank}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=told[0],
        hostname="localhost",
        init_sync=False,
    )
    model = torchft.DistributedDataParallel(manager, task.model)
    optimizer = torchft.Optimizer(manager, task.optimizer)

    def train(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss = task.compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def close() -> None:
        manager.shutdown(wait=False)
        # Nobody's last vote goes to a server that is gone.
        dist.barrier()
        served.clear()
        if lighthouse:
            lighthouse.shutdown()

    return Trainer(train, plain_evaluation(task, model), close)
