"""What this machine can do, for people who wonder why something does not run."""

from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import dataclass

import torch
import torch.distributed as dist

import syncline
from syncline.cluster.device import device_type
from syncline.cluster.memory import machine_memory_bytes
from syncline.errors import SynclineError
from syncline.launch.emulated import check_emulation_possible
from syncline.strategies.registry import STRATEGIES, parse_strategy
from syncline.training.start import CPU_RANKS

_EXTRAS = {
    "report": ("plotly", "report pages"),
    "tracking": ("tensorboard", "TensorBoard"),
    "export": ("safetensors", "exporting weights"),
    "digits": ("sklearn", "the data set digits"),
    "transformers": ("transformers", "Hugging Face models"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """Something that can run here, or not and why."""

    name: str
    summary: str
    available: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The machine, the software, and what they allow."""

    syncline: str
    python: str
    torch: str
    device: str
    device_count: int
    cores: int
    memory_bytes: int | None
    backends: list[str]
    strategies: list[Ability]
    features: list[Ability]
    schema: int = 1


def diagnose() -> Diagnosis:
    """Look at this machine."""
    kind = device_type()
    count = CPU_RANKS if kind == "cpu" else torch.accelerator.device_count()
    return Diagnosis(
        syncline=syncline.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        device=kind,
        device_count=1 if kind == "cpu" else count,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=machine_memory_bytes(),
        backends=[name for name in ("gloo", "nccl", "mpi", "xccl") if dist.is_backend_available(name)],
        strategies=[_strategy(name, count) for name in STRATEGIES],
        features=[_emulation(), *(_extra(name) for name in _EXTRAS)],
    )


def _strategy(name: str, ranks: int) -> Ability:
    strategy = parse_strategy(name)
    world_size = 1 if name == "single" else ranks
    summary = f"{strategy.summary}; {'exact' if strategy.exact else 'inexact'}"
    try:
        strategy.check(world_size=world_size, global_batch=world_size, accumulate=1)
    except SynclineError as error:
        return Ability(name=name, summary=summary, available=False, reason=str(error))
    return Ability(name=name, summary=summary, available=True)


def _emulation() -> Ability:
    summary = "nodes with slow links, on this machine"
    try:
        check_emulation_possible()
    except SynclineError as error:
        return Ability(name="--emulate", summary=summary, available=False, reason=str(error))
    return Ability(name="--emulate", summary=summary, available=True)


def _extra(name: str) -> Ability:
    package, summary = _EXTRAS[name]
    found = importlib.util.find_spec(package) is not None
    reason = None if found else f"pip install 'syncline[{name}]'"
    return Ability(name=f"[{name}]", summary=summary, available=found, reason=reason)
