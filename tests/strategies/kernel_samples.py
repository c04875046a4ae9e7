"""Calls whose `collective` dims are split in tests: those of the table's proof, and odder ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
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
