"""What every benchmark writes beside its figures: when, of what commit, and on what machine."""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]


def write_record(path: Path, figures: dict[str, Any]) -> None:
    """Write a benchmark's figures with their circumstances."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 1, **environment(), **figures}, indent=2) + "\n")
    print(f"Written to {path}")


def own_peak_bytes() -> int:
    """The peak resident memory of this process.

    A child's ru_maxrss starts at what its parent held, so Linux's own figure for this program goes first.
    """
    for line in _lines("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def environment() -> dict[str, Any]:
    """When, of what and where the figures are."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    cpus = [
        line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")
    ]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "machine": {
            "cpu": cpus[0] if cpus else platform.processor(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "system": platform.platform(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
        },
    }


def origin() -> dict[str, Any]:
    """In short when, of what commit and on what processor, for a figure of a record that has several."""
    return origin_of(environment())


def origin_of(record: dict[str, Any]) -> dict[str, Any]:
    """The same of a whole record."""
    return {"date": record["date"], "commit": record["commit"], "cpu": record["machine"]["cpu"]}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
