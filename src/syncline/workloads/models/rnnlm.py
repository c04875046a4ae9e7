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


class LSTM(nn.Module):
    """One LSTM layer from a zero state, gates in the order input, forget, cell, output.

    Its weights are plain parameters: `nn.LSTM` keeps a second list of them, which export cannot follow.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.input_weight = nn.Parameter(torch.empty(4 * width, width))
        self.hidden_weight = nn.Parameter(torch.empty(4 * width, width))
        self.input_bias = nn.Parameter(torch.zeros(4 * width))
        self.hidden_bias = nn.Parameter(torch.zeros(4 * width))
        bound = 1 / math.sqrt(width)
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.hidden_weight, -bound, bound)
        with torch.no_grad():  # Forget gates start open (Jozefowicz et al., 2015).
            self.input_bias[width : 2 * width] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (batch, seq, width) for inputs of the same shape."""
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # Most CPUs have no LSTM kernel for reduced precision.
            with torch.autocast("cpu", enabled=False):
                return self._run(x.float())
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        state = x.new_zeros(1, x.shape[0], self.width)
        weights = (self.input_weight, self.hidden_weight, self.input_bias, self.hidden_bias)
        outputs, _, _ = torch.lstm(
            x,
            (state, state),
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        return outputs


class RNNLM(nn.Module):
    """Embedding, LSTM layers, and a head of its own."""

    def __init__(self, config: RNNLMConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(LSTM(config.width) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocab)
        bound = 1 / math.sqrt(config.width)
        nn.init.uniform_(self.tokens.weight, -bound, bound)
        nn.init.uniform_(self.head.weight, -bound, bound)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, seq, vocab) of the token that follows each of (batch, seq)."""
        x = self.dropout(self.tokens(tokens))
        for block in self.blocks:
            x = self.dropout(block(x))
        return self.head(x)


def input_spec(config: RNNLMConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="tokens", shape=(config.seq,), classes=config.vocab)
