"""What Syncline costs on top of a hand-written loop: `data` against bare DDP, taking turns in one run.

    python benchmarks/overhead.py [--model gpt2-small:seq=128] [--batch 4] [--rounds 12] [-o FILE]

Both train the same model on the same batches on 2 ranks. Syncline's side is its whole loop: batches, seeding,
schedule, agreement on the loss, metrics. The bare side is what a tutorial shows. They take turns by `STEPS`
steps, so that a busy machine slows both alike; the ratio of their median steps is reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from record import write_record
from syncline.cluster.device import rank_device
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import current_rank
from syncline.launch.local import launch_local
from syncline.training.batches import GlobalBatches
from syncline.training.config import EvaluationConfig, OptimizerConfig, TrainConfig
from syncline.training.run import open_loop, prepare_run
from syncline.training.stop_flag import StopFlag
from syncline.workloads.load import load_workload

RANKS = 2
STEPS = 2
WARM_UP_ROUNDS = 1


def main() -> None:
    """Start the ranks and write what they measured."""
    arguments = _parse()
    with tempfile.TemporaryDirectory() as folder:
        order = {
            "model": arguments.model,
            "batch": arguments.batch,
            "rounds": arguments.rounds,
            "folder": folder,
        }
        launch_local("overhead:measure", json.dumps(order), ranks=RANKS, logs=Path(folder) / "logs")
        times = json.loads((Path(folder) / "times.json").read_text())
    ours, bare = statistics.median(times["ours"]), statistics.median(times["bare"])
    rounds = [a / b for a, b in zip(times["ours"], times["bare"], strict=True)]
    result = {
        "model": arguments.model,
        "batch": arguments.batch,
        "ranks": RANKS,
        "rounds": arguments.rounds,
        "syncline_step_s": ours,
        "bare_step_s": bare,
        "ratio_of_medians": ours / bare,
        "median_of_ratios": statistics.median(rounds),
        "limit": 1.03,
    }
    print(json.dumps(result, indent=2))
    write_record(arguments.output, result)


def measure(argument: str) -> None:
    """What each rank does: both contenders in turns."""
    order = json.loads(argument)
    device = rank_device(current_rank())
    config = TrainConfig(
        model=order["model"],
        strategy="data",
        ranks=RANKS,
        batch=order["batch"],
        steps=10**6,
        optimizer=OptimizerConfig(lr=1e-5),
        evaluation=EvaluationConfig(batches=0),
    )
    with process_group(device):
        run = prepare_run(config, current_rank(), device)
        bare = _bare_step(config, device)
        with open_loop(run, Path(order["folder"]), None, StopFlag()) as loop:
            times = _take_turns(loop.train_once, bare, order["rounds"])
        if current_rank().is_first:
            (Path(order["folder"]) / "times.json").write_text(json.dumps(times))


def _bare_step(config: TrainConfig, device: torch.device) -> Callable[[], None]:
    """A plain DDP loop's body on the same model and data."""
    workload = load_workload(config.model, seed=config.seed)
    model = workload.build_model().to(device)
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.01)
    if workload.data is None:
        raise TypeError("the benchmark needs a model with built-in data")
    batches = GlobalBatches(workload.data.train, config.batch, config.seed)
    share = config.batch // RANKS
    part = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    steps = iter(range(10**6))

    def step() -> None:
        batch = batches.rows(next(steps), part)
        if not isinstance(batch, tuple):
            raise TypeError("the benchmark trains on pairs of inputs and targets")
        loss = F.cross_entropy(replica(batch[0]).flatten(0, 1), batch[1].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def _take_turns(ours: Callable[[], None], bare: Callable[[], None], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    contenders = {"ours": ours, "bare": bare}
    for number in range(rounds + WARM_UP_ROUNDS):
        order = list(contenders) if number % 2 else list(reversed(contenders))
        for name in order:
            dist.barrier()
            started = time.perf_counter()
            for _ in range(STEPS):
                contenders[name]()
            if number >= WARM_UP_ROUNDS:
                times[name].append((time.perf_counter() - started) / STEPS)
    return times


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="gpt2-small:seq=128")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results/overhead.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
