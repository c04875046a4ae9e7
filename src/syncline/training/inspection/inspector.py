"""Watches the steps of a window on one rank, and writes down what it saw."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from syncline.strategies.protocol import TrainStep
from syncline.training.files import write_text
from syncline.training.inspection.kinds import KindsMeter, MemoryKinds
from syncline.training.inspection.reading import INSPECTION_FOLDER, to_text
from syncline.training.inspection.trace import DATA_MARK, STEP_MARK, StepTrace, read_trace
from syncline.training.inspection.window import Window


class Inspector:
    """Steps outside its window pass through it untouched."""

    def __init__(self, window: Window | None, folder: Path, rank: int, device: torch.device) -> None:
        self.window = window
        self._folder = folder / INSPECTION_FOLDER
        self._rank = rank
        self._device = device
        self._profile: Any = None
        self._began: list[tuple[int, float]] = []
        self._steps: list[StepTrace] = []
        self._is_timed = False

    def disturbs(self, step: int) -> bool:
        """Whether a step takes another time than it would without being watched."""
        return self.window is not None and step in self.window

    @contextmanager
    def around(self, number: int, step: TrainStep) -> Iterator[None]:
        """Within, a step is made. What watching takes before and after is no part of it."""
        window = self.window
        if window is None or number not in window:
            yield
            return
        if window.is_traced(number) and self._profile is None:
            self._profile = self._start()
        self._is_timed = window.is_timed(number)
        meter = KindsMeter(step.model, step.optimizer) if number == window.memory_step else None
        with self._mark(number), meter.counting() if meter is not None else nullcontext():
            yield
        self._is_timed = False
        if number == window.first + window.timed:
            self._stop()
        if meter is not None:
            self._write(meter.found())

    def fetching(self) -> AbstractContextManager[Any]:
        """Within, a batch is fetched."""
        return record_function(DATA_MARK) if self._is_timed else nullcontext()

    @contextmanager
    def _mark(self, number: int) -> Iterator[None]:
        if not self._is_timed:
            yield
            return
        with record_function(STEP_MARK):
            self._began.append((number, time.time()))
            yield
            if self._device.type != "cpu":
                torch.accelerator.synchronize(self._device)

    def _start(self) -> Any:
        kinds = [ProfilerActivity.CPU]
        if self._device.type != "cpu":
            kinds.append(ProfilerActivity[self._device.type.upper()])
        started = profile(activities=kinds)
        started.start()
        return started

    def _stop(self) -> None:
        self._profile.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank-{self._rank}.trace.json.gz"
        self._profile.export_chrome_trace(str(path))
        self._profile = None
        self._steps = read_trace(path, self._began)

    def _write(self, memory: MemoryKinds) -> None:
        text = to_text(self._rank, self._steps, asdict(memory))
        write_text(self._folder / f"rank-{self._rank}.json", text)
