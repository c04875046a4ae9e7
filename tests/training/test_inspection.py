"""Taking steps apart: which ones, what their time is spent on, and what their memory holds."""

import gzip
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from syncline.errors import ConfigError
from syncline.training.inspection.breakdown import break_down
from syncline.training.inspection.kinds import KindsMeter, MemoryKinds
from syncline.training.inspection.reading import RankInspection
from syncline.training.inspection.spans import common, gaps, join, length
from syncline.training.inspection.trace import DATA_MARK, STEP_MARK, StepTrace, read_trace
from syncline.training.inspection.window import Window

NOTHING = MemoryKinds(weights=0, gradients=0, optimizer_state=0, activations=0)
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: tuple(sorted(pair))))


def covered(given_spans):
    return {unit for start, end in given_spans for unit in range(int(start), int(end))}


@given(spans, spans)
def test_spans_are_sets_of_moments(one, other):
    frame = (5.0, 50.0)
    joined, others = join(one), join(other)
    assert covered(joined) == covered(one)
    assert length(joined) == len(covered(one))
    assert covered(common(joined, others)) == covered(one) & covered(other)
    assert covered(gaps(joined, frame)) == set(range(5, 50)) - covered(one)


def test_the_window_lies_behind_the_warm_up_and_leaves_steps_to_measure():
    window = Window.of(inspect=4, steps=24)
    assert window is not None
    disturbed = [step for step in range(1, 25) if step in window]
    timed = [step for step in disturbed if window.is_timed(step)]
    assert disturbed[0] > 3
    assert len(disturbed) == 7
    assert disturbed[-1] < 24
    assert timed == disturbed[1:5]
    assert window.memory_step == disturbed[5]
    assert Window.of(inspect=0, steps=3) is None
    with pytest.raises(ConfigError, match="takes 11 steps, but the run has 9"):
        Window.of(inspect=4, steps=9)


def step(*, compute, communication=(), data=(), end=10.0):
    return StepTrace(
        step=5,
        start_s=0.0,
        end_s=end,
        compute=list(compute),
        data=list(data),
        communication=sorted(communication),
    )


def parts_of(*steps):
    ranks = [RankInspection(rank=rank, steps=[one], memory=NOTHING) for rank, one in enumerate(steps)]
    found = break_down(ranks)
    assert found is not None
    return found


def test_a_gap_in_which_communication_ends_was_a_wait():
    found = parts_of(step(compute=[(1, 4), (7, 10)], communication=[(3, 6)], data=[(0, 1)]))
    assert (found.compute_s, found.data_s, found.exposed_comm_s, found.overhead_s) == (6, 1, 2, 1)
    assert found.step_s == pytest.approx(10)


def test_a_gap_while_communication_goes_on_is_no_wait():
    found = parts_of(step(compute=[(0, 4), (5, 10)], communication=[(3, 8)]))
    assert (found.exposed_comm_s, found.overhead_s) == (0, 1)


def test_communication_that_reaches_beyond_the_step_is_not_waited_for():
    found = parts_of(step(compute=[(0, 8)], communication=[(7, 14)]))
    assert (found.exposed_comm_s, found.overhead_s) == (0, 2)


def test_of_two_at_once_the_one_that_ends_was_waited_for():
    found = parts_of(step(compute=[(0, 4), (6, 10)], communication=[(3, 5), (2, 9)]))
    assert (found.exposed_comm_s, found.overhead_s) == (1, 1)


def test_waiting_for_a_rank_that_computes_is_a_bubble():
    first = step(compute=[(0, 6), (8, 10)], communication=[(6, 8)])
    second = step(compute=[(7, 10)], communication=[(0, 7)])
    found = parts_of(first, second)
    assert found.bubble_s == pytest.approx((1 + 6) / 2)
    assert found.exposed_comm_s == pytest.approx((1 + 1) / 2)
    assert found.compute_s == pytest.approx((8 + 3) / 2)


def test_a_trace_is_read_by_the_machines_clock(tmp_path):
    def event(name, start, end, *, cat="cpu_op", tid=1):
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "ts": start * 1e6,
            "dur": (end - start) * 1e6,
            "tid": tid,
        }

    events = [
        event(STEP_MARK, 100, 110, cat="user_annotation"),
        event(DATA_MARK, 100, 101, cat="user_annotation"),
        event("aten::mm", 101, 104),
        event("autograd::engine::evaluate_function: MmBackward0", 101, 109),
        event("c10d::_allgather_base_", 104, 106),
        event("aten::copy_", 105, 106, tid=2),
        event("gloo:all_reduce", 106, 108, cat="user_annotation", tid=2),
        event("aten::add", 109, 115),
    ]
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    (found,) = read_trace(path, [(7, 1000.0)])
    assert (found.step, found.start_s, found.end_s) == (7, 1000.0, pytest.approx(1010.0))
    assert found.compute == [pytest.approx((1001, 1004)), pytest.approx((1009, 1010))]
    assert found.communication == [pytest.approx((1004, 1006)), pytest.approx((1006, 1008))]
    assert found.data == [pytest.approx((1000, 1001))]


def test_memory_by_kind():
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.rand(32, 8)
    meter = KindsMeter(model, optimizer)
    with meter.counting():
        model(inputs).square().sum().backward()
        optimizer.step()
    found = meter.found()
    weights = 4 * (8 * 16 + 16 * 4)
    assert (found.weights, found.gradients) == (weights, weights)
    assert found.optimizer_state == 2 * weights + 2 * 4
    # The inputs, what ReLU gives (kept by it and by the layer behind it alike), and what is squared.
    assert found.activations == 4 * 32 * (8 + 16 + 4)
    assert model[0].weight.grad is not None
