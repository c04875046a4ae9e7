"""Evaluating the newest checkpoint of a run in this process, and every head of a model trained in blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.nn.functional import nll_loss

from syncline.cluster.device import rank_device
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank
from syncline.errors import CheckpointError, DataError, StrategyError
from syncline.strategies.local.head_state import CUTS_KEY
from syncline.strategies.local.step import LocalStep
from syncline.strategies.local.strategy import LocalParallel
from syncline.strategies.protocol import Job, Strategy, TrainStep
from syncline.strategies.registry import parse_strategy
from syncline.strategies.single import Single
from syncline.training.batches import evaluation_batches
from syncline.training.checkpoint_info import latest_checkpoint
from syncline.training.config import TrainConfig
from syncline.training.loading import load_step
from syncline.training.run_folder import CHECKPOINTS_FOLDER, read_config
from syncline.training.schedule import make_optimizer
from syncline.workloads.example import workload_batch
from syncline.workloads.load import LoadedWorkload, load_workload
from syncline.workloads.workload import Batch

MODEL, ENSEMBLE = "model", "ensemble"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well one head, the whole model, or all together predict."""

    name: str
    """Where the head's block ends and which kind it is; `model`; or `ensemble`, the mean of all."""
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation came to."""

    checkpoint: str
    samples: int
    eval_loss: float
    heads: tuple[Score, ...] = ()


def evaluate_run(folder: Path, *, heads: bool = False, batches: int | None = None) -> Evaluation:
    """Evaluate the newest checkpoint of a run.

    Args:
        folder: The run's.
        heads: Also score each block's head by itself, and their ensemble; for runs with strategy `local`.
        batches: Global batches of the evaluation split; by default all.

    Raises:
        StrategyError: Heads are asked for, but the run has none.
    """
    config = read_config(folder)
    path = latest_checkpoint(folder / CHECKPOINTS_FOLDER)
    if path is None:
        raise CheckpointError(f"The run in {folder} has no checkpoint to evaluate.")
    workload = load_workload(config.model, data=config.data, seed=config.seed, input=config.input)
    if workload.evaluation is None:
        raise DataError(f"The run in {folder} has no samples to evaluate on.")
    device = rank_device(Rank())
    with process_group(device):
        strategy = _in_one_process(config, path) if heads else Single()
        step = _make_step(config, workload, strategy, device)
        load_step(step, path)
        given = list(evaluation_batches(workload.evaluation, config.batch, batches))
        loss = torch.stack([step.evaluate(batch).double() for batch in given]).mean().item()
        scores = _score(step, given) if isinstance(step, LocalStep) else ()
    return Evaluation(
        checkpoint=path.name, samples=len(given) * config.batch, eval_loss=loss, heads=tuple(scores)
    )


def _in_one_process(config: TrainConfig, path: Path) -> Strategy:
    """The run's strategy with all its blocks on one rank, where the checkpoint has them."""
    strategy = parse_strategy(config.strategy)
    if not isinstance(strategy, LocalParallel):
        raise StrategyError(
            f"The run was trained with strategy '{strategy.name}', which has no heads: only 'local' has.\n"
            "Leave --heads out."
        )
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    if CUTS_KEY not in saved:
        raise CheckpointError(f"The checkpoint {path} does not say where its blocks end.")
    found: dict[str, Any] = {CUTS_KEY: ""}
    dcp.load(found, storage_reader=dcp.FileSystemReader(path))
    cuts = str(found[CUTS_KEY]) or None
    return dataclasses.replace(
        strategy, variant="chunked", overlap=None, chunks=None if cuts else 1, cuts=cuts, stages=1
    )


def _make_step(
    config: TrainConfig, workload: LoadedWorkload, strategy: Strategy, device: torch.device
) -> TrainStep:
    model = workload.build_model().to(device)
    return strategy.setup(
        Job(
            model=model,
            optimizer=make_optimizer(workload, config.optimizer, model),
            compute_loss=workload.compute_loss,
            rank=Rank(),
            device=device,
            options=dataclasses.replace(config.step_options, accumulate=1, activation_checkpointing=False),
            example=workload_batch(workload, config.batch),
        )
    )


def _score(step: LocalStep, batches: list[Batch]) -> list[Score]:
    names = [block.name if block.head is not None else MODEL for block in step.blocks]
    if len(names) > 1:
        names.append(ENSEMBLE)
    totals = {name: torch.zeros(2, dtype=torch.float64) for name in names}
    for batch in batches:
        targets = _targets(batch)
        chances = [_aligned(logits, targets).softmax(-1) for logits in step.predict(batch)]
        chances += [torch.stack(chances).mean(0)] if len(chances) > 1 else []
        for name, chance in zip(names, chances, strict=True):
            totals[name] += _loss_and_accuracy(chance, targets)
    return [
        Score(name=name, loss=float(total[0]) / len(batches), accuracy=float(total[1]) / len(batches))
        for name, total in totals.items()
    ]


def _targets(batch: Batch) -> Tensor:
    if not isinstance(batch, Mapping):
        return batch[1]
    found = [batch[key] for key in ("labels", "targets") if key in batch]
    if not found:
        raise DataError(f"A batch with the keys {', '.join(batch)} has no targets to compare heads with.")
    return found[0]


def _aligned(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits of the targets alone: a causal model is given one token more, and predicts beyond it."""
    if logits.ndim == 3 and logits.shape[1] == targets.shape[1] + 1:
        logits = logits[:, :-1]
    if logits.shape[:-1] != targets.shape:
        raise StrategyError(
            f"The heads give logits of shape {tuple(logits.shape)} for targets of shape "
            f"{tuple(targets.shape)}: there is no accuracy to show."
        )
    return logits.float()


def _loss_and_accuracy(chances: Tensor, targets: Tensor) -> Tensor:
    flat, wanted = chances.flatten(0, -2), targets.flatten().to(chances.device)
    loss = nll_loss(flat.clamp_min(1e-12).log(), wanted)
    return torch.stack([loss, (flat.argmax(-1) == wanted).double().mean()]).double().cpu()
