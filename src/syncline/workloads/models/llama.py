"""Llama 2: Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models" (2023).

The full sizes are for planning: build them on the meta device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from syncline.workloads.models.attention import Attention, Rotary, rotary_embedding
from syncline.workloads.models.checks import require_multiple, require_positive
from syncline.workloads.workload import InputSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Shape of a Llama."""

    layers: int = 32
    """Transformer blocks."""
    width: int = 4096
    """Width of the residual stream."""
    heads: int = 32
    """Attention heads; they divide the width into even head widths."""
    kv_heads: int = 32
    """Heads of keys and values; they divide the heads."""
    hidden: int = 11008
    """Width inside the feed-forward network."""
    vocab: int = 32000
    """Token ids; 256 for bytes."""
    seq: int = 4096
    """Tokens in one training sample."""
    rotary_base: float = 10000.0
    """Base of the wavelengths of the rotary embedding."""

    def __post_init__(self) -> None:
        require_positive(self, "layers", "width", "heads", "kv_heads", "hidden", "vocab", "seq")
        require_multiple(self, "width", "heads")
        require_multiple(self, "heads", "kv_heads")
        if self.head_width % 2:
            raise ValueError(f"width / heads is {self.head_width}, rotary embeddings need it even.")
        if self.rotary_base <= 0:
            raise ValueError(f"rotary_base is {self.rotary_base}, it must be above 0.")

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads


class LlamaBlock(nn.Module):
    """Attention and a SwiGLU feed-forward network, each on an RMS-normalised residual stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, config.heads, kv_heads=config.kv_heads, bias=False, causal=True)
        self.feed_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, config.hidden, bias=False)
        self.up = nn.Linear(width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, width, bias=False)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """The residual stream (batch, seq, width) after this block."""
        x = x + self.attention(self.attention_norm(x), rotary=rotary)
        normed = self.feed_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Token embedding, blocks with rotary positions, and a head of its own."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.rotary_base = config.rotary_base
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, seq, vocab) of the token that follows each of (batch, seq)."""
        x = self.tokens(tokens)
        rotary = rotary_embedding(tokens.shape[1], self.head_width, self.rotary_base, x)
        for block in self.blocks:
            x = block(x, rotary)
        return self.head(self.norm(x))


def input_spec(config: LlamaConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="tokens", shape=(config.seq,), classes=config.vocab)
