"""Small calls of ATen ops, at least one for each row of the table: what the table's proof runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from syncline.graph import composites as composites

aten, own = torch.ops.aten, torch.ops.syncline
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def plain(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


def bools(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) > 0.5


def call(target: Any, *args: Any, **kwargs: Any) -> Call:
    return target, args, kwargs


def targets_with_ignored(classes: int, *shape: int) -> torch.Tensor:
    target = ints(classes, *shape)
    target.view(-1)[::3] = -100
    return target


def recurrent(
    op: Any, gates: int, states: int, *, layers: int = 1, ways: int = 1, first: bool = True
) -> Call:
    batch, steps, width, units = 4, 3, 6, 4
    x = real(batch, steps, width) if first else real(steps, batch, width)
    weights: list[torch.Tensor] = []
    for index in range(layers * ways):
        source = width if index < ways else units * ways
        weights += [real(gates * units, source), real(gates * units, units)]
        weights += [real(gates * units), real(gates * units)]
    state = [real(layers * ways, batch, units) for _ in range(states)]
    hidden: Any = state if states == 2 else state[0]
    return call(op, x, hidden, weights, True, layers, 0.0, True, ways == 2, first)


PRODUCTS: dict[str, Callable[[], Call]] = {
    "linear": lambda: call(aten.linear.default, real(4, 6, 8), real(10, 8), real(10)),
    "linear without bias": lambda: call(aten.linear.default, real(4, 8), real(10, 8)),
    "linear of a vector": lambda: call(aten.linear.default, real(8), real(10, 8), real(10)),
    "mm": lambda: call(aten.mm.default, real(4, 6), real(6, 8)),
    "bmm": lambda: call(aten.bmm.default, real(4, 6, 8), real(4, 8, 10)),
    "mv": lambda: call(aten.mv.default, real(4, 6), real(6)),
    "dot": lambda: call(aten.dot.default, real(6), real(6)),
    "outer": lambda: call(aten.outer.default, real(6), real(4)),
    "matmul": lambda: call(aten.matmul.default, real(2, 4, 6, 8), real(4, 8, 10)),
    "matmul broadcasts": lambda: call(aten.matmul.default, real(2, 1, 6, 8), real(4, 8, 10)),
    "matmul of vectors": lambda: call(aten.matmul.default, real(6), real(6)),
    "matmul by a vector": lambda: call(aten.matmul.default, real(4, 6, 8), real(8)),
    "matmul of a vector": lambda: call(aten.matmul.default, real(8), real(4, 8, 6)),
    "addmm": lambda: call(aten.addmm.default, real(10), real(4, 8), real(8, 10)),
    "addmm of a matrix": lambda: call(aten.addmm.default, real(4, 10), real(4, 8), real(8, 10), beta=2.0),
    "baddbmm": lambda: call(aten.baddbmm.default, real(4, 6, 10), real(4, 6, 8), real(4, 8, 10)),
    "baddbmm broadcasts": lambda: call(aten.baddbmm.default, real(1, 1, 10), real(4, 6, 8), real(4, 8, 10)),
    "linear_chunks": lambda: call(own.linear_chunks.default, real(4, 6, 8), real(12, 8), real(12), 3),
    "linear_chunks without bias": lambda: call(own.linear_chunks.default, real(4, 8), real(12, 8), None, 2),
    "addmm_chunks": lambda: call(own.addmm_chunks.default, real(12), real(4, 8), real(8, 12), 3),
    "einsum": lambda: call(aten.einsum.default, "bqhd,bkhd->bhqk", [real(4, 6, 2, 8), real(4, 10, 2, 8)]),
    "einsum of three": lambda: call(
        aten.einsum.default, "ij,jk,kl->il", [real(4, 6), real(6, 8), real(8, 2)]
    ),
    "einsum implicit": lambda: call(aten.einsum.default, "ij,jk", [real(4, 6), real(6, 8)]),
    "einsum ellipsis": lambda: call(aten.einsum.default, "...i,ij->...j", [real(2, 4, 6), real(6, 8)]),
    "einsum sums": lambda: call(aten.einsum.default, "ijk->j", [real(4, 6, 2)]),
    "einsum diagonal": lambda: call(aten.einsum.default, "iik->ik", [real(4, 4, 2)]),
    "einsum capitals": lambda: call(aten.einsum.default, "Ni,ij->Nj", [real(4, 6), real(6, 8)]),
    "conv1d": lambda: call(aten.conv1d.default, real(4, 6, 9), real(8, 6, 3), real(8)),
    "conv2d": lambda: call(aten.conv2d.default, real(4, 6, 8, 8), real(8, 6, 3, 3), real(8), [2, 2], [1, 1]),
    "conv2d 1x1": lambda: call(aten.conv2d.default, real(4, 6, 8, 4), real(8, 6, 1, 1), real(8)),
    "conv2d 1x1 padded": lambda: call(
        aten.conv2d.default, real(4, 6, 4, 4), real(8, 6, 1, 1), None, [2, 2], [2, 2]
    ),
    "conv2d grouped": lambda: call(
        aten.conv2d.default, real(4, 8, 6, 6), real(12, 2, 3, 3), real(12), groups=4
    ),
    "conv2d depthwise": lambda: call(
        aten.conv2d.default, real(4, 8, 6, 6), real(8, 1, 3, 3), real(8), padding=[1, 1], groups=8
    ),
    "conv2d same": lambda: call(
        aten.conv2d.padding, real(4, 6, 6, 6), real(8, 6, 3, 3), real(8), [1, 1], "same"
    ),
    "conv2d one image": lambda: call(aten.conv2d.default, real(6, 8, 8), real(8, 6, 3, 3)),
    "conv3d": lambda: call(aten.conv3d.default, real(2, 4, 5, 5, 5), real(6, 4, 3, 3, 3), real(6)),
    "convolution": lambda: call(
        aten.convolution.default, real(4, 6, 9), real(8, 6, 3), real(8), [1], [0], [1], False, [0], 1
    ),
    "convolution transposed": lambda: call(
        aten.convolution.default, real(4, 6, 9), real(6, 8, 3), real(8), [2], [0], [1], True, [0], 1
    ),
    "conv_transpose1d": lambda: call(aten.conv_transpose1d.default, real(4, 6, 9), real(6, 8, 3), real(8)),
    "conv_transpose2d": lambda: call(
        aten.conv_transpose2d.input, real(4, 8, 5, 5), real(8, 3, 2, 2), real(6), [2, 2], groups=2
    ),
    "conv_transpose3d": lambda: call(aten.conv_transpose3d.input, real(2, 4, 3, 3, 3), real(4, 6, 2, 2, 2)),
    "attention": lambda: call(
        aten.scaled_dot_product_attention.default, real(2, 4, 6, 8), real(2, 4, 10, 8), real(2, 4, 10, 8)
    ),
    "attention causal": lambda: call(
        aten.scaled_dot_product_attention.default,
        real(2, 4, 6, 8),
        real(2, 4, 6, 8),
        real(2, 4, 6, 8),
        is_causal=True,
    ),
    "attention masked": lambda: call(
        aten.scaled_dot_product_attention.default,
        real(2, 4, 6, 8),
        real(2, 4, 10, 8),
        real(2, 4, 10, 8),
        plain(2, 1, 6, 10),
    ),
    "attention masked for all": lambda: call(
        aten.scaled_dot_product_attention.default,
        real(2, 4, 6, 8),
        real(2, 4, 10, 8),
        real(2, 4, 10, 8),
        plain(6, 10),
    ),
    "attention of grouped queries": lambda: call(
        aten.scaled_dot_product_attention.default,
        real(2, 8, 6, 4),
        real(2, 2, 6, 4),
        real(2, 2, 6, 4),
        is_causal=True,
        enable_gqa=True,
    ),
    "attention without heads": lambda: call(
        aten.scaled_dot_product_attention.default, real(4, 6, 8), real(4, 10, 8), real(4, 10, 8)
    ),
    "lstm": lambda: recurrent(aten.lstm.input, 4, 2),
    "lstm of two layers": lambda: recurrent(aten.lstm.input, 4, 2, layers=2, first=False),
    "lstm both ways": lambda: recurrent(aten.lstm.input, 4, 2, layers=2, ways=2),
    "gru": lambda: recurrent(aten.gru.input, 3, 1),
    "lstm_cell": lambda: call(
        aten.lstm_cell.default,
        real(4, 6),
        [real(4, 8), real(4, 8)],
        real(32, 6),
        real(32, 8),
        real(32),
        real(32),
    ),
    "gru_cell": lambda: call(
        aten.gru_cell.default, real(4, 6), real(4, 8), real(24, 6), real(24, 8), real(24), real(24)
    ),
    "cdist": lambda: call(aten.cdist.default, real(2, 4, 6), real(2, 8, 6)),
    "vdot": lambda: call(aten.vdot.default, real(6), real(6)),
    "rnn_tanh": lambda: recurrent(aten.rnn_tanh.input, 1, 1, layers=2),
    "rnn_relu": lambda: recurrent(aten.rnn_relu.input, 1, 1),
}

LOOKUPS: dict[str, Callable[[], Call]] = {
    "embedding": lambda: call(aten.embedding.default, real(10, 6), ints(10, 4, 6)),
    "embedding with padding": lambda: call(aten.embedding.default, real(10, 6), ints(10, 4, 6), 7),
    "embedding by frequency": lambda: call(aten.embedding.default, real(10, 6), ints(10, 4, 6), -1, True),
    "index_select": lambda: call(aten.index_select.default, real(4, 6, 8), 1, ints(6, 10)),
    "gather": lambda: call(aten.gather.default, real(4, 6, 8), 1, ints(6, 4, 3, 8)),
    "gather fewer": lambda: call(aten.gather.default, real(4, 6, 8), 2, ints(8, 2, 6, 3)),
    "take_along_dim": lambda: call(aten.take_along_dim.default, real(4, 6), ints(6, 4, 2), 1),
    "index": lambda: call(aten.index.Tensor, real(4, 6, 8), [None, ints(6, 2, 10)]),
    "index of two": lambda: call(aten.index.Tensor, real(4, 6, 8), [ints(4, 10), ints(6, 10)]),
    "index apart": lambda: call(aten.index.Tensor, real(4, 6, 8), [ints(4, 10), None, ints(8, 10)]),
    "index broadcast": lambda: call(aten.index.Tensor, real(4, 6, 8), [ints(4, 2, 1), ints(6, 10)]),
    "index_put": lambda: call(aten.index_put.default, real(6, 4), [torch.arange(3)], real(3, 4)),
    "scatter": lambda: call(
        aten.scatter.src,
        real(4, 6, 8),
        1,
        torch.arange(6).flip(0).reshape(1, 6, 1).repeat(4, 1, 8),
        real(4, 6, 8),
    ),
    "scatter a number": lambda: call(aten.scatter.value, real(4, 6), 1, ints(6, 4, 2), 1.0),
    "scatter_add": lambda: call(aten.scatter_add.default, real(4, 6), 1, ints(6, 4, 8), real(4, 8)),
    "one_hot": lambda: call(aten.one_hot.default, ints(5, 4, 6), 5),
}

NORMS: dict[str, Callable[[], Call]] = {
    "_weight_norm": lambda: call(aten._weight_norm.default, real(4, 6, 2), real(4, 1, 1)),
    "layer_norm": lambda: call(aten.layer_norm.default, real(4, 6, 8), [8], real(8), real(8)),
    "layer_norm over two": lambda: call(aten.layer_norm.default, real(4, 6, 8), [6, 8]),
    "rms_norm": lambda: call(aten.rms_norm.default, real(4, 6, 8), [8], real(8)),
    "group_norm": lambda: call(aten.group_norm.default, real(4, 8, 6), 4, real(8), real(8)),
    "batch_norm": lambda: call(
        aten.batch_norm.default,
        real(4, 6, 5, 5),
        real(6),
        real(6),
        torch.zeros(6, dtype=torch.float64),
        torch.ones(6, dtype=torch.float64),
        True,
        0.1,
        1e-5,
        False,
    ),
    "batch_norm in evaluation": lambda: call(
        aten.batch_norm.default,
        real(4, 6, 5),
        real(6),
        real(6),
        torch.zeros(6, dtype=torch.float64),
        torch.ones(6, dtype=torch.float64),
        False,
        0.1,
        1e-5,
        False,
    ),
    "instance_norm": lambda: call(
        aten.instance_norm.default, real(4, 6, 8), real(6), real(6), None, None, True, 0.1, 1e-5, False
    ),
    "softmax": lambda: call(aten.softmax.int, real(4, 6, 8), -1),
    "log_softmax": lambda: call(aten.log_softmax.int, real(4, 6, 8), 1),
    "_softmax": lambda: call(aten._softmax.default, real(4, 6), 1, False),
    "_log_softmax": lambda: call(aten._log_softmax.default, real(4, 6), 0, False),
}

LOSSES: dict[str, Callable[[], Call]] = {
    "cross_entropy_loss": lambda: call(
        aten.cross_entropy_loss.default, real(9, 6), targets_with_ignored(6, 9)
    ),
    "cross_entropy_loss smoothed": lambda: call(
        aten.cross_entropy_loss.default, real(8, 6), ints(6, 8), label_smoothing=0.1
    ),
    "cross_entropy_loss weighted": lambda: call(
        aten.cross_entropy_loss.default, real(8, 6), targets_with_ignored(6, 8), plain(6).abs()
    ),
    "cross_entropy_loss summed": lambda: call(
        aten.cross_entropy_loss.default, real(8, 6), targets_with_ignored(6, 8), None, 2
    ),
    "cross_entropy_loss by row": lambda: call(
        aten.cross_entropy_loss.default, real(8, 6), ints(6, 8), None, 0
    ),
    "cross_entropy_loss of images": lambda: call(
        aten.cross_entropy_loss.default, real(4, 6, 5, 5), targets_with_ignored(6, 4, 5, 5)
    ),
    "cross_entropy_loss of probabilities": lambda: call(
        aten.cross_entropy_loss.default, real(8, 6), plain(8, 6).softmax(-1)
    ),
    "nll_loss": lambda: call(aten.nll_loss.default, real(9, 6), targets_with_ignored(6, 9)),
    "nll_loss_nd": lambda: call(aten.nll_loss_nd.default, real(4, 6, 5), ints(6, 4, 5)),
    "mse_loss": lambda: call(aten.mse_loss.default, real(4, 6), plain(4, 6)),
    "mse_loss summed": lambda: call(aten.mse_loss.default, real(4, 6), plain(4, 6), 2),
    "mse_loss by element": lambda: call(aten.mse_loss.default, real(4, 6), plain(4, 6), 0),
    "l1_loss": lambda: call(aten.l1_loss.default, real(4, 6), plain(4, 6)),
    "smooth_l1_loss": lambda: call(aten.smooth_l1_loss.default, real(4, 6), plain(4, 6)),
    "huber_loss": lambda: call(aten.huber_loss.default, real(4, 6), plain(4, 6)),
    "binary_cross_entropy": lambda: call(
        aten.binary_cross_entropy.default,
        real(4, 6).sigmoid().detach().requires_grad_(),
        plain(4, 6).sigmoid(),
    ),
    "binary_cross_entropy_with_logits": lambda: call(
        aten.binary_cross_entropy_with_logits.default, real(4, 6), plain(4, 6).sigmoid()
    ),
    "soft_margin_loss": lambda: call(aten.soft_margin_loss.default, real(4, 6), plain(4, 6).sign()),
    "poisson_nll_loss": lambda: call(
        aten.poisson_nll_loss.default, real(4, 6), plain(4, 6).exp(), True, False, 1e-8, 1
    ),
    "hinge_embedding_loss": lambda: call(aten.hinge_embedding_loss.default, real(4, 6), plain(4, 6).sign()),
    "margin_ranking_loss": lambda: call(aten.margin_ranking_loss.default, real(6), real(6), plain(6).sign()),
    "kl_div": lambda: call(aten.kl_div.default, real(4, 6), plain(4, 6).softmax(-1)),
}
