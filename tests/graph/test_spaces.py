"""Iteration spaces of single ops: what can be split, and how, and what the op keeps for backward."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.op_samples import LOOKUPS, LOSSES, NORMS, PRODUCTS, aten, call, ints, real
from graph.op_samples_moves import MOVES, REDUCTIONS
from graph.sharded_call import as_op, check_split, splits
from syncline.graph.notation import NotationError, Rule, fit
from syncline.graph.opgraph import Op
from syncline.graph.space import DimKind

SAMPLES = {**PRODUCTS, **LOOKUPS, **NORMS, **LOSSES, **MOVES, **REDUCTIONS}
EXPECTED = {
    "linear": "b0:free b1:free k:sum n:free",
    "bmm": "b:free m:free k:sum n:free",
    "addmm": "n:free m:free k:sum",
    "conv2d": "b:free c:sum n:free",
    "conv2d 1x1": "b:free c:sum o0:free o1:free n:free",
    "conv2d depthwise": "b:free g:free",
    "conv2d grouped": "b:free g:free c:sum n:free",
    "attention": "d0:free d1:free s:free",
    "attention causal": "d0:free d1:free",
    "attention of grouped queries": "d0:free d1:free g:free",
    "lstm": "b:free h:collective",
    "embedding": "v:sum d:free b0:free b1:free",
    "layer_norm": "d0:free d1:free k0:collective",
    "group_norm": "b:free g:free",
    "batch_norm": "b:collective c:free",
    "batch_norm in evaluation": "b:free c:free x0:free",
    "softmax": "d0:free d1:free k:collective",
    "cross_entropy_loss": "b:sum c:collective",
    "cross_entropy_loss by row": "b:free c:collective",
    "cross_entropy_loss of probabilities": "b:sum",
    "sum over dims": "d0:sum d1:free d2:sum",
    "max": "d0:free d2:free",
    "reshape splits a dim": "d0:free d1:free d2:free d3:free",
    "cat": "d0:free",
    "split_with_sizes": "d0:free d1:free",
    "expand": "b0:free b1:free b2:free",
    "index_select": "d0:free d2:free i:free",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_can_be_split(name: str) -> None:
    space = as_op(SAMPLES[name]())[0].space
    found = " ".join(f"{space.dims[dim].name}:{space.dims[dim].kind}" for dim in space.splittable)
    assert found == EXPECTED[name]


def test_a_merged_dim_is_contiguous_only_along_its_outermost_factor() -> None:
    op = as_op(call(aten.view.default, real(4, 6, 24), [4, 6, 3, 8]))[0]
    assert op.space.notation == "d0 d1 (d2 d3) -> d0 d1 d2 d3"
    assert [op.space.dims[dim].name for dim in op.space.contiguous] == ["d0", "d1", "d2"]
    assert op.space.dims[op.space.index("d2")].size == 3


def test_gates_are_strided_in_the_weights_alone() -> None:
    space = as_op(PRODUCTS["lstm"]())[0].space
    hidden = space.index("h")
    weights = range(3, len(space.inputs))
    assert hidden not in space.contiguous
    assert hidden in space.contiguous_beside(weights)


def test_a_bias_is_added_once() -> None:
    space = as_op(PRODUCTS["linear"]())[0].space
    assert [operand.once for operand in space.inputs] == [False, False, True]


def test_flops_follow_local_sizes_and_wanted_gradients() -> None:
    op = as_op(call(aten.linear.default, real(4, 8), real(10, 8), real(10)))[0]
    assert (op.forward_flops, op.backward_flops) == (2 * 4 * 8 * 10, 4 * 4 * 8 * 10)
    assert op.space.forward_flops(op.space.local_sizes({op.space.index("k"): 4})) == 2 * 4 * 2 * 10
    frozen = as_op(call(aten.linear.default, torch.randn(4, 8), real(10, 8).float()))[0]
    assert frozen.backward_flops == 2 * 4 * 8 * 10


def test_a_rule_that_does_not_fit_says_so() -> None:
    with pytest.raises(NotationError, match="make 4, not 6"):
        fit(Rule("k, k -> ."), ((4,), (6,)), ((),))
    with pytest.raises(NotationError, match="fewer tensors"):
        fit(Rule("k -> k"), ((4,), (4,)), ((4,),))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes of the same size: random groupings of the same or of shuffled factors."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5))
    shuffled = draw(st.permutations(factors)) if draw(st.booleans()) else factors

    def grouped(numbers: list[int]) -> list[int]:
        cuts = sorted(draw(st.sets(st.integers(1, len(numbers)), max_size=3)) | {len(numbers)})
        starts = [0, *cuts[:-1]]
        return [math.prod(numbers[start:stop]) for start, stop in zip(starts, cuts, strict=True)]

    return grouped(factors), grouped(list(shuffled))


@settings(max_examples=150, deadline=None)
@given(reshapes())
def test_any_view_can_be_split_where_its_space_says(shapes: tuple[list[int], list[int]]) -> None:
    before, after = shapes
    if before == after:
        return
    op, inputs = as_op(call(aten.view.default, real(*before), after))
    for operand, shape in zip((op.space.inputs[0], op.space.outputs[0]), (before, after), strict=True):
        assert operand.shape(op.space.sizes) == tuple(shape)
    for dim in splits(op):
        check_split(op, inputs, {dim: 2})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_any_broadcast_can_be_split(dims: list[tuple[int, bool, bool]]) -> None:
    left = [1 if narrow else extent for extent, narrow, _ in dims]
    right = [1 if narrow else extent for extent, _, narrow in dims]
    op, inputs = as_op(call(aten.mul.Tensor, real(*left), real(*right[1:])))
    for dim in splits(op):
        check_split(op, inputs, {dim: 2})


def saved_names(op: Op) -> set[str]:
    names = [f"in{place}" for place in range(len(op.inputs))] + ["out"] * len(op.outputs)
    tensors = [*op.inputs, *op.outputs]
    return {names[tensors.index(index)] for index in op.saved}


def test_what_is_saved_for_backward_is_what_autograd_saves() -> None:
    linear = as_op(PRODUCTS["linear"]())[0]
    assert saved_names(linear) == {"in0", "in1"}
    assert saved_names(as_op(call(aten.gelu.default, real(4, 6)))[0]) == {"in0"}
    assert saved_names(as_op(call(aten.relu.default, real(4, 6)))[0]) == {"out"}
    assert saved_names(as_op(call(aten.add.Tensor, real(4, 6), real(4, 6)))[0]) == set()
    dropout = as_op(call(aten.dropout.default, real(4, 6), 0.5, True))[0]
    assert dropout.saved_extra_bytes > 0
    loss = as_op(call(aten.cross_entropy_loss.default, real(8, 6), ints(6, 8)))[0]
    assert loss.saved_extra_bytes >= 8 * 6 * 8
    assert as_op(call(aten.gelu.default, torch.randn(4, 6)))[0].saved == ()


def test_every_exchange_is_of_a_size_that_shrinks_with_other_splits() -> None:
    space = as_op(NORMS["layer_norm"]())[0].space
    normed = next(dim for dim in space.dims if dim.kind is DimKind.COLLECTIVE)
    assert normed.exchange is not None
    whole = normed.exchange.forward.count(space.sizes)
    half = normed.exchange.forward.count(space.local_sizes({0: 2}))
    assert (whole, half) == (2 * 4 * 6, 4 * 6)
