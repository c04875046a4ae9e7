"""From the profiler's trace of some steps to what the rank did when: compute, fetch data, communicate.

The trace is torch's own, in Chrome's form; Perfetto opens it. On a CPU the ops of the thread that makes the
step count as computing (gloo's own threads call ops too), on an accelerator the kernels that ops start.
Communication is what is under way, whoever waits for it, and every call that returns only when it is over.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.strategies.under_way import WAIT_MARK
from syncline.training.inspection.spans import Spans, join, within

STEP_MARK, DATA_MARK = "syncline.step", "syncline.data"
_COLLECTIVE = re.compile(r"_?c10d\w*::")
_OP = re.compile(r"(?!_?c10d|autograd::|torch::autograd)\w+::")
_IN_FLIGHT = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel", WAIT_MARK)
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_US = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One step of one rank; seconds, on the clock of the machine."""

    step: int
    start_s: float
    end_s: float
    compute: Spans
    data: Spans
    communication: Spans
    """Each one that is under way in the step, whole, also where they overlap or reach beyond it."""


def read_trace(path: Path, began_s: Sequence[tuple[int, float]]) -> list[StepTrace]:
    """The marked steps of a trace.

    Args:
        path: What the profiler wrote, packed by gzip.
        began_s: Number of each marked step in order, and when it began by the machine's clock: the trace has
            a clock of its own.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("ph") == "X"]
    marks = sorted(_spans(events, STEP_MARK))
    data = join(_spans(events, DATA_MARK))
    own = {one.get("tid") for one in events if one["name"] == STEP_MARK}
    communication = sorted(_span(one) for one in events if _communicates(one, own))
    kernels = [one for one in events if one.get("cat") in _ON_DEVICE and not _communicates(one, own)]
    ops = [one for one in events if one.get("tid") in own and _is_op(one)]
    compute = join(_span(one) for one in kernels or ops)
    steps = []
    for (number, began), frame in zip(began_s, marks, strict=True):
        shift = began - frame[0]
        steps.append(
            StepTrace(
                step=number,
                start_s=began,
                end_s=frame[1] + shift,
                compute=_moved(within(compute, frame), shift),
                data=_moved(within(data, frame), shift),
                communication=_moved([one for one in communication if within([one], frame)], shift),
            )
        )
    return steps


def _communicates(event: dict[str, Any], threads: set[Any]) -> bool:
    name = event["name"]
    called = event.get("tid") in threads and _COLLECTIVE.match(name) is not None
    return called or name.startswith(_IN_FLIGHT)


def _is_op(event: dict[str, Any]) -> bool:
    return event.get("cat") == "cpu_op" and _OP.match(event["name"]) is not None


def _span(event: dict[str, Any]) -> tuple[float, float]:
    return float(event["ts"]) * _US, (float(event["ts"]) + float(event["dur"])) * _US


def _spans(events: Iterable[dict[str, Any]], name: str) -> Spans:
    return [_span(one) for one in events if one["name"] == name and one.get("cat") == "user_annotation"]


def _moved(spans: Spans, shift: float) -> Spans:
    return [(start + shift, end + shift) for start, end in spans]
