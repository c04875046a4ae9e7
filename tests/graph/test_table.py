"""The proof of the table: every split that it allows is run, forward and backward."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from graph.op_samples import LOOKUPS, LOSSES, NORMS, PRODUCTS
from graph.op_samples_moves import MOVES, POINTWISE, RANDOM, REDUCTIONS, WINDOWS
from graph.sharded_call import as_op, check_split, splits
from syncline.graph.table import TABLE

EXACT = {**PRODUCTS, **LOOKUPS, **NORMS, **LOSSES, **REDUCTIONS, **WINDOWS, **MOVES, **POINTWISE}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", EXACT)
def test_a_split_gives_the_same_outputs_and_gradients(name: str, count: int) -> None:
    torch.manual_seed(0)
    op, inputs = as_op(EXACT[name]())
    assert op.space.ruled, f"{op.target} has no rule that fits"
    for dim in splits(op):
        size = op.space.dims[dim].size
        step = -(-size // count)
        check_split(op, inputs, {dim: -(-size // step)})


@pytest.mark.parametrize("name", EXACT)
def test_two_dims_can_be_split_at_once(name: str) -> None:
    torch.manual_seed(0)
    op, inputs = as_op(EXACT[name]())
    for first, second in combinations([dim for dim in splits(op) if op.space.sizes[dim] > 1], 2):
        check_split(op, inputs, {first: 2, second: 2})


@pytest.mark.parametrize("name", RANDOM)
def test_random_ops_are_marked(name: str) -> None:
    op, _ = as_op(RANDOM[name]())
    assert op.space.ruled
    assert op.space.random or name == "empty"


def test_every_row_has_a_sample() -> None:
    seen = set()
    for make in (*EXACT.values(), *RANDOM.values()):
        target = as_op(make())[0].target.split(".", 1)[1]
        seen |= {target, target.split(".")[0]}
    assert set(TABLE) - seen == set()
