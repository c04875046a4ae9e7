"""What the strategies that need no plan are predicted to cost, by the cost model that plans are made with.

They are shardings of the same graph, kept in one way each. Torch's wrappers differ from the textbook in what
they send and wait for, and take time of their own; both count where a machine was measured:

    data      gradients are all-reduced in buckets
    zero1     the same, and then the owner of each tensor broadcasts it: one by one, nothing hides it
    sharded   one group of weights for each block and one for the rest, copied into and out of what is sent.
              CPU ranks wait for all of it, and their C library keeps the buffers: about `CPU_GATHERED`
              times the weights, which is measured and not derived
"""

from __future__ import annotations

import dataclasses

import numpy as np

from syncline.cluster.collectives import collective_s
from syncline.graph.opgraph import Tensor
from syncline.planning.baselines import data_parallel
from syncline.planning.calibration import MachineFigures, WrapperFigures
from syncline.planning.parameter_costs import BUCKET_BYTES, Keeping
from syncline.planning.planner import exactly
from syncline.planning.prediction import Prediction
from syncline.planning.saving import block_of
from syncline.planning.search import Limits, Search

CPU_GATHERED = 7.0
_KEPT = {"data": Keeping.REPLICATED, "zero1": Keeping.STATE_SHARDED, "sharded": Keeping.SHARDED}


def predict_strategies(search: Search) -> dict[str, Prediction]:
    """Predictions by the strategy's name, of those that can run at all."""
    masks = exactly(search.tables, data_parallel(search.tables.graph, search.tables.axes))
    found: dict[str, Prediction] = {}
    for name, keeping in _KEPT.items():
        candidate = search.solve(Limits(masks=masks, keepings=(keeping,)))
        if candidate is not None:
            # These run modules as they are: statistics of a batch are those of a rank's own rows.
            times = dataclasses.replace(candidate.prediction.times, exchange_s=0.0)
            found[name] = dataclasses.replace(candidate.prediction, times=times)
    if "zero1" in found and "data" in found:
        found["zero1"] = _with_broadcasts(search, found["zero1"], found["data"])
    if search.tables.calibration is None:
        return found
    machine = search.tables.calibration.machine
    if "sharded" in found:
        found["sharded"] = _with_copies(search, found["sharded"], waits=not machine.gathers_beside_compute)
    return {name: _wrapped(search, name, one, machine) for name, one in found.items()}


def _with_broadcasts(search: Search, zero1: Prediction, data: Prediction) -> Prediction:
    """ZeRO-1 as torch does it: gradients as in `data`, then each tensor from its owner."""
    axes = search.tables.axes
    everyone = axes.spans((1 << len(axes.axes)) - 1)
    sizes = np.array([tensor.bytes for tensor in _trained(search)], dtype=np.float64)
    # What a broadcast takes besides its bytes is part of the wrapper's own time, where that was measured.
    bucket_bytes = BUCKET_BYTES if search.tables.calibration is not None else 0.0
    each_s = collective_s(axes.cluster, "broadcast", everyone, sizes, bucket_bytes=bucket_bytes)
    broadcast_s = float(each_s.sum())
    times = dataclasses.replace(
        zero1.times,
        parameters_s=data.times.parameters_s + broadcast_s,
        hidden_s=data.times.hidden_s,
    )
    return dataclasses.replace(zero1, times=times)


def _with_copies(search: Search, sharded: Prediction, *, waits: bool) -> Prediction:
    """FSDP2: twice a shard goes into a buffer and what is gathered out of it, then the gradient into one."""
    weights = float(sum(tensor.bytes for tensor in _trained(search)))
    own = weights / search.tables.axes.cluster.world_size
    copied = 2 * (own + 2 * weights) + weights + own
    copied_s = 2 * copied / search.tables.axes.cluster.device.memory_bytes_per_s
    times, memory = sharded.times, sharded.memory
    times = dataclasses.replace(
        times, parameters_s=times.parameters_s + copied_s, hidden_s=0.0 if waits else times.hidden_s
    )
    if waits:
        memory = dataclasses.replace(memory, gather_buffers=CPU_GATHERED * weights)
    return Prediction(times=times, memory=memory)


def _wrapper_s(search: Search, name: str, wrappers: WrapperFigures) -> float:
    tensors = len(_trained(search))
    if name == "sharded":
        groups = len({block_of(op) for op in search.tables.graph.ops} - {None}) + 1
        return wrappers.sharded_s_per_group * groups + wrappers.sharded_s_per_tensor * tensors
    return wrappers.data_s_per_step + (wrappers.zero1_s_per_tensor * tensors if name == "zero1" else 0.0)


def _trained(search: Search) -> list[Tensor]:
    return [tensor for tensor in search.tables.graph.parameters.values() if tensor.requires_grad]


def _wrapped(search: Search, name: str, prediction: Prediction, machine: MachineFigures) -> Prediction:
    """With the wrapper's own time, and without what capturing takes: these strategies do not."""
    times, memory = prediction.times, prediction.memory
    return Prediction(
        times=dataclasses.replace(
            times, optimizer_s=times.optimizer_s + _wrapper_s(search, name, machine.wrappers)
        ),
        memory=dataclasses.replace(memory, workspace=memory.workspace - machine.capture_bytes),
    )
