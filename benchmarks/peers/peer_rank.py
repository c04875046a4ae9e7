"""One rank of a peer's run: weights, batches and optimizer of a suite's cell, in another framework."""

from __future__ import annotations

import gc
import json
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from frameworks import PEERS
from peer import Task, Trainer

from syncline.cluster.device import rank_device
from syncline.cluster.memory import MemoryMeter
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank, current_rank
from syncline.cluster.traffic import TrafficMeter
from syncline.training.batches import evaluation_batches, open_batches
from syncline.training.config import TrainConfig
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rank has seen of the training."""

    lines: list[dict[str, Any]]
    """One for each step, the same on every rank but for times."""
    eval_loss: float | None
    peak_bytes: int | None
    sent: dict[str, int] | None


def run(argument: str) -> None:
    """The entry of a started rank."""
    started = time.monotonic()
    order = Order(**json.loads(argument))
    rank = current_rank()
    device = rank_device(rank)
    config = build_config(order.settings, "the peer's order")
    with process_group(device), warnings.catch_warnings():
        # What frameworks do that torch would rather have done otherwise is not for those who compare them.
        warnings.simplefilter("ignore")
        outcome = _train(order.peer, config, rank, device)
        # Before the group: one whose last holder is a reducer joins a thread that may wait for the GIL.
        gc.collect()
        _tell(order, rank, outcome, started)


def _train(name: str, config: TrainConfig, rank: Rank, device: torch.device) -> Outcome:
    """Nothing of the framework is held when this returns."""
    traffic = TrafficMeter()
    seed_everything(config.seed)
    workload = load_workload(config.model, data=config.data, seed=config.seed, input=config.input)
    batches = open_batches(workload, config.batch, config.seed)
    meter = MemoryMeter(device)
    model = workload.build_model().to(device)
    optimizer = make_optimizer(workload, config.optimizer, model)
    share = config.batch // rank.world_size
    setup = PEERS[name].setup
    assert setup is not None
    trainer = setup(Task(model, optimizer, workload.compute_loss, share))
    schedule = make_schedule(optimizer, config.schedule, steps=config.steps, done=0)
    meter.reset_peak()
    part = slice(None) if trainer.takes_whole_batch else slice(rank.index * share, (rank.index + 1) * share)
    lines = []
    for number in range(1, config.steps + 1):
        began = time.perf_counter()
        seed_everything(config.seed, number, rank.index)
        loss = trainer.train(batches.rows(number - 1, part))
        schedule.step()
        step_s = time.perf_counter() - began
        lines.append({"samples": number * config.batch, "loss": _mean(loss), "step_s": step_s})
    meter.pause()
    eval_loss = _evaluate(trainer, workload, config, part)
    trainer.close()
    return Outcome(lines=lines, eval_loss=eval_loss, peak_bytes=meter.peak_bytes(), sent=traffic.sent())


def _mean(loss: torch.Tensor) -> float:
    total = loss.detach().double().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def _evaluate(trainer: Trainer, workload: LoadedWorkload, config: TrainConfig, part: slice) -> float | None:
    count = config.evaluation.batches
    if workload.evaluation is None or not count:
        return None
    batches = evaluation_batches(workload.evaluation, config.batch, count, part=part)
    return _mean(torch.stack([trainer.evaluate(rows) for rows in batches]).mean())


def _tell(order: Order, rank: Rank, outcome: Outcome, started: float) -> None:
    """The first rank writes what all have seen."""
    told: list[Any] = [None] * rank.world_size
    dist.all_gather_object(told, (outcome.peak_bytes, outcome.sent))
    if not rank.is_first:
        return
    peaks, sent = [one[0] for one in told], [one[1] for one in told if one[1] is not None]
    result = {
        "lines": outcome.lines,
        "eval_loss": outcome.eval_loss,
        "peak_memory_bytes": None if None in peaks else peaks,
        "sent_bytes": {level: sum(one[level] for one in sent) for level in sent[0]} if sent else None,
        "wall_s": time.monotonic() - started,
        "order": asdict(order),
    }
    Path(order.output).write_text(json.dumps(result))
