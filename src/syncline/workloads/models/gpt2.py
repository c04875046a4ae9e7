"""GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syncline.workloads.models.attention import Attention
from syncline.workloads.models.checks import require_fraction, require_multiple, require_positive
from syncline.workloads.workload import InputSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Config:
    """Shape of a GPT-2."""

    layers: int = 12
    """Transformer blocks."""
    width: int = 768
    """Width of the residual stream."""
    heads: int = 12
    """Attention heads; they divide the width."""
    vocab: int = 50257
    """Token ids; 256 for bytes."""
    positions: int = 1024
    """Learned positions: the longest sequence that the model can take."""
    seq: int = 1024
    """Tokens in one training sample; at most `positions`."""
    dropout: float = 0.1
    """Share of embeddings, attention weights and residual branches that is dropped."""

    def __post_init__(self) -> None:
        require_positive(self, "layers", "width", "heads", "vocab", "positions", "seq")
        require_multiple(self, "width", "heads")
        require_fraction(self, "dropout")
        if self.seq > self.positions:
            raise ValueError(
                f"seq is {self.seq}, but the model has only {self.positions} positions; give positions too."
            )


class GPT2Block(nn.Module):
    """Attention and a feed-forward network, each on a normalised residual stream."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        width = config.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, config.heads, dropout=config.dropout, causal=True)
        self.feed_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream (batch, seq, width) after this block."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        hidden = F.gelu(self.up(self.feed_norm(x)), approximate="tanh")
        return x + self.dropout(self.down(hidden))


class GPT2(nn.Module):
    """Token and position embeddings, blocks, and a head that shares the token embedding's weights."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Parameter(torch.empty(config.positions, config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(GPT2Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self._init_weights(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, seq, vocab) of the token that follows each of (batch, seq)."""
        x = self.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)

    def _init_weights(self, config: GPT2Config) -> None:
        """Normal weights; what feeds the residual stream is scaled by 1/√(residual branches)."""
        nn.init.normal_(self.positions, std=0.01)
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Linear):
                feeds_residual = name.endswith((".out", ".down"))
                scale = 1 / math.sqrt(2 * config.layers) if feeds_residual else 1.0
                nn.init.normal_(module.weight, std=0.02 * scale)
                nn.init.zeros_(module.bias)


def input_spec(config: GPT2Config) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="tokens", shape=(config.seq,), classes=config.vocab)
