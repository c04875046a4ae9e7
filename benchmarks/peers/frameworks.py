"""Other frameworks as ways to train the same model: what each needs, and how it makes a step."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.workloads.workload import Batch

LossFunction = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be trained, the same for all."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    compute_loss: LossFunction
    rank_batch: int
    """Rows of a batch on one rank."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """A task in the hands of a framework."""

    train: Callable[[Batch], Tensor]
    """One step; this rank's mean loss."""
    model: nn.Module
    """What evaluates."""
    close: Callable[[], None] = lambda: None
    """Ends what the framework has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A framework in one of its ways."""

    name: str
    framework: str
    package: str
    """What must be importable."""
    setup: Callable[[Task], Trainer]

    def missing(self) -> str | None:
        """Why it cannot run here."""
        try:
            importlib.import_module(self.package)
        except Exception as error:
            # Anything may go wrong in a foreign import; what matters is to say what.
            return f"{self.package} cannot be imported: {type(error).__name__}: {str(error).splitlines()[0]}"
        return None


def torch_ddp(task: Task) -> Trainer:
    """Torch's own DDP in a plain loop: what every wrapper is measured by."""
    return _plain(task, nn.parallel.DistributedDataParallel(task.model), task.optimizer)


def accelerate_ddp(task: Task) -> Trainer:
    """Hugging Face Accelerate."""
    from accelerate import Accelerator  # pyrefly: ignore[missing-import]

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(task.model, task.optimizer)
    return _plain(task, model, optimizer, backward=accelerator.backward)


def fabric_ddp(task: Task) -> Trainer:
    """Lightning Fabric."""
    from lightning_fabric import Fabric  # pyrefly: ignore[missing-import]

    fabric = Fabric(accelerator="cpu", devices=torch.distributed.get_world_size(), strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(task.model, task.optimizer)
    return _plain(task, model, optimizer, backward=fabric.backward)


def deepspeed_zero(stage: int) -> Callable[[Task], Trainer]:
    """DeepSpeed with one of the stages of ZeRO."""

    def setup(task: Task) -> Trainer:
        import deepspeed  # pyrefly: ignore[missing-import]

        settings = {
            "train_micro_batch_size_per_gpu": task.rank_batch,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        }
        with contextlib.redirect_stdout(None):
            deepspeed.init_distributed(dist_backend="gloo")
            engine, *_ = deepspeed.initialize(model=task.model, optimizer=task.optimizer, config=settings)

        def train(batch: Batch) -> Tensor:
            loss = task.compute_loss(engine, batch)
            engine.backward(loss)
            engine.step()
            return loss.detach()

        return Trainer(train, engine)

    return setup


def torchft_ddp(task: Task) -> Trainer:
    """torchft's fault-tolerant data parallelism: each rank a replica group, joined by a lighthouse."""
    import torchft  # pyrefly: ignore[missing-import]
    from torchft.coordination import LighthouseServer  # pyrefly: ignore[missing-import]

    rank, world = dist.get_rank(), dist.get_world_size()
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=world) if rank == 0 else None
    told = [lighthouse.address() if lighthouse else None]
    dist.broadcast_object_list(told, src=0)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    # It serves as long as somebody holds it.
    served = [store]
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=task.model.load_state_dict,
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

    return Trainer(train, model, close)


def _plain(
    task: Task, model: Any, optimizer: Any, backward: Callable[[Tensor], Any] = torch.Tensor.backward
) -> Trainer:
    def train(batch: Batch) -> Tensor:
        loss = task.compute_loss(model, batch)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return Trainer(train, model)


def _zero(stage: int) -> Peer:
    return Peer(name=f"zero-{stage}", framework="deepspeed", package="deepspeed", setup=deepspeed_zero(stage))


PEERS = {
    f"{one.framework}:{one.name}": one
    for one in (
        Peer(name="ddp", framework="torch", package="torch", setup=torch_ddp),
        Peer(name="ddp", framework="accelerate", package="accelerate", setup=accelerate_ddp),
        Peer(name="ddp", framework="fabric", package="lightning_fabric", setup=fabric_ddp),
        *(_zero(stage) for stage in (1, 2, 3)),
        Peer(name="ddp", framework="torchft", package="torchft", setup=torchft_ddp),
    )
}


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, the model evaluates."""
    model.eval()
    with torch.no_grad():
        yield
    model.train()
