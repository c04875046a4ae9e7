"""Ops of our own, each made of ATen ops: what a graph has where two ops can only be split as one.

They are ordinary torch ops, so that a graph calls, differentiates and describes them like all others.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("syncline", "FRAGMENT")


def linear_chunks(input: Tensor, weight: Tensor, bias: Tensor | None, chunks: int) -> list[Tensor]:
    """A linear layer whose outputs are cut into equal chunks: queries, keys and values at once."""
    return list(torch.ops.aten.linear.default(input, weight, bias).chunk(chunks, -1))


def addmm_chunks(self: Tensor, mat1: Tensor, mat2: Tensor, chunks: int) -> list[Tensor]:
    """The same with weights that have inputs first, as `transformers` writes them for GPT-2."""
    return list(torch.ops.aten.addmm.default(self, mat1, mat2).chunk(chunks, -1))


for _name, _function, _arguments in (
    ("linear_chunks", linear_chunks, "Tensor input, Tensor weight, Tensor? bias, int chunks"),
    ("addmm_chunks", addmm_chunks, "Tensor self, Tensor mat1, Tensor mat2, int chunks"),
):
    _LIBRARY.define(f"{_name}({_arguments}) -> Tensor[]")
    _LIBRARY.impl(_name, _function, "CompositeImplicitAutograd")
