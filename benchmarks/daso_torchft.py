"""torchft's seldom exchanges in the benchmark of training across slow links, on one rank a node.

Each node is a replica group of torchft, with a lighthouse on the first. What is trained, and the loop that
times it, are those of all other strategies: torchft hooks into the optimizer's step and exchanges there,
as often as Syncline's strategy of the same kind, over gloo on the node's limited link.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from syncline.cluster.emulation import parse_emulation
from syncline.cluster.memory import MemoryMeter
from syncline.cluster.rank import Rank
from syncline.errors import StrategyError
from syncline.launch.link import node_address
from syncline.strategies.averaging.step import AveragingStep
from syncline.strategies.diloco import DiLoCo
from syncline.strategies.gradient_step import GradientStep
from syncline.strategies.local_sgd import LocalSgd
from syncline.strategies.protocol import Job
from syncline.training.batches import open_batches
from syncline.training.config import TrainConfig
from syncline.training.run import Run
from syncline.training.schedule import make_optimizer
from syncline.training.seeding import seed_everything
from syncline.workloads.load import load_workload

PATIENCE = timedelta(minutes=10)
"""Of all that may time out, as for Syncline's own process group."""


@dataclass(frozen=True, slots=True)
class _Method:
    like: str
    """Syncline's strategy that does the same."""
    sync_every: int
    open: Callable[[Any, Job, int], Any]
    """torchft's context around the training, from its manager, the job and the steps between exchanges."""


def _local_sgd(manager: Any, job: Job, sync_every: int) -> Any:
    from torchft.local_sgd import LocalSGD  # pyrefly: ignore[missing-import]

    return LocalSGD(manager, job.model, job.optimizer, sync_every)


def _diloco(manager: Any, job: Job, sync_every: int) -> Any:
    from torchft.local_sgd import DiLoCo as TorchftDiLoCo  # pyrefly: ignore[missing-import]

    outer = torch.optim.SGD(
        job.model.parameters(), lr=DiLoCo().outer_lr, momentum=DiLoCo().outer_momentum, nesterov=True
    )
    return TorchftDiLoCo(manager, [job.model], job.optimizer, outer, sync_every)


_METHODS = {
    "torchft:local-sgd": _Method("local-sgd", LocalSgd().sync_every, _local_sgd),
    "torchft:diloco": _Method("diloco:sync-every=16", 16, _diloco),
}
TORCHFT = tuple(_METHODS)
"""As cells name these ways to train."""


def skip_reason(strategy: str, cluster: str) -> str | None:
    """Why a strategy is not run on a cluster; None when it is, or when it is none of torchft's."""
    if strategy not in _METHODS:
        return None
    if parse_emulation(cluster).ranks_per_node > 1:
        return "set up for one rank a node: torchft leaves what ranks of a node do together to the user"
    return None if importlib.util.find_spec("torchft") else "torchft is not installed"


@contextmanager
def torchft_run(config: TrainConfig, rank: Rank, device: torch.device) -> Iterator[Run]:
    """A run as `prepare_run` makes it, with torchft around its optimizer until the context ends."""
    method = _METHODS[config.strategy]
    seed_everything(config.seed)
    workload = load_workload(config.model, data=config.data, seed=config.seed, input=config.input)
    batches = open_batches(workload, config.batch, config.seed)
    meter = MemoryMeter(device)
    model = workload.build_model().to(device)
    job = Job(
        model=model,
        optimizer=make_optimizer(workload, config.optimizer, model),
        compute_loss=workload.compute_loss,
        rank=rank,
        device=device,
        options=config.step_options,
        steps=config.steps,
    )
    with ExitStack() as stack:
        manager = stack.enter_context(_manager(model, rank))
        stack.enter_context(method.open(manager, job, method.sync_every))
        yield Run(
            config=config,
            rank=rank,
            device=device,
            workload=workload,
            step=_Step(job),
            batches=batches,
            meter=meter,
        )
        _check_commits(manager.current_step(), config.steps // method.sync_every)


class _Step(GradientStep):
    """A step of this rank by itself: whatever is exchanged, torchft does in the optimizer's step."""

    lead: int = AveragingStep.lead

    def __init__(self, job: Job) -> None:
        super().__init__(job, model=job.model)
        self._left = job.steps

    def _update(self) -> None:
        super()._update()
        self._left = None if self._left is None else self._left - 1
        if self._left == 0:
            # One model is evaluated, as with Syncline's own: the mean after the last step.
            with torch.no_grad():
                for parameter in self.model.parameters():
                    dist.all_reduce(parameter)
                    parameter.div_(dist.get_world_size())


@contextmanager
def _manager(model: torch.nn.Module, rank: Rank) -> Iterator[Any]:
    """torchft's manager of this node, and on the first node the lighthouse, over the nodes' own addresses."""
    # It would tell of every vote, and warn of a recorder for GPUs; its servers read this at its import.
    os.environ.setdefault("RUST_LOG", "error")
    logging.getLogger("torchft").setLevel(logging.ERROR)
    import torchft  # pyrefly: ignore[missing-import]
    from torchft.coordination import LighthouseServer  # pyrefly: ignore[missing-import]

    first, own = node_address(0), node_address(rank.node)
    lighthouse = LighthouseServer(bind=f"{first}:0", min_replicas=rank.world_size) if rank.is_first else None
    # Its address is a host's name, which nodes do not know each other by.
    told = [lighthouse.address().rpartition(":")[2] if lighthouse else None]
    dist.broadcast_object_list(told, src=0)
    store = dist.TCPStore(own, 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state)

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=load,
        state_dict=model.state_dict,
        min_replica_size=rank.world_size,
        use_async_quorum=False,
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        connect_timeout=PATIENCE,
        replica_id=f"node-{rank.node}",
        store_addr=own,
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=f"http://{first}:{told[0]}",
        hostname=own,
        init_sync=False,
    )
    try:
        yield manager
    finally:
        manager.shutdown(wait=False)
        # Nobody's last vote goes to a server that is gone.
        dist.barrier()
        if lighthouse:
            lighthouse.shutdown()


def _check_commits(commits: int, exchanges: int) -> None:
    """torchft drops an exchange that failed, and the steps before it: such a run is no figure."""
    if commits != exchanges:
        raise StrategyError(f"torchft took over {commits} of {exchanges} exchanges; the others failed.")
