"""Where metrics go while a run is under way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from syncline.errors import MissingExtraError
from syncline.training.files import write_text

METRICS_FILE = "metrics.jsonl"
Metrics = dict[str, Any]


class Sink(Protocol):
    """Takes the metrics of each step."""

    def write(self, metrics: Metrics) -> None:
        """Take one step's metrics; `step` is always among them."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...


class JsonlSink:
    """`metrics.jsonl`: one line a step, readable while the run goes on."""

    def __init__(self, path: Path, *, done: int) -> None:
        """Steps after `done`, left by an interrupted run, are dropped: they will be made again."""
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            write_text(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= done))
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, metrics: Metrics) -> None:
        """Append a line."""
        self._file.write(json.dumps(metrics) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardSink:
    """Event files for TensorBoard, in the run's folder."""

    def __init__(self, folder: Path, *, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboard", "tracking", "tracking = ['tensorboard']") from None
        self._writer = SummaryWriter(str(folder), purge_step=done + 1)

    def write(self, metrics: Metrics) -> None:
        """Add each number as a scalar."""
        for name, value in metrics.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, metrics["step"])

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


def open_sinks(folder: Path, tracking: Sequence[str], *, done: int) -> list[Sink]:
    """The sinks of a run on its first rank."""
    sinks: list[Sink] = [JsonlSink(folder / METRICS_FILE, done=done)]
    if "tensorboard" in tracking:
        sinks.append(TensorBoardSink(folder / "tensorboard", done=done))
    return sinks


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):
        return float("inf")
