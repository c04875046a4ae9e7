"""Multi-head attention and rotary position embeddings, shared by the transformer models."""

from __future__ import annotations

from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Rotary: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines (positions, half of the head's width)."""


class Attention(nn.Module):
    """Scaled dot-product attention over several heads (Vaswani et al., 2017).

    With fewer key-value heads than heads, each is shared by a group of query heads (Ainslie et al., "GQA",
    2023). Queries, keys and values have a projection each, so that each can be split by heads.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.head_width = width // heads
        self.grouped = kv_heads is not None and kv_heads != heads
        self.dropout = dropout
        self.causal = causal
        kv_width = self.head_width * (kv_heads or heads)
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, kv_width, bias=bias)
        self.value = nn.Linear(width, kv_width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, memory: Tensor | None = None, rotary: Rotary | None = None) -> Tensor:
        """Attends from x (batch, seq, width) to memory of the same width, or to x itself."""
        source = x if memory is None else memory
        query, key, value = self._heads(self.query(x)), self.key(source), self.value(source)
        key, value = self._heads(key), self._heads(value)
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        found = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
            enable_gqa=self.grouped,
        )
        return self.out(found.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


def rotary_embedding(seq: int, head_width: int, base: float, like: Tensor) -> Rotary:
    """Cosines and sines of position × base^(-2i/head_width), with the device and type of `like`.

    From Su et al., "RoFormer" (2021). They are computed anew in each forward pass: that is cheap, and
    leaves no buffer to restore after the model was built on the meta device.
    """
    exponents = torch.arange(0, head_width, 2, device=like.device, dtype=torch.float32) / head_width
    positions = torch.arange(seq, device=like.device, dtype=torch.float32)
    angles = positions[:, None] * base**-exponents
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Turns each pair (x[i], x[i + head_width/2]) of (batch, heads, seq, head_width) by its angle."""
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
