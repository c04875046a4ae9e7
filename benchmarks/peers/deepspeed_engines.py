"""DeepSpeed's engines: ZeRO and the pipeline."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from layer_rows import Tied, layer_row
from peer import Task, Trainer, plain_evaluation
from torch import Tensor, nn

from syncline.workloads.batch import slice_rows
from syncline.workloads.workload import Batch

NEVER = 10**9
"""Steps after which the engine shall print for the first time."""


def deepspeed_zero(stage: int) -> Callable[[Task], Trainer]:
    """DeepSpeed with one of the stages of ZeRO."""

    def setup(task: Task) -> Trainer:
        import deepspeed  # pyrefly: ignore[missing-import]

        settings = {
            **_settings(task),
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        }
        with contextlib.redirect_stdout(io.StringIO()):
            deepspeed.init_distributed(dist_backend="gloo")
            engine, *_ = deepspeed.initialize(model=task.model, optimizer=task.optimizer, config=settings)

        def train(batch: Batch) -> Tensor:
            loss = task.compute_loss(engine, batch)
            engine.backward(loss)
            engine.step()
            return loss.detach()

        return Trainer(train, plain_evaluation(task, engine))

    return setup


def _settings(task: Task) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": task.rank_batch,
        # It would clip to 1 unless told otherwise, and no other does.
        "gradient_clipping": 0.0,
        "steps_per_print": NEVER,
    }


def deepspeed_pipeline(task: Task) -> Trainer:
    """DeepSpeed's pipeline: each rank a stage, and as many micro-batches as ranks, as Syncline's own has."""
    import deepspeed  # pyrefly: ignore[missing-import]

    parts = dist.get_world_size()
    settings = {**_settings(task), "gradient_accumulation_steps": parts}

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        return task.compute_loss(nn.Identity(), (output, targets))

    with contextlib.redirect_stdout(io.StringIO()):
        deepspeed.init_distributed(dist_backend="gloo")
        stages = deepspeed.pipe.PipelineModule(
            _specifications(task.model), num_stages=dist.get_world_size(), loss_fn=loss_of
        )
        _keep_own(task, stages)
        engine, *_ = deepspeed.initialize(model=stages, optimizer=task.optimizer, config=settings)

    def cut(batch: Batch) -> Iterator[Batch]:
        rows = task.rank_batch
        return iter([slice_rows(batch, slice(part * rows, (part + 1) * rows)) for part in range(parts)])

    def train(batch: Batch) -> Tensor:
        return engine.train_batch(cut(batch)).detach()

    def evaluate(batch: Batch) -> Tensor:
        return engine.eval_batch(cut(batch)).detach()

    return Trainer(train, evaluate, takes_whole_batch=True)


class _Holder(nn.Module):
    """Holds a weight that layers of several stages share."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight


def _specifications(model: nn.Module) -> list[Any]:
    """A model's layers as DeepSpeed wants them: those that share a weight also share its gradients."""
    from deepspeed.pipe import TiedLayerSpec  # pyrefly: ignore[missing-import]

    row = layer_row(model)
    assert row is not None
    weights = {id(layer.weight): f"tied-{at}" for at, layer in enumerate(row) if isinstance(layer, Tied)}
    return [
        TiedLayerSpec(weights[id(layer.weight)], _Holder, layer.weight, forward_fn=layer.forward)
        if isinstance(layer, Tied)
        else layer
        for layer in row
    ]


def _keep_own(task: Task, stages: nn.Module) -> None:
    """Let the optimizer hold what is on this rank's stage alone."""
    own = {id(parameter) for parameter in stages.parameters()}
    for group in task.optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) in own]
