"""What ranks do in the benchmark of training across slow links: train one strategy after another.

All strategies of a cluster, model and seed are trained by the same ranks, one after another, from the same
weights on the same batches.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import statistics
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from daso_torchft import TORCHFT, torchft_run
from record import origin
from syncline.cluster.device import rank_device
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank, current_rank
from syncline.cluster.traffic import TrafficMeter
from syncline.errors import SynclineError
from syncline.strategies.averaging.cycling import CyclingStep
from syncline.training.config import EvaluationConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from syncline.training.run import Run, open_loop, prepare_run
from syncline.training.sinks import METRICS_FILE
from syncline.training.stop_flag import StopFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training."""

    cluster: str
    model: str
    strategy: str
    seed: int
    steps: int
    batch: int
    clip_norm: float | None
    adamw_rate: float | None
    """The learning rate of AdamW; the model's usual optimizer without it."""

    def key(self) -> str:
        """The name under which its result is kept."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def config(self, ranks: int) -> TrainConfig:
        """The same for all strategies but for the strategy."""
        return TrainConfig(
            model=self.model,
            strategy=self.strategy,
            ranks=ranks,
            batch=self.batch,
            steps=self.steps,
            seed=self.seed,
            clip_norm=self.clip_norm,
            optimizer=OptimizerConfig(lr=self.adamw_rate) if self.adamw_rate else None,
            schedule=ScheduleConfig(shape="cosine", warmup_steps=self.steps // 20, floor=0.1),
            evaluation=EvaluationConfig(batches=32),
        )


def train_cells(argument: str) -> None:
    """Train cells one after another until the time is over; the first rank writes a file for each."""
    order = json.loads(argument)
    rank = current_rank()
    device = rank_device(rank)
    with process_group(device):
        for given in order["cells"]:
            if _agree(time.time() > order["until"], device):
                break
            cell = Cell(**given)
            result = _train(cell, rank, device)
            if rank.is_first:
                path = Path(order["folder"]) / f"{cell.key()}.json"
                path.write_text(json.dumps({**asdict(cell), **result, "measured": origin()}))
            gc.collect()


def _train(cell: Cell, rank: Rank, device: torch.device) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        traffic = TrafficMeter()
        try:
            with (
                _opened(cell, rank, device) as run,
                open_loop(run, Path(folder), None, StopFlag()) as loop,
            ):
                loop.run()
                sent = traffic.sent() or {}
        except SynclineError as error:
            return {"status": "failed", "reason": str(error)}
        total = torch.tensor(float(sent.get("network", 0)), dtype=torch.float64, device=device)
        dist.all_reduce(total)
        if not rank.is_first:
            return {}
        lines = [json.loads(line) for line in (Path(folder) / METRICS_FILE).read_text().splitlines()]
    measured = loop.measurements
    return {
        "status": "ok",
        "losses": [line["loss"] for line in lines],
        "time_s": [line["time_s"] for line in lines],
        "eval_loss": measured.eval_loss,
        "exposed_s": measured.exposed_s,
        "median_step_s": statistics.median(measured.steady_step_s),
        "network_bytes": total.item(),
    }


def _opened(cell: Cell, rank: Rank, device: torch.device) -> AbstractContextManager[Run]:
    config = cell.config(rank.world_size)
    if cell.strategy in TORCHFT:
        return torchft_run(config, rank, device)
    return nullcontext(prepare_run(config, rank, device))


def measure_exposure(argument: str) -> None:
    """What each rank does: train with longer and longer waits, until an exchange fits into one."""
    order = json.loads(argument)
    rank = current_rank()
    device = rank_device(rank)
    wait = order["wait"]
    with process_group(device):
        told = _exposure(order, wait, rank, device)
        while not _agree(told["blocking_exchange_s"] <= wait * told["median_step_s"], device):
            wait *= 2
            told = _exposure(order, wait, rank, device)
    if rank.is_first:
        Path(order["result"]).write_text(json.dumps(told))


def _exposure(order: dict[str, Any], wait: int, rank: Rank, device: torch.device) -> dict[str, Any]:
    """Some blocking steps, then steps with a wait."""
    blocking, cycles = 20, 12
    config = TrainConfig(
        model=order["model"],
        strategy=f"daso:warm-up={blocking},cool-down=0,review-every={2 * wait},"
        f"sync-every={wait + 2},wait={wait}",
        ranks=rank.world_size,
        batch=order["batch"],
        steps=blocking + cycles * (wait + 2),
        evaluation=EvaluationConfig(batches=0),
    )
    run = prepare_run(config, rank, device)
    with tempfile.TemporaryDirectory() as folder, open_loop(run, Path(folder), None, StopFlag()) as loop:
        for _ in range(blocking):
            loop.train_once()
        blocked_s = run.step.exposed_s or 0.0
        loop.run()
        exposed_s = (run.step.exposed_s or 0.0) - blocked_s
    if not isinstance(run.step, CyclingStep):
        raise TypeError(f"{config.strategy} makes steps of {type(run.step).__name__}")
    exchanges = run.step.weights.exchange.times.exchanges
    return {
        "wait": wait,
        "median_step_s": statistics.median(loop.measurements.step_s[blocking:]),
        "blocking_exchange_s": blocked_s / blocking,
        "exchanges": exchanges,
        "exposed_s": exposed_s / exchanges,
        "ratio": exposed_s / exchanges / (blocked_s / blocking),
    }


def measure_pace(argument: str) -> None:
    """What each rank does: blocks of steps with each strategy in turns, for the ratio of their paces."""
    order = json.loads(argument)
    rank = current_rank()
    device = rank_device(rank)
    rounds, block = order["rounds"], order["block"]
    times: dict[str, list[float]] = {strategy: [] for strategy in order["strategies"]}
    with process_group(device), ExitStack() as stack:
        loops = {}
        for strategy in times:
            config = TrainConfig(
                model=order["model"],
                strategy=strategy,
                ranks=rank.world_size,
                batch=order["batch"],
                steps=10 * (rounds + 1) * block,
                evaluation=EvaluationConfig(batches=0),
            )
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            run = prepare_run(config, rank, device)
            loops[strategy] = stack.enter_context(open_loop(run, folder, None, StopFlag()))
        for number, strategy in itertools.product(range(rounds + 1), times):
            dist.barrier()
            began_s = time.perf_counter()
            for _ in range(block):
                loops[strategy].train_once()
            dist.barrier()
            if number:
                times[strategy].append((time.perf_counter() - began_s) / block)
    if rank.is_first:
        base = times[order["strategies"][0]]
        told = {
            strategy: {
                "median_step_s": statistics.median(own),
                "ratio": statistics.median(a / b for a, b in zip(own, base, strict=True)),
            }
            for strategy, own in times.items()
        }
        Path(order["result"]).write_text(json.dumps(told))


def _agree(claim: bool, device: torch.device) -> bool:
    """What the first rank says."""
    told = torch.tensor(float(claim), device=device)
    dist.broadcast(told, src=0)
    return bool(told.item())
