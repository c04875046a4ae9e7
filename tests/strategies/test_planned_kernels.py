"""Ops whose dims are split over real ranks, against the whole op in one process: outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from graph.op_samples import (
    LOSSES,
    NORMS,
    PRODUCTS,
    Call,
    aten,
    call,
    ints,
    plain,
    real,
    recurrent,
    targets_with_ignored,
)
from graph.sharded_call import as_op, gradients, run_whole
from syncline.graph.opgraph import Op
from syncline.graph.shards import Part, cut, local_sizes
from syncline.graph.space import DimKind, Operand
from syncline.strategies.planned.kernels import OpShard, exchange_kernel

Counts = Mapping[int, int]


def _masked_scores() -> Call:
    """The first half of every row is masked away, as causal attention does with keys."""
    scores = plain(4, 6)
    scores[:, :3] = -torch.inf
    return call(aten.softmax.int, scores.requires_grad_(), -1)


def _far_from_zero() -> Call:
    return call(aten.layer_norm.default, (plain(4, 8) + 1e5).requires_grad_(), [8], real(8), real(8))


def _without_biases(sample: Call) -> Call:
    target, args, kwargs = sample
    weights = [one for index, one in enumerate(args[2]) if index % 4 < 2]
    return target, (*args[:2], weights, False, *args[4:]), kwargs


def _statistics(channels: int) -> tuple[Tensor, Tensor]:
    return plain(channels), plain(channels).abs()


def _class_losses() -> dict[str, Callable[[], Call]]:
    """Every reduction, with and without class weights and label smoothing."""
    cases: dict[str, Callable[[], Call]] = {}
    for reduction, weighted, smoothing in product((0, 1, 2), (False, True), (0.0, 0.2)):
        cases[f"cross entropy {reduction} {weighted} {smoothing}"] = (
            lambda r=reduction, w=weighted, s=smoothing: call(
                aten.cross_entropy_loss.default,
                real(4, 6, 2),
                targets_with_ignored(6, 4, 2),
                plain(6).abs() if w else None,
                r,
                label_smoothing=s,
            )
        )
    return cases


MORE: dict[str, Callable[[], Call]] = {
    **_class_losses(),
    "softmax of masked scores": _masked_scores,
    "log_softmax over the first of three": lambda: call(aten.log_softmax.int, real(6, 4, 2), 0),
    "layer_norm far from zero": _far_from_zero,
    "layer_norm over two with weights": lambda: call(
        aten.layer_norm.default, real(3, 4, 6), [4, 6], real(4, 6), real(4, 6)
    ),
    "layer_norm without bias": lambda: call(aten.layer_norm.default, real(4, 6), [6], real(6)),
    "layer_norm of unequal parts": lambda: call(aten.layer_norm.default, real(4, 7), [7], real(7), real(7)),
    "rms_norm over two": lambda: call(aten.rms_norm.default, real(3, 4, 6), [4, 6], real(4, 6), 1e-3),
    "rms_norm of a constant": lambda: call(aten.rms_norm.default, plain(4, 6), [6], real(6)),
    "batch_norm of rows": lambda: call(
        aten.batch_norm.default, real(6, 4), None, None, *_statistics(4), True, 0.3, 1e-5, False
    ),
    "batch_norm of unequal parts": lambda: call(
        aten.batch_norm.default, real(5, 4, 3), real(4), real(4), None, None, True, 0.1, 1e-3, False
    ),
    "cross_entropy_loss of one": lambda: call(aten.cross_entropy_loss.default, real(6), ints(6)),
    "cross_entropy_loss of unequal parts": lambda: call(
        aten.cross_entropy_loss.default, real(5, 7), ints(7, 5)
    ),
    "nll_loss weighted": lambda: call(
        aten.nll_loss_nd.default, real(4, 6), targets_with_ignored(6, 4), plain(6).abs()
    ),
    "gru both ways": lambda: recurrent(aten.gru.input, 3, 1, layers=2, ways=2, first=False),
    "gru without biases": lambda: _without_biases(recurrent(aten.gru.input, 3, 1, layers=2)),
    "lstm without biases": lambda: _without_biases(recurrent(aten.lstm.input, 4, 2)),
}
SAMPLES = {**NORMS, **LOSSES, **PRODUCTS, **MORE}


class Grid:
    """Ranks of a group that split dims, the last dim fastest."""

    def __init__(self) -> None:
        world = range(dist.get_world_size())
        sets = [ranks for size in (1, 2, 4) for ranks in combinations(world, size)]
        self._groups: dict[tuple[int, ...], Any] = {ranks: dist.new_group(list(ranks)) for ranks in sets}
        self.rank = dist.get_rank()

    def parts(self, op: Op, counts: Counts) -> dict[int, Part]:
        places = list(product(*[range(count) for count in counts.values()]))
        return {
            dim: Part.of(op.space.sizes[dim], counts[dim], place)
            for dim, place in zip(counts, places[self.rank], strict=True)
        }

    def group(self, counts: Counts, dims: frozenset[int]) -> dist.ProcessGroup:
        places = list(product(*[range(count) for count in counts.values()]))
        fixed = [index for index, dim in enumerate(counts) if dim not in dims]
        own = places[self.rank]
        ranks = [rank for rank, place in enumerate(places) if all(place[i] == own[i] for i in fixed)]
        return self._groups[tuple(ranks)]


def _splits(op: Op, ways: int) -> list[Counts]:
    """One dim in two, or two dims in two each, at least one of which needs an exchange."""
    averaged = op.space.local == "mean_valid"

    def exchanges(dim: int) -> bool:
        kind = op.space.dims[dim].kind
        return kind is DimKind.COLLECTIVE or (averaged and kind is DimKind.SUM)

    dims = [dim for dim in op.space.splittable if op.space.sizes[dim] > 1]
    chosen = combinations(dims, {2: 1, 4: 2}[ways])
    return [dict.fromkeys(one, 2) for one in chosen if any(map(exchanges, one))]


def _check(op: Op, inputs: list[Tensor], counts: Counts, grid: Grid) -> None:
    space = op.space
    parts = grid.parts(op, counts)

    def own(tensors: Any, operands: tuple[Operand, ...]) -> list[Tensor]:
        pairs = zip(tensors, operands, strict=True)
        return [cut(one, operand, space.sizes, parts).detach().clone() for one, operand in pairs]

    def whole(tensor: Tensor, operand: Operand, kinds: tuple[DimKind, ...]) -> Tensor:
        """Sums what is partial."""
        lacked = frozenset(d for d in counts if not operand.has(d) and space.dims[d].kind in kinds)
        tensor = tensor.detach().clone()
        if lacked:
            dist.all_reduce(tensor, group=grid.group(counts, lacked))
        return tensor

    pieces = [
        piece.requires_grad_(one.requires_grad)
        for piece, one in zip(own(inputs, space.inputs), inputs, strict=True)
    ]
    copies = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    outputs = run_whole(op, copies)
    found = exchange_kernel(OpShard(op, parts, lambda dims: grid.group(counts, dims)))(*pieces)
    for one, expected, operand in zip(found, own(outputs, space.outputs), space.outputs, strict=True):
        assert one.shape == operand.shape(local_sizes(space.sizes, parts))
        torch.testing.assert_close(whole(one, operand, (DimKind.SUM,)), expected, equal_nan=True)
    sent = [torch.randn_like(one) for one in outputs]
    expected_gradients = gradients(outputs, copies, sent)
    found_gradients = gradients(found, pieces, own(sent, space.outputs))
    for index, operand in enumerate(space.inputs):
        expected, gradient = expected_gradients[index], found_gradients[index]
        if expected is None:
            assert gradient is None
            continue
        assert gradient is not None
        (piece,) = own([expected], (operand,))
        torch.testing.assert_close(whole(gradient, operand, tuple(DimKind)), piece, equal_nan=True)
    for copy, piece, operand in zip(copies, pieces, space.inputs, strict=True):
        # Running statistics, and what must not change.
        torch.testing.assert_close(piece, cut(copy, operand, space.sizes, parts), equal_nan=True)


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
