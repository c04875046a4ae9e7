"""A recurrent language model: the two-layer LSTM with a large vocabulary of Elango, "PaSE" (2021), after
Jozefowicz et al., "Exploring the Limits of Language Modeling" (2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from syncline.workloads.models.checks import require_fraction, require_positive
from syncline.workloads.workload import InputSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RNNLMConfig:
    """Shape of a recurrent language model."""

    layers: int = 2
    """LSTM layers."""
    width: int = 2048
    """Units of each LSTM layer, and width of the embedding."""
    vocab: int = 100000
    """Token ids; 256 for bytes."""
    seq: int = 256
    """Tokens in one training sample."""
    dropout: float = 0.0
    """Share of the inputs of each LSTM layer, and of the head, that is dropped."""

    def __post_init__(self) -> None:
        require_positive(self, "layers", "width", "vocab", "seq")
        require_fraction(self, "dropout")


class RNNLM(nn.Module):
    """Embedding, LSTM layers from a zero state, and a head of its own."""

    def __init__(self, config: RNNLMConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            nn.LSTM(config.width, config.width, batch_first=True) for _ in range(config.layers)
        )
        self.head = nn.Linear(config.width, config.vocab)
        self._init_weights(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, seq, vocab) of the token that follows each of (batch, seq)."""
        x = self.dropout(self.tokens(tokens))
        for lstm in self.blocks:
            x, _ = lstm(x)
            x = self.dropout(x)
        return self.head(x)

    def _init_weights(self, config: RNNLMConfig) -> None:
        """Uniform weights by width; the forget gates start open (Jozefowicz et al., 2015)."""
        bound = 1 / math.sqrt(config.width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        nn.init.zeros_(self.head.bias)
        forget = slice(config.width, 2 * config.width)
        with torch.no_grad():
            for lstm in self.blocks:
                for name, bias in lstm.named_parameters():
                    if name.startswith("bias"):
                        bias.zero_()
                    if name.startswith("bias_ih"):
                        bias[forget] = 1.0


def input_spec(config: RNNLMConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="tokens", shape=(config.seq,), classes=config.vocab)
