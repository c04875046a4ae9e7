"""The proof of `collective` dims: each op split along one, with its shards talking through a counted group.

The shards are run side by side in one process, and autograd follows what they say to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graph.op_samples import LOSSES, NORMS, PRODUCTS
from graph.sharded_call import as_op, gradients, run_whole
from syncline.graph.opgraph import Op
from syncline.graph.shards import Part, cut, join, local_sizes
from syncline.graph.space import DimKind

Shards = list[Tensor]


class Group:
    """Shards that exchange tensors, and the elements that one of them has put in."""

    def __init__(self) -> None:
        self.sent = 0
        self.rounds = 0

    def total(self, *shards: Shards) -> Shards:
        """Sums; several tensors share one collective."""
        self._count(shards)
        return [torch.stack(list(one)).sum(0) for one in shards]

    def largest(self, shards: Shards) -> Tensor:
        self._count([shards])
        return torch.stack(list(shards)).amax(0).detach()

    def gather(self, shards: Shards, dim: int = -1) -> Tensor:
        self._count([shards])
        return torch.cat(list(shards), dim)

    def _count(self, exchanged: Sequence[Shards]) -> None:
        self.sent += sum(one[0].numel() for one in exchanged)
        self.rounds += 1


def split_softmax(op: Op, group: Group, pieces: list[Shards]) -> list[Shards]:
    dim = op.arguments["dim"]
    values = [own[0] for own in pieces]
    top = group.largest([one.amax(dim, keepdim=True) for one in values])
    (total,) = group.total([(one - top).exp().sum(dim, keepdim=True) for one in values])
    if "log" in op.target:
        return [[one - top - total.log()] for one in values]
    return [[(one - top).exp() / total] for one in values]


def split_layer_norm(op: Op, group: Group, pieces: list[Shards]) -> list[Shards]:
    dims = tuple(range(-len(op.arguments["normalized_shape"]), 0))
    count = torch.Size(op.arguments["normalized_shape"]).numel()
    rms = "rms" in op.target
    squares = [own[0].square().sum(dims, keepdim=True) for own in pieces]
    if rms:
        (square,) = group.total(squares)
        mean, spread = torch.zeros_like(square), square / count
        eps = torch.finfo(square.dtype).eps
    else:
        plain, square = group.total([own[0].sum(dims, keepdim=True) for own in pieces], squares)
        mean = plain / count
        spread, eps = square / count - mean.square(), op.arguments["eps"]
    normed = [(own[0] - mean) * (spread + eps).rsqrt() for own in pieces]
    weighted = [one * own[1] if len(own) > 1 else one for one, own in zip(normed, pieces, strict=True)]
    return [[one + own[2] if len(own) > 2 else one] for one, own in zip(weighted, pieces, strict=True)]


def split_batch_norm(op: Op, group: Group, pieces: list[Shards]) -> list[Shards]:
    dims = (0, *range(2, pieces[0][0].ndim))
    shape = [1, -1] + [1] * (pieces[0][0].ndim - 2)
    count = sum(own[0].numel() // own[0].shape[1] for own in pieces)
    plain, square = group.total([p[0].sum(dims) for p in pieces], [p[0].square().sum(dims) for p in pieces])
    mean = plain / count
    scale = (square / count - mean.square() + op.arguments["eps"]).rsqrt()
    return [[(p[0] - mean.view(shape)) * (scale * p[1]).view(shape) + p[2].view(shape)] for p in pieces]


def split_class_loss(op: Op, group: Group, pieces: list[Shards]) -> list[Shards]:
    logits = [own[0].movedim(1, -1) for own in pieces]
    target = pieces[0][1]
    if "cross_entropy" in op.target:
        top = group.largest([one.amax(-1) for one in logits])
        exponentials = [(one - top.unsqueeze(-1)).exp().sum(-1) for one in logits]
    else:
        top, exponentials = torch.zeros_like(logits[0][..., 0]), []
    smoothing = op.arguments.get("label_smoothing", 0.0)
    weights = [own[2] for own in pieces] if op.arguments["weight"] is not None else None
    wanted = [exponentials] if exponentials else []
    wanted.append([_pick(one, target, offset) for one, offset in _offsets(logits)])
    if smoothing:
        wanted.append([one.sum(-1) for one in logits])
    if weights is not None:
        wide = [w.expand(*target.shape, -1) for w in weights]
        wanted.append([_pick(one, target, offset) for one, offset in _offsets(wide)])
    sums = group.total(*wanted)
    normaliser = top + sums[0].log() if exponentials else top
    picked = sums[1 if exponentials else 0]
    losses = normaliser - picked
    if smoothing:
        classes = op.space.dims[op.space.index("c")].size
        losses = (1 - smoothing) * losses + smoothing * (normaliser - sums[2] / classes)
    valid = (target != op.arguments["ignore_index"]).to(losses.dtype)
    share = valid * sums[-1] if weights is not None else valid
    if op.arguments["reduction"] == 0:
        return [[losses * share]] * len(pieces)
    total = (losses * share).sum()
    return [[total / share.sum() if op.arguments["reduction"] == 1 else total]] * len(pieces)


def _offsets(shards: Shards) -> list[tuple[Tensor, int]]:
    starts = [sum(one.shape[-1] for one in shards[:index]) for index in range(len(shards))]
    return list(zip(shards, starts, strict=True))


def _pick(values: Tensor, target: Tensor, offset: int) -> Tensor:
    """The target's element, where this shard has it."""
    own = (target >= offset) & (target < offset + values.shape[-1])
    index = (target - offset).masked_fill(~own, 0).unsqueeze(-1)
    return values.gather(-1, index).squeeze(-1).masked_fill(~own, 0)


