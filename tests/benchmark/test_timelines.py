"""The drawn step of each rank: it shows the shares that were measured."""

import pytest

from syncline.benchmark.timelines import shown_timeline
from syncline.training.inspection.breakdown import break_down
from syncline.training.inspection.kinds import MemoryKinds
from syncline.training.inspection.reading import RankInspection
from syncline.training.inspection.trace import StepTrace

NOTHING = MemoryKinds(weights=0, gradients=0, optimizer_state=0, activations=0)
NOW_S = 1.8e9
"""Profilers count from 1970."""


def test_what_is_drawn_adds_up_to_what_was_measured():
    """Thousands of short ops fill nine tenths of the first half of a step, and none runs in the second."""
    ops = [(NOW_S + 1e-5 * place, NOW_S + 1e-5 * place + 0.9e-5) for place in range(2500)]
    step = StepTrace(step=7, start_s=NOW_S, end_s=NOW_S + 0.05, compute=ops, communication=[], data=[])
    ranks = [RankInspection(rank=0, steps=[step], memory=NOTHING)]
    ((line,),) = [shown_timeline(ranks)]
    drawn: dict[str, float] = {}
    for span in line["spans"]:
        drawn[span["kind"]] = drawn.get(span["kind"], 0.0) + span["end_s"] - span["start_s"]
    measured = break_down(ranks)
    assert measured is not None
    assert measured.compute_s == pytest.approx(0.0225, rel=1e-2)
    # A piece is drawn as the kind that fills most of it, so that the gaps between short ops are not seen.
    assert drawn == pytest.approx({"compute_s": 0.025, "overhead_s": 0.025}, rel=1e-2)
    assert len(line["spans"]) == 2
