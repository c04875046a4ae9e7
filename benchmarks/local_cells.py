"""Trainings in one process with the strategy `local`, and what they cost in FLOPs: cells of benchmarks.

FLOPs are counted by the paper's rule. A block of layers costs its forward and backward pass, less the
gradient of its input, which nobody needs, and three forward passes of its head. *Total* adds up all blocks;
*serial* is the costliest block alone, for with a device each they work at the same time. Backpropagation is
one block.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR

from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank
from syncline.graph.cutting import Cutting
from syncline.strategies.local.building import BlockPlan
from syncline.strategies.local.step import LocalStep
from syncline.strategies.protocol import Job
from syncline.strategies.registry import parse_strategy
from syncline.training.batches import GlobalBatches, evaluation_batches
from syncline.workloads.example import workload_batch
from syncline.workloads.load import LoadedWorkload, load_workload

HEAD_PASSES = 3


@dataclass(frozen=True)
class Cell:
    """One training."""

    task: str
    model: str
    data: str
    method: str
    options: str
    """Of the strategy `local`."""
    rate: float
    """Learning rate of AdamW at the start; it falls to 0 by a cosine."""
    seed: int
    batch: int
    steps: int
    every: int
    """Steps between evaluations."""
    evaluation_rows: int
    """Held-out samples of each."""

    @property
    def key(self) -> str:
        """What makes it another training than others: its blocks, by whatever name and options.

        Raises:
            StrategyError: The options do not fit the model.
        """
        given = {name: value for name, value in asdict(self).items() if name not in ("method", "options")}
        trained = what_is_trained(self.model, self.data, self.batch, self.options)
        return json.dumps(given | {"trained": trained}, sort_keys=True)


class Cells:
    """Trainings whose results are kept in a file, and processes that run those that it lacks."""

    def __init__(self, path: Path, jobs: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._done: dict[str, dict[str, Any]] = {row["key"]: row for row in map(json.loads, lines)}
        self._path = path
        self._jobs = jobs
        self._pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Cells:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run(self, cells: Sequence[Cell], ends: float) -> list[dict[str, Any]]:
        """Run what the file does not have yet, add it, and give all; starts none after `ends`.

        Cells that train the same share one training.
        """
        waiting = deque({cell.key: cell for cell in cells if cell.key not in self._done}.values())
        running: set[Future[dict[str, Any]]] = set()
        while running or (waiting and time.monotonic() < ends):
            while waiting and len(running) < self._jobs and time.monotonic() < ends:
                running.add(self._pool.submit(run_cell, waiting.popleft()))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for row in (one.result() for one in finished):
                self._keep(row)
        return [self._done[cell.key] | {"cell": asdict(cell)} for cell in cells if cell.key in self._done]

    def _keep(self, row: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._done[row["key"]] = row
        print(_line(row), flush=True)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train one cell; its loss and accuracy on held-out samples over steps and CPU seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(cell.seed)
    workload = load_workload(cell.model, data=cell.data, seed=cell.seed)
    if workload.data is None or workload.data.evaluation is None:
        raise TypeError("a cell needs data to train and to evaluate on")
    with process_group(torch.device("cpu")):
        step = _make_step(workload, cell.options, cell.batch, cell.rate)
        batches = GlobalBatches(workload.data.train, cell.batch, cell.seed)
        schedule = CosineAnnealingLR(step.optimizer, T_max=cell.steps)
        curve, spent = [], 0.0
        for number in range(1, cell.steps + 1):
            batch = batches.rows(number - 1)
            # The processor's own time of this one thread: others on the machine do not count.
            started = time.process_time()
            loss = step(batch)
            spent += time.process_time() - started
            schedule.step()
            if number % cell.every == 0 or number == cell.steps:
                point = _evaluate(step, workload, cell) | {"train_loss": float(loss)}
                curve.append({"step": number, "samples": number * cell.batch, "seconds": spent} | point)
                if not np.isfinite(point["loss"]):
                    break
        total, serial = flops(step.plans.training, step.plans.blocks, cell.batch)
    return {
        "key": cell.key,
        "cell": asdict(cell),
        "curve": curve,
        "flops_per_sample": total,
        "serial_flops_per_sample": serial,
        "notes": list(step.notes),
    }


def flops(cutting: Cutting, plans: Iterable[BlockPlan], rows: int) -> tuple[float, float]:
    """Of one sample: of all blocks, and of the costliest."""
    graph, start = cutting.graph, None
    costs = []
    for plan in plans:
        end = cutting.end if plan.head is None else cutting.point(plan.cut)
        ops = [graph.ops[op] for op in cutting.part(start, end).ops]
        saved = sum(op.forward_flops for op in ops if start is not None and start.tensor in op.inputs)
        head = 0 if plan.head is None else HEAD_PASSES * plan.head.forward_flops
        costs.append((sum(op.flops for op in ops) - saved + head) / rows)
        start = end
    return sum(costs), max(costs)


@cache
def what_is_trained(model: str, data: str, batch: int, options: str) -> list[Any]:
    """The blocks that options make of a model, with their heads, and how losses teach them."""
    with process_group(torch.device("cpu")):
        step = _make_step(load_workload(model, data=data, seed=0), options, batch, rate=0.0)
    blocks = [
        (plan.cut, plan.head and (plan.head.kind, plan.head.forward_flops, plan.head.shares))
        for plan in step.plans.blocks
    ]
    return [blocks, step.rule.overlap, step.rule.combine]


def _make_step(workload: LoadedWorkload, options: str, batch: int, rate: float) -> LocalStep:
    model = workload.build_model()
    job = Job(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01),
        compute_loss=workload.compute_loss,
        rank=Rank(),
        device=torch.device("cpu"),
        example=workload_batch(workload, batch),
    )
    step = parse_strategy(f"local:stages=1,{options}").setup(job)
    if not isinstance(step, LocalStep):
        raise TypeError("cells are trained with the strategy local")
    return step


def _evaluate(step: LocalStep, workload: LoadedWorkload, cell: Cell) -> dict[str, float]:
    """Mean loss and accuracy of the model on the first held-out batches."""
    assert workload.evaluation is not None
    losses, hits, count = [], 0, 0
    limit = max(1, cell.evaluation_rows // cell.batch)
    for batch in evaluation_batches(workload.evaluation, cell.batch, limit):
        if not isinstance(batch, tuple):
            raise TypeError("cells are trained on pairs of inputs and targets")
        logits = step.predict(batch)[-1].flatten(0, -2)
        targets = batch[1].flatten()
        losses.append(float(cross_entropy(logits, targets)))
        hits += int((logits.argmax(-1) == targets).sum())
        count += len(targets)
    return {"loss": float(np.mean(losses)), "accuracy": hits / count}


def _line(row: dict[str, Any]) -> str:
    cell, last = row["cell"], row["curve"][-1]
    where = (
        f"{cell['task']} {cell['method']}, batch {cell['batch']}, lr {cell['rate']:g}, seed {cell['seed']}"
    )
    return f"{where}: loss {last['loss']:.4f}, accuracy {last['accuracy']:.3f}, {last['seconds']:.1f} s"
