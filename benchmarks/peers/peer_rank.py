"""One rank of a peer's run: weights, batches and optimizer of a suite's cell, in another framework."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from frameworks import PEERS, Task, Trainer, evaluating

from syncline.cluster.device import rank_device
from syncline.cluster.memory import MemoryMeter
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank, current_rank
from syncline.cluster.traffic import TrafficMeter
from syncline.training.batches import evaluation_batches, open_batches
from syncline.training.config_file import build_config
from syncline.training.schedule import make_optimizer, make_schedule
from syncline.training.seeding import seed_everything
from syncline.workloads.load import LoadedWorkload, load_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a peer is asked to train."""

    peer: str
    settings: dict[str, Any]
    """Of the run, as in a run's config.toml."""
    output: str


def run(argument: str) -> None:
    """The entry of a started rank."""
    order = Order(**json.loads(argument))
    rank = current_rank()
    device = rank_device(rank)
    config = build_config(order.settings, "the peer's order")
    with process_group(device):
        traffic = TrafficMeter()
        seed_everything(config.seed)
        workload = load_workload(config.model, data=config.data, seed=config.seed)
        batches = open_batches(workload, config.batch, config.seed)
        meter = MemoryMeter(device)
        model = workload.build_model().to(device)
        optimizer = make_optimizer(workload, config.optimizer, model)
        share = config.batch // rank.world_size
        trainer = PEERS[order.peer].setup(Task(model, optimizer, workload.compute_loss, share))
        schedule = make_schedule(optimizer, config.schedule, steps=config.steps, done=0)
        meter.reset_peak()
        part = slice(rank.index * share, (rank.index + 1) * share)
        lines = []
        for number in range(1, config.steps + 1):
            began = time.perf_counter()
            seed_everything(config.seed, number, rank.index)
            loss = trainer.train(batches.rows(number - 1, part))
            schedule.step()
            step_s = time.perf_counter() - began
            lines.append({"samples": number * config.batch, "loss": _mean(loss), "step_s": step_s})
        meter.pause()
        eval_loss = _evaluate(trainer, workload, config.batch, config.evaluation.batches, part)
        trainer.close()
        _tell(order, rank, lines, eval_loss, meter.peak_bytes(), traffic.sent())


def _mean(loss: torch.Tensor) -> float:
    total = loss.detach().double().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def _evaluate(
    trainer: Trainer, workload: LoadedWorkload, batch: int, count: int, part: slice
) -> float | None:
    if workload.evaluation is None or not count:
        return None
    with evaluating(trainer.model):
        losses = [
            workload.compute_loss(trainer.model, rows).detach()
            for rows in evaluation_batches(workload.evaluation, batch, count, part=part)
        ]
    return _mean(torch.stack(losses).mean())


def _tell(order: Order, rank: Rank, lines: list[dict[str, Any]], eval_loss: float | None, *own: Any) -> None:
    told: list[Any] = [None] * rank.world_size
    dist.all_gather_object(told, own)
    if not rank.is_first:
        return
    sent = [one[1] for one in told if one[1] is not None]
    result = {
        "lines": lines,
        "eval_loss": eval_loss,
        "peak_memory_bytes": [one[0] for one in told],
        "sent_bytes": {level: sum(one[level] for one in sent) for level in sent[0]} if sent else None,
        "order": asdict(order),
    }
    Path(order.output).write_text(json.dumps(result))
