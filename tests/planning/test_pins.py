"""What users pin is kept, whatever it costs, and mistakes in pins are explained."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from plan_samples import builtin_graph, plausible_cluster, stack_of_linears
from syncline.errors import PlanningError
from syncline.graph import capture
from syncline.planning.pins import Pin
from syncline.planning.planner import Planned, Request, make_plan
from syncline.planning.repricing import Repricer

LINEARS = stack_of_linears((64, 128, 128, 32), 32)
CLUSTER = plausible_cluster(2, 4)


def plan(*pins: Pin, graph=LINEARS) -> Planned:
    return make_plan(graph, CLUSTER, Request(model="linears", batch=32, pins=pins, proposals=0))


def axes_of(planned: Planned, op: str, dim: str) -> set[str]:
    return set(planned.plan.ops[op].split.get(dim, ()))


def test_a_dim_is_split_over_exactly_the_axes_that_are_pinned():
    pinned = plan(Pin(ops="2/linear", split={"n": ("node.0",)}))
    assert axes_of(pinned, "2/linear", "n") == {"node.0"}
    assert pinned.chosen.prediction.step_s >= plan().chosen.prediction.step_s


def test_a_dim_stays_whole():
    pinned = plan(Pin(ops="*/linear", whole=("n", "k")))
    for name, sharding in pinned.plan.ops.items():
        if name.endswith("/linear"):
            assert not {"n", "k"} & set(sharding.split)


def test_a_pin_can_leave_devices_idle():
    """Repeating a product is not weighed by itself, but it is what the user wants here."""
    names = tuple(dim.name for dim in LINEARS.op("2/linear").space.dims)
    pinned = plan(Pin(ops="2/linear", whole=names))
    assert pinned.plan.ops["2/linear"].split == {}


def test_parameters_name_the_ops_that_use_them():
    pinned = plan(Pin(parameters="4.weight", split={"k": ("network.0",)}))
    assert axes_of(pinned, "4/linear", "k") == {"network.0"}


def test_an_axis_for_data_only_splits_nothing_but_the_batch():
    pinned = plan(Pin(data_axes=("network.0",)))
    batch = LINEARS.op("0/linear").space.dims[0].name
    split = [
        dim
        for sharding in pinned.plan.ops.values()
        for dim, axes in sharding.split.items()
        if "network.0" in axes
    ]
    assert split
    assert set(split) <= {batch, *(op.space.dims[0].name for op in LINEARS.ops)}
    for name in ("0/linear", "2/linear", "4/linear"):
        assert not {"n", "k"} & {d for d, axes in pinned.plan.ops[name].split.items() if "network.0" in axes}


def test_several_pins_hold_together():
    pinned = plan(Pin(ops="0/linear", split={"n": ("node.0", "node.1")}), Pin(ops="0/linear", whole=("k",)))
    assert axes_of(pinned, "0/linear", "n") == {"node.0", "node.1"}
    assert not axes_of(pinned, "0/linear", "k")


def test_one_of_many_equal_blocks_can_be_pinned():
    graph = builtin_graph("gpt2-tiny", 8)
    names = [op.name for op in graph.ops if op.name.endswith("up/linear")]
    assert len(names) > 1
    for name in names:
        pinned = plan(Pin(ops=name, split={"n": ("node.0", "node.1"), "k": ("network.0",)}), graph=graph)
        assert axes_of(pinned, name, "n") == {"node.0", "node.1"}
        assert axes_of(pinned, name, "k") == {"network.0"}


def test_a_plan_with_one_pinned_block_is_priced_again_as_it_was():
    graph = builtin_graph("gpt2-tiny:layers=6", 8)
    names = [op.name for op in graph.ops if op.name.endswith("up/linear")]
    pinned = plan(Pin(ops=names[3], split={"k": ("network.0", "node.0", "node.1")}), graph=graph)
    assert axes_of(pinned, names[3], "k") == {"network.0", "node.0", "node.1"}
    # The layout of a tied parameter is found again among fewer, so not to the last digit.
    again = Repricer(pinned).steps_s(CLUSTER)[0]
    assert again == pytest.approx(pinned.plan.prediction.step_s, rel=5e-3)


def test_a_pattern_speaks_of_those_ops_that_have_the_dim():
    graph = builtin_graph("gpt2-tiny", 8)
    pinned = plan(Pin(ops="*", whole=("k",)), graph=graph)
    assert not any("k" in sharding.split for sharding in pinned.plan.ops.values())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x))


def test_tied_parameters_answer_to_all_their_names():
    with torch.device("meta"):
        example = (torch.empty(16, dtype=torch.long), torch.empty(16, dtype=torch.long))
        graph = capture(Tied(), example, loss=F.cross_entropy)
    for name in ("tokens.weight", "head.weight"):
        pinned = plan(Pin(parameters=name, split={"n": ("node.0",)}), graph=graph)
        assert axes_of(pinned, "head/linear", "n") == {"node.0"}


@pytest.mark.parametrize(
    ("pin", "parts"),
    [
        (Pin(ops="layers.*", whole=("n",)), ("'layers.*'", "0/linear")),
        (Pin(parameters="head.weight", whole=("n",)), ("'head.weight'", "0.weight")),
        (Pin(ops="0/linear", whole=("q",)), ("0/linear has no dim 'q'", "n", "k")),
        (Pin(ops="0/linear", split={"n": ("rack.0",)}), ("'rack.0'", "network.0", "node.0", "node.1")),
        (Pin(data_axes=("rack.0",)), ("'rack.0'", "network.0")),
    ],
)
def test_mistakes_name_what_there_is(pin, parts):
    with pytest.raises(PlanningError) as caught:
        plan(pin)
    for part in parts:
        assert part in str(caught.value)


def test_pins_that_contradict_each_other():
    with pytest.raises(PlanningError, match="No sharding of 0/linear satisfies the pins"):
        plan(Pin(ops="0/linear", split={"n": ("node.0",)}), Pin(ops="0/linear", whole=("n",)))


def test_parts_that_are_not_equal():
    graph = stack_of_linears((64, 6, 32), 32)
    with pytest.raises(PlanningError, match="divide evenly"):
        plan(Pin(ops="0/linear", split={"n": ("node.0", "node.1")}), graph=graph)
