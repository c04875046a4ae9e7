"""The encoder-decoder transformer: Vaswani et al., "Attention Is All You Need" (2017), base size.

Norms come after each residual sum and positions are sinusoids, as published. Samples have no padding, so
there is no padding mask.
"""

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
class TransformerConfig:
    """Shape of an encoder-decoder transformer."""

    layers: int = 6
    """Blocks in the encoder, and as many in the decoder."""
    width: int = 512
    """Width of the residual stream; even, for the sinusoids."""
    heads: int = 8
    """Attention heads; they divide the width."""
    hidden: int = 2048
    """Width inside the feed-forward network."""
    vocab: int = 50000
    """Token ids of source and target together; 256 for bytes."""
    seq: int = 256
    """Tokens in the source, and as many in the target."""
    dropout: float = 0.1
    """Share of embeddings, attention weights and residual branches that is dropped."""
    tied: bool = True
    """Both embeddings and the head share one matrix (section 3.4 of the paper), or each has its own."""

    def __post_init__(self) -> None:
        require_positive(self, "layers", "width", "heads", "hidden", "vocab", "seq")
        require_multiple(self, "width", "heads")
        require_fraction(self, "dropout")
        if self.width % 2:
            raise ValueError(f"width is {self.width}, it must be even.")


class FeedForward(nn.Module):
    """Two linear layers with ReLU between them."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Each position by itself."""
        return self.down(F.relu(self.up(x)))


class EncoderBlock(nn.Module):
    """Self-attention and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads, dropout=config.dropout)
        self.attention_norm = nn.LayerNorm(config.width)
        self.feed = FeedForward(config)
        self.feed_norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The activation (batch, seq, width) after this block."""
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.feed_norm(x + self.dropout(self.feed(x)))


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the encoder's output and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads, dropout=config.dropout, causal=True)
        self.attention_norm = nn.LayerNorm(config.width)
        self.cross = Attention(config.width, config.heads, dropout=config.dropout)
        self.cross_norm = nn.LayerNorm(config.width)
        self.feed = FeedForward(config)
        self.feed_norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """The activation (batch, seq, width) after this block."""
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        x = self.cross_norm(x + self.dropout(self.cross(x, memory)))
        return self.feed_norm(x + self.dropout(self.feed(x)))


class Transformer(nn.Module):
    """Encoder and decoder; source and target have one vocabulary."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.width = config.width
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.target_tokens = None if config.tied else nn.Embedding(config.vocab, config.width)
        self.head = None if config.tied else nn.Linear(config.width, config.vocab, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderBlock(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self._init_weights()

    def forward(self, source: Tensor, decoder_input: Tensor) -> Tensor:
        """Logits (batch, target seq, vocab) of the token that follows each of the decoder's input."""
        memory = self._embed(self.tokens, source)
        for block in self.encoder:
            memory = block(memory)
        x = self._embed(self.target_tokens or self.tokens, decoder_input)
        for block in self.decoder:
            x = block(x, memory)
        return F.linear(x, self.tokens.weight) if self.head is None else self.head(x)

    def _embed(self, tokens: nn.Embedding, ids: Tensor) -> Tensor:
        x = tokens(ids) * math.sqrt(self.width)
        return self.dropout(x + sinusoids(ids.shape[1], self.width, x))

    def _init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.width**-0.5)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def sinusoids(seq: int, width: int, like: Tensor) -> Tensor:
    """Positions (seq, width): sines of position × 10000^(-2i/width), then their cosines.

    The paper interleaves sines and cosines; the order of the channels makes no difference to the model.
    """
    exponents = torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width
    positions = torch.arange(seq, device=like.device, dtype=torch.float32)
    angles = positions[:, None] * 10000.0**-exponents
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(like.dtype)


def input_spec(config: TransformerConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="token-pairs", shape=(config.seq, config.seq), classes=config.vocab)
