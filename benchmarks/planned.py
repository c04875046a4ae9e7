"""What running plans costs and gains: against bare DDP, torch's tensor parallelism, and all other strategies.

    python benchmarks/planned.py [--only overhead gain local] [--rounds 6] [-o FILE]

All contenders of a setting train the same model on the same ranks and take turns of half a second or a step,
so that a busy machine slows all alike. Reported is the median of the ratios of each turn. Settings:

- overhead: a pure data-parallel plan against bare DDP (limit 1.05), and Megatron's layout as a plan against
  the same layout made by `torch.distributed.tensor.parallel.parallelize_module` (limits 1.02 and 0.9).
- gain: on emulated nodes with slow links, the plan that the search finds against bare DDP (at least 1.3 x
  faster at 1 Gbit/s, 4 x at 200 Mbit/s) and against every other exact strategy (at most 1.10 x the best).
- local: on plain local ranks, the plan that the search finds against bare DDP (at least 0.95 x as fast).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from contenders import Contender, make_contender
from record import write_record
from syncline.cluster.device import rank_device
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import current_rank
from syncline.launch.emulated import launch_emulated, parse_emulation
from syncline.launch.local import launch_local

RANKS = 2
WARM_UP_STEPS = 2
TURN_S, MOST_STEPS = 0.5, 24
"""A turn is as many steps as take about so long: single short ones are mostly noise."""


@dataclass(frozen=True)
class Setting:
    """A model on a cluster, and who trains it."""

    part: str
    model: str
    batch: int
    contenders: tuple[str, ...]
    """The first is what is measured, the second what it is measured against."""
    emulate: str | None = None
    limit: float | None = None
    """Of the ratio of step times, the first over the second."""


EXACT = ("planned", "ddp", "data", "zero1", "sharded", "tensor:degree=2")
ALEXNET = "alexnet:dropout=0"
RNNLM = "rnnlm:width=512,vocab=40000,seq=16"
SETTINGS = (
    Setting("overhead", "gpt2-small:seq=128,dropout=0", 4, ("data plan", "ddp"), limit=1.05),
    Setting("overhead", "resnet50:image=96,norm=group", 8, ("data plan", "ddp"), limit=1.05),
    Setting(
        "overhead", "gpt2-small:seq=128,dropout=0", 4, ("megatron plan", "parallelize_module"), limit=1.02
    ),
    Setting("overhead", "gpt2-tiny:dropout=0", 16, ("megatron plan", "parallelize_module"), limit=0.9),
    Setting("gain", ALEXNET, 16, (*EXACT, "random search"), "2x1@1gbit", 1 / 1.3),
    Setting("gain", ALEXNET, 16, EXACT, "2x1@200mbit", 1 / 4),
    Setting("gain", RNNLM, 32, (*EXACT, "random search"), "2x1@1gbit", 1 / 1.3),
    Setting("gain", RNNLM, 32, EXACT, "2x1@200mbit", 1 / 4),
    Setting("local", "mlp:layers=4,width=2048", 64, EXACT, limit=1 / 0.95),
    Setting("local", ALEXNET, 32, EXACT, limit=1 / 0.95),
    Setting("local", RNNLM, 32, EXACT, limit=1 / 0.95),
    Setting("local", "gpt2-tiny:dropout=0", 16, EXACT, limit=1 / 0.95),
    Setting("local", "resnet18:image=64,norm=group", 16, EXACT, limit=1 / 0.95),
    Setting("local", "vgg16:image=64,dropout=0", 8, EXACT, limit=1 / 0.95),
    Setting("local", "inception3:size=tiny,norm=group", 16, EXACT, limit=1 / 0.95),
    Setting(
        "local",
        "transformer:layers=2,width=256,hidden=1024,vocab=8000,seq=64,dropout=0",
        16,
        EXACT,
        limit=1 / 0.95,
    ),
    Setting("local", "resnet50:image=64,norm=group", 8, EXACT, limit=1 / 0.95),
    Setting("local", "resnet110:depth=20,norm=group", 16, EXACT, limit=1 / 0.95),
    Setting("local", "gpt2-small:layers=4,seq=64,dropout=0", 4, EXACT, limit=1 / 0.95),
    Setting("local", "gpt2-medium:layers=2,seq=64,dropout=0", 4, EXACT, limit=1 / 0.95),
    Setting("local", "llama-7b:size=tiny,layers=4,width=128,seq=128", 16, EXACT, limit=1 / 0.95),
    Setting("local", "llama-70b:size=tiny,layers=4,width=128,seq=128", 16, EXACT, limit=1 / 0.95),
)


def main() -> None:
    """Run the settings and write what came of them; settings that are not run are kept from before."""
    arguments = _parse()
    results = _read(arguments.output)
    for setting in SETTINGS:
        key = _key(setting)
        if arguments.only and not any(word in key for word in arguments.only):
            continue
        print(f"{key} ...", flush=True)
        results[key] = asdict(setting) | run_setting(setting, arguments.rounds)
        print(_line(key, results[key]), flush=True)
        write_record(arguments.output, {"settings": results})


def run_setting(setting: Setting, rounds: int) -> dict[str, Any]:
    """Step times of all contenders, and their ratios to the one that is measured against."""
    with tempfile.TemporaryDirectory() as folder:
        order = json.dumps({"setting": SETTINGS.index(setting), "rounds": rounds, "folder": folder})
        logs = Path(folder) / "logs"
        if setting.emulate is None:
            launch_local("planned:measure", order, ranks=RANKS, logs=logs)
        else:
            launch_emulated("planned:measure", order, emulation=parse_emulation(setting.emulate), logs=logs)
        told = json.loads((Path(folder) / "told.json").read_text())
    times = told["times"]
    base = times[setting.contenders[1]]
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, base, strict=True))
        for name, found in times.items()
    }
    measured = setting.contenders[0]
    best = min(ratios, key=lambda name: ratios[name])
    return {
        "median_step_s": medians,
        "ratio": ratios,
        "best": best,
        "to_best": statistics.median(a / b for a, b in zip(times[measured], times[best], strict=True)),
        "holds": setting.limit is None or ratios[measured] <= setting.limit,
        "predicted_step_s": told["predicted"],
        "losses": told["losses"],
    }


def measure(argument: str) -> None:
    """What each rank does: all contenders in turns."""
    order = json.loads(argument)
    setting = SETTINGS[order["setting"]]
    device = rank_device(current_rank())
    with process_group(device):
        contenders = {
            name: make_contender(name, setting.model, setting.batch, device, setting.emulate)
            for name in setting.contenders
        }
        times = _take_turns(contenders, setting.contenders[1], order["rounds"], device)
        told = {
            "times": times,
            "predicted": {name: one.predicted_step_s for name, one in contenders.items()},
            "losses": {name: one.last_loss() for name, one in contenders.items()},
        }
        if current_rank().is_first:
            (Path(order["folder"]) / "told.json").write_text(json.dumps(told))


def _take_turns(
    contenders: dict[str, Contender], base: str, rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds a step of each contender by turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        _turn(contender, WARM_UP_STEPS)
    steps = torch.tensor(min(MOST_STEPS, max(1, round(TURN_S / _turn(contenders[base], 1)))), device=device)
    dist.broadcast(steps, 0)
    for number in range(rounds):
        for name in list(contenders) if number % 2 else list(reversed(contenders)):
            times[name].append(_turn(contenders[name], int(steps)))
    return times


def _turn(contender: Contender, steps: int) -> float:
    dist.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        contender.step()
    dist.barrier()
    return (time.perf_counter() - started) / steps


def _key(setting: Setting) -> str:
    where = f" at {setting.emulate}" if setting.emulate else ""
    return f"{setting.part}: {setting.contenders[0]} against {setting.contenders[1]}, {setting.model}{where}"


def _line(key: str, result: dict[str, Any]) -> str:
    shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in result["ratio"].items())
    return (
        f"{key}\n  {shown}; to the best ({result['best']}) {result['to_best']:.3f}; holds: {result['holds']}"
    )


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["settings"] if path.exists() else {}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", nargs="*", default=[], help="run settings whose name has one of these words"
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results/planned.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
