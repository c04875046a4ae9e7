"""Where a benchmark was run: machine, versions and commit, and how fast its devices multiply."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import syncline
from syncline.cluster.device import device_type
from syncline.cluster.machine import core_count, device_name
from syncline.cluster.memory import machine_memory_bytes
from syncline.errors import RunFolderError
from syncline.launch.variables import threads_per_rank
from syncline.training.files import write_json

ENVIRONMENT_FILE = "environment.json"
_SIDE = 1024
_REPEATS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and the software."""

    date: str
    commit: str | None
    """Of Syncline's sources, where they are a git checkout; + when they were changed."""
    syncline: str
    python: str
    torch: str
    numpy: str
    system: str
    device: str
    device_kind: str
    device_count: int
    cores: int
    memory_bytes: int | None
    load: float | None
    """Of the machine in the minute before: above the number of cores it was busy."""
    matmul_flops_per_s: float
    """One accelerator, or all cores of a CPU, in a large fp32 matrix product."""
    schema: int = 1

    def devices(self, world_size: int) -> float:
        """How many accelerators, or cores, so many ranks use."""
        if self.device_kind != "cpu":
            return world_size
        return min(self.cores, world_size * threads_per_rank(world_size))

    def peak_flops_per_s(self, world_size: int) -> float:
        """What the devices of so many ranks reach together."""
        share = self.cores if self.device_kind == "cpu" else 1
        return self.matmul_flops_per_s * self.devices(world_size) / share


def look_around() -> Environment:
    """This machine, now."""
    kind = device_type()
    device = torch.device(kind, 0) if kind != "cpu" else torch.device("cpu")
    return Environment(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        syncline=syncline.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=np.__version__,
        system=platform.platform(),
        device=device_name(device),
        device_kind=kind,
        device_count=core_count() if kind == "cpu" else torch.accelerator.device_count(),
        cores=core_count(),
        memory_bytes=machine_memory_bytes(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        matmul_flops_per_s=_matmul_flops_per_s(device),
    )


def write_environment(environment: Environment, folder: Path) -> None:
    """Keep it beside the results, after those of earlier starts: their rows were measured there."""
    starts = [*read_environments(folder), environment]
    write_json(folder / ENVIRONMENT_FILE, [asdict(one) for one in starts])


def read_environments(folder: Path) -> list[Environment]:
    """Where the results of a folder come from, start by start; nothing where it was not written down."""
    path = folder / ENVIRONMENT_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        # A benchmark that could not be resumed yet wrote its only start by itself.
        return [Environment(**one) for one in (found if isinstance(found, list) else [found])]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None


def _commit() -> str | None:
    sources = Path(syncline.__file__).parents[2]
    if not (sources / "src" / "syncline").is_dir():
        return None
    git = ["git", "-C", str(sources)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True)
    except OSError:
        return None
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "") if not found.returncode else None


def _matmul_flops_per_s(device: torch.device) -> float:
    """The best of some products, on all cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(core_count())
    try:
        one, other = (torch.rand(_SIDE, _SIDE, device=device) for _ in range(2))
        best_s = min(_timed_s(one, other) for _ in range(_REPEATS))
    finally:
        torch.set_num_threads(threads)
    return 2 * _SIDE**3 / best_s


def _timed_s(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.device.type != "cpu":
        torch.accelerator.synchronize(one.device)
    began = time.perf_counter()
    product = one @ other
    if product.device.type != "cpu":
        torch.accelerator.synchronize(product.device)
    return time.perf_counter() - began