def split_recurrent(op: Op, group: Group, pieces: list[Shards]) -> list[Shards]:
    """One layer in one direction, the units split; the state is gathered at every step."""
    lstm = "lstm" in op.target
    steps = pieces[0][0].shape[1]
    weights = [own[3 if lstm else 2 :] for own in pieces]
    hidden = [own[1][0] for own in pieces]
    cell = [own[2][0] for own in pieces] if lstm else list(hidden)
    seen: list[Shards] = [[] for _ in pieces]
    for step in range(steps):
        whole = group.gather(hidden)
        for index, own in enumerate(pieces):
            w, u, b, c = weights[index]
            x, h = F.linear(own[0][:, step], w, b), F.linear(whole, u, c)
            hidden[index], cell[index] = _cell(op.target, x, h, hidden[index], cell[index])
            seen[index].append(hidden[index])
    outputs = [[torch.stack(one, 1), hidden[i].unsqueeze(0)] for i, one in enumerate(seen)]
    return [[*one, cell[i].unsqueeze(0)] if lstm else one for i, one in enumerate(outputs)]


def _cell(target: str, x: Tensor, h: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    if "lstm" in target:
        into, forget, new, out = (x + h).chunk(4, -1)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell
    if "gru" in target:
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
        update = (xz + hz).sigmoid()
        new = (xn + (xr + hr).sigmoid() * hn).tanh()
        return (1 - update) * new + update * hidden, cell
    return ((x + h).relu() if "relu" in target else (x + h).tanh()), cell


SPLIT: dict[str, Callable[[Op, Group, list[Shards]], list[Shards]]] = {
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax"), split_softmax),
    **dict.fromkeys(("layer_norm", "layer_norm over two", "rms_norm"), split_layer_norm),
    "batch_norm": split_batch_norm,
    **dict.fromkeys((name for name in LOSSES if name.startswith("cross_ent")), split_class_loss),
    **dict.fromkeys(("nll_loss", "nll_loss_nd"), split_class_loss),
    **dict.fromkeys(("lstm", "gru"), split_recurrent),
}
SAMPLES = {**NORMS, **LOSSES, **PRODUCTS}


@pytest.mark.parametrize("name", SPLIT)
def test_an_exchange_makes_the_split_exact(name: str) -> None:
    torch.manual_seed(0)
    op, inputs = as_op(SAMPLES[name]())
    for dim, described in enumerate(op.space.dims):
        if described.kind is DimKind.COLLECTIVE:
            _check(op, inputs, dim, SPLIT[name])


def _check(
    op: Op,
    inputs: list[Tensor],
    dim: int,
    run_split: Callable[[Op, Group, list[Shards]], list[Shards]],
) -> None:
    space, group = op.space, Group()
    whole = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    outputs = run_whole(op, whole)
    parts = [Part.of(space.dims[dim].size, 2, index) for index in range(2)]
    pieces = [
        [
            cut(one, operand, space.sizes, {dim: part})
            for one, operand in zip(inputs, space.inputs, strict=True)
        ]
        for part in parts
    ]
    results = run_split(op, group, pieces)
    joined = [
        join([r[i] for r in results], operand, space.sizes, dim) if operand.has(dim) else results[0][i]
        for i, operand in enumerate(space.outputs)
    ]
    sent = [torch.randn_like(one) for one in outputs]
    torch.testing.assert_close(joined, list(outputs))
    torch.testing.assert_close(gradients(joined, inputs, sent), gradients(outputs, whole, sent))
    exchange = space.dims[dim].exchange
    assert exchange is not None
    sizes = local_sizes(space.sizes, {dim: parts[0]})
    assert group.sent == exchange.forward.count(sizes)
    assert group.rounds == exchange.forward_rounds.count(sizes)


def test_every_collective_dim_says_what_it_exchanges() -> None:
    for make in SAMPLES.values():
        for dim in as_op(make())[0].space.dims:
            assert (dim.kind is DimKind.COLLECTIVE) == (dim.exchange is not None)
