"""Where the time of a step goes, from what all ranks did.

Every moment of a step on a rank is one of five things:

    compute     an op or a kernel runs
    data        the batch is fetched
    exposed communication, bubble
                nothing runs, and a communication ends before anything runs again: the rank stood still for
                it. It is a bubble while another rank computes, whose result is waited for, and exposed
                communication while no rank does
    overhead    nothing runs and nothing is waited for: Python between ops, mostly
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from syncline.training.inspection.reading import RankInspection
from syncline.training.inspection.spans import Spans, common, gaps, join, length, within
from syncline.training.inspection.trace import StepTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of a step, which add up to it."""

    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    overhead_s: float
    data_s: float

    @property
    def step_s(self) -> float:
        """The whole step, while it was watched."""
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step of one rank as spans by kind."""

    rank: int
    step: int
    start_s: float
    end_s: float
    kinds: dict[str, Spans]
    """By the names of `Breakdown`; what is left is overhead."""


def break_down(ranks: Sequence[RankInspection]) -> Breakdown | None:
    """The mean over the inspected steps of all ranks; None when there are none."""
    lines = timelines(ranks)
    if not lines:
        return None
    parts = [_parts(line) for line in lines]
    return Breakdown(
        **{one.name: statistics.fmean(getattr(part, one.name) for part in parts) for one in fields(Breakdown)}
    )


def timelines(ranks: Sequence[RankInspection]) -> list[Timeline]:
    """Every inspected step of every rank."""
    busy = {one.rank: join(span for step in one.steps for span in step.compute) for one in ranks}
    found = []
    for one in ranks:
        others = join(span for rank, spans in busy.items() if rank != one.rank for span in spans)
        found += [_timeline(one.rank, step, others) for step in one.steps]
    return found


def _timeline(rank: int, step: StepTrace, others: Spans) -> Timeline:
    frame = (step.start_s, step.end_s)
    data = within(step.data, frame)
    free_of_data = gaps(data, frame)
    compute = common(within(step.compute, frame), free_of_data)
    idle = gaps(join([*data, *compute]), frame)
    waiting = _waiting(idle, step.communication)
    bubble = common(waiting, others)
    exposed = [part for span in waiting for part in gaps(bubble, span)]
    kinds = {"compute_s": compute, "data_s": data, "bubble_s": bubble, "exposed_comm_s": exposed}
    return Timeline(rank=rank, step=step.step, start_s=step.start_s, end_s=step.end_s, kinds=kinds)


def _waiting(idle: Spans, communication: Spans) -> Spans:
    """The parts of idle spans up to the last communication that ends in each: then the rank could go on."""
    waiting: Spans = []
    under_way = join(communication)
    ends = sorted(end for _, end in communication)
    for start, end in idle:
        place = bisect.bisect_right(ends, end) - 1
        if place >= 0 and ends[place] > start:
            waiting += within(under_way, (start, ends[place]))
    return waiting


def _parts(line: Timeline) -> Breakdown:
    found = {name: length(spans) for name, spans in line.kinds.items()}
    overhead = line.end_s - line.start_s - sum(found.values())
    return Breakdown(**found, overhead_s=max(0.0, overhead))
