"""Ops whose dims are split over real ranks, against the whole op in one process: outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import combinations
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from graph.op_samples import PRODUCTS, Call, aten, recurrent
from graph.sharded_call import as_op, gradients, run_whole
from strategies.kernel_grid import Counts, Grid, own_pieces
from strategies.kernel_samples import SAMPLES
from syncline.graph.opgraph import Op, TensorRef
from syncline.graph.shards import cut, local_sizes
from syncline.graph.space import DimKind, Operand
from syncline.strategies.planned.kernels import OpShard, exchange_kernel


def _splits(op: Op, ways: int) -> list[Counts]:
    """One dim in two, or two dims in two each, at least one of which needs an exchange."""
    averaged = op.space.local == "mean_valid"

    def exchanges(dim: int) -> bool:
        kind = op.space.dims[dim].kind
        return kind is DimKind.COLLECTIVE or (averaged and kind is DimKind.SUM)

    dims = [dim for dim in op.space.splittable if op.space.sizes[dim] > 1]
    chosen = combinations(dims, {2: 1, 4: 2}[ways])
    return [dict.fromkeys(one, 2) for one in chosen if any(map(exchanges, one))]


def _exchanging(op: Op) -> Counts:
    """The first dim whose shards exchange something, in two."""
    return {next(dim for dim in range(len(op.space.dims)) if op.space.dims[dim].exchange): 2}


def _check(op: Op, inputs: list[Tensor], counts: Counts, grid: Grid) -> None:
    space, parts = op.space, grid.parts(op, counts)

    def whole(tensor: Tensor, operand: Operand, kinds: tuple[DimKind, ...]) -> Tensor:
        """Sums what is partial."""
        lacked = frozenset(d for d in counts if not operand.has(d) and space.dims[d].kind in kinds)
        tensor = tensor.detach().clone()
        if lacked:
            dist.all_reduce(tensor, group=grid.group(counts, lacked))
        return tensor

    pieces = own_pieces(inputs, space.inputs, op, parts)
    copies = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    outputs = run_whole(op, copies)
    found = exchange_kernel(grid.shard(op, counts))(*pieces)
    for one, expected, operand in zip(found, outputs, space.outputs, strict=True):
        assert one.shape == operand.shape(local_sizes(space.sizes, parts))
        piece = cut(expected, operand, space.sizes, parts)
        torch.testing.assert_close(whole(one, operand, (DimKind.SUM,)), piece)
    sent = [torch.randn_like(one) for one in outputs]
    expected_gradients = gradients(outputs, copies, sent)
    found_gradients = gradients(found, pieces, own_pieces(sent, space.outputs, op, parts))
    for index, operand in enumerate(space.inputs):
        expected, gradient = expected_gradients[index], found_gradients[index]
        if expected is None or gradient is None:
            assert expected is gradient
            continue
        piece = cut(expected, operand, space.sizes, parts)
        torch.testing.assert_close(whole(gradient, operand, tuple(DimKind)), piece)
    # Running statistics, and what must not change.
    torch.testing.assert_close(pieces, own_pieces(copies, space.inputs, op, parts))


def _run_samples() -> list[str]:
    grid, done = Grid(), []
    ways = dist.get_world_size()
    for name, make in SAMPLES.items():
        torch.manual_seed(0)
        op, inputs = as_op(make())
        for counts in _splits(op, ways):
            try:
                _check(op, inputs, counts, grid)
            except Exception as error:
                error.add_note(f"{name}, split {[op.space.dims[dim].name for dim in counts]}")
                raise
            done.append(name)
    return done


@pytest.mark.parametrize("ways", [2, 4])
def test_kernels_are_exact(run_ranks: Callable[..., list[Any]], ways: int) -> None:
    done, *_ = run_ranks(_run_samples, ways)
    collective = {
        name
        for name, make in SAMPLES.items()
        if any(dim.kind is DimKind.COLLECTIVE for dim in as_op(make())[0].space.dims)
    }
    assert collective - set(done) <= ({"cross_entropy_loss of one"} if ways == 4 else set())


def _in_half(sample: Call) -> tuple[Op, list[Tensor]]:
    """As under autocast: parameters in fp32, what flows in bf16."""
    op, inputs = as_op(sample)
    named = {index: name for name, index in _first_places(op).items()}
    halves = [
        one.detach().to(torch.bfloat16 if named.get(place) in ("input", "self", "hx") else torch.float32)
        if one.is_floating_point()
        else one
        for place, one in enumerate(inputs)
    ]
    return op, [half.requires_grad_(one.requires_grad) for half, one in zip(halves, inputs, strict=True)]


def _first_places(op: Op) -> dict[str, int]:
    """Where the arguments that are tensors, or begin with one, are among the inputs."""
    places, count = {}, 0
    for name, value in op.arguments.items():
        refs = [
            one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, TensorRef)
        ]
        if refs:
            places[name] = count
        count += len(refs)
    return places


HALVES = ("layer_norm", "rms_norm", "softmax", "log_softmax", "batch_norm", "cross_entropy_loss", "gru")


def _run_under_autocast() -> None:
    grid = Grid()
    for name in HALVES:
        torch.manual_seed(0)
        op, inputs = _in_half(SAMPLES[name]())
        shard = grid.shard(op, _exchanging(op))
        pieces = own_pieces(inputs, op.space.inputs, op, shard.parts)
        with torch.autocast("cpu", torch.bfloat16):
            expected = run_whole(op, [one.detach().clone() for one in inputs])[0]
            found = exchange_kernel(shard)(*pieces)[0]
        assert found.dtype == expected.dtype, name
        piece = cut(expected, op.space.outputs[0], op.space.sizes, shard.parts)
        torch.testing.assert_close(found, piece, atol=0.02, rtol=0.02)
        found.float().sum().backward()
        assert all(one.grad.dtype == one.dtype for one in pieces if one.grad is not None)
        assert any(one.grad is not None for one in pieces)


def _run_frozen() -> None:
    """Where only some inputs want gradients, these are right."""
    grid = Grid()
    for name in ("layer_norm", "batch_norm", "lstm", "gru", "softmax", "cross_entropy_loss"):
        torch.manual_seed(0)
        op, inputs = as_op(SAMPLES[name]())
        for wanted in range(len(inputs)):
            some = [
                one.detach().requires_grad_(index == wanted and one.requires_grad)
                for index, one in enumerate(inputs)
            ]
            _check(op, some, _exchanging(op), grid)


def _run_dropout() -> None:
    """Masks are the same on all shards: they give what one shard of everything gives."""
    grid = Grid()
    torch.manual_seed(0)
    target, args, kwargs = recurrent(aten.lstm.input, 4, 2, layers=2)
    op, inputs = as_op((target, (*args[:5], 0.5, *args[6:]), kwargs))
    results = []
    for shard in (OpShard(op, {}, lambda dims: pytest.fail("alone")), grid.shard(op, _exchanging(op))):
        pieces = own_pieces(inputs, op.space.inputs, op, shard.parts)
        # The second shard has a random stream of its own.
        torch.manual_seed(grid.rank if shard.parts else 0)
        output = exchange_kernel(shard)(*pieces)[0]
        results.append([output.detach(), *torch.autograd.grad(output.sum(), pieces[3:])])
    operands = [op.space.outputs[0], *op.space.inputs[3:]]
    expected = own_pieces(results[0], operands, op, grid.parts(op, _exchanging(op)))
    torch.testing.assert_close(results[1], expected)
    undropped = run_whole(as_op((target, args, kwargs))[0], inputs)[0]
    assert not torch.allclose(undropped, results[0][0])


def _run_counted() -> None:
    """No more collectives than the table says, forward and backward."""
    grid = Grid()
    with ExitStack() as stack:
        counted = [
            stack.enter_context(mock.patch.object(dist, name, wraps=getattr(dist, name)))
            for name in ("all_reduce", "all_gather_single", "reduce_scatter_single")
        ]
        for name in ("layer_norm", "rms_norm", "softmax", "batch_norm", "cross_entropy_loss", "lstm", "gru"):
            op, inputs = as_op(SAMPLES[name]())
            (dim,) = _exchanging(op)
            exchange, shard = op.space.dims[dim].exchange, grid.shard(op, {dim: 2})
            assert exchange is not None
            before = sum(one.call_count for one in counted)
            outputs = exchange_kernel(shard)(*own_pieces(inputs, op.space.inputs, op, shard.parts))
            forward = sum(one.call_count for one in counted) - before
            torch.autograd.backward([one.sum() for one in outputs])
            backward = sum(one.call_count for one in counted) - before - forward
            assert 0 < forward <= exchange.forward_rounds.count(shard.sizes), name
            assert backward <= exchange.backward_rounds.count(shard.sizes), name


@pytest.mark.parametrize(
    "function", [_run_under_autocast, _run_frozen, _run_dropout, _run_counted], ids=lambda one: one.__name__
)
def test_kernels(run_ranks: Callable[..., list[Any]], function: Callable[[], None]) -> None:
    run_ranks(function, 2)


def test_an_op_without_a_kernel_is_named() -> None:
    op, _ = as_op(PRODUCTS["linear"]())
    with pytest.raises(NotImplementedError, match=f"{op.name}: aten.linear.default has no kernel"):
        exchange_kernel(OpShard(op, {}, lambda dims: pytest.fail("no group is needed")))
