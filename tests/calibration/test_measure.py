"""Measuring on real ranks: what is timed, kept, and found again. No figure is compared with a clock."""

from pathlib import Path

import pytest
import torch

from plan_samples import builtin_graph, plausible_cluster
from syncline.calibration import measure as measure_module
from syncline.calibration.measure import measure
from syncline.calibration.op_points import backward_point, forward_point
from syncline.calibration.site import find_site
from syncline.planning.measuring import calls_to_time
from syncline.planning.planner import Request, make_plan, search_tables

MODELS = ("gpt2-tiny:layers=1,width=16,heads=2,vocab=256,seq=8", "rnnlm:layers=1,width=8,vocab=256,seq=4")
CNN = "resnet18:image=32,width=4"


@pytest.mark.parametrize("model", [*MODELS, CNN])
def test_every_call_of_a_search_runs_by_itself(model):
    graph = builtin_graph(model, 4)
    tables = search_tables(graph, plausible_cluster(1, 2), Request(model=model, batch=4))
    for call in calls_to_time(tables, covered=1.0):
        for point in (forward_point, backward_point)[: 1 + call.has_backward]:
            point(call, torch.device("cpu"), sustained=False).build()()


def test_a_plan_from_measured_ops_says_so_and_the_second_one_times_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Figures of the right order are enough here, and take seconds less.
    monkeypatch.setattr(measure_module, "Order", quick_order)
    graph = builtin_graph(MODELS[0], 4)
    request = Request(model=MODELS[0], batch=4, proposals=0)
    first = measure(graph, find_site("1x2"), request, folder=tmp_path)
    assert first.timed > 3
    assert first.cluster.measured
    machine = first.calibration.machine
    assert 0 <= machine.overlap <= 1
    assert machine.optimizer_s_per_tensor + machine.optimizer_s_per_byte > 0
    assert machine.dispatch.forward_s > 0
    assert machine.process_bytes > 0
    assert all(one.forward_s > 0 for one in first.calibration.ops.values())
    again = measure(graph, find_site("1x2"), request, folder=tmp_path)
    assert again.timed == 0
    assert again == type(again)(cluster=first.cluster, calibration=first.calibration, timed=0)
    planned = make_plan(graph, first.cluster, Request(model="m", batch=4, calibration=first.calibration))
    assert planned.plan.measured
    assert planned.plan.timed_share > 0.5


def quick_order(**settings):
    from syncline.calibration.rank import Order

    return Order(**(settings | {"quick": True}))
