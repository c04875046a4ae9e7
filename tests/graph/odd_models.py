"""Small models that do what real ones do and tracing finds hard."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Tied(nn.Module):
    """An embedding whose weights are those of the head too, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(12, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.tokens.weight
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.relu(self.body(self.tokens(tokens))))


class Normed(nn.Module):
    """Batch norm with its running statistics, group norm, in-place activations, depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.grouped = nn.Conv2d(8, 8, 1, groups=2)
        self.group_norm = nn.GroupNorm(4, 8)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        y = F.relu_(self.depthwise(x))
        y = self.group_norm(self.grouped(y))
        y += x
        return self.head(self.drop(F.adaptive_avg_pool2d(y, 1).flatten(1)))


class FusedAttention(nn.Module):
    """One projection for queries, keys and values, an explicit mask, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        q, k, v = (
            one.view(batch, seq, 2, width // 2).transpose(1, 2)
            for one in self.qkv(self.norm(x)).split(width, dim=-1)
        )
        scores = (q @ k.mT / width**0.5).masked_fill(~self.mask[:seq, :seq], float("-inf"))
        found = scores.softmax(-1) @ v
        return x + self.out(found.transpose(1, 2).reshape(batch, seq, width))


class Recurrent(nn.Module):
    """An `nn.LSTM` of two layers in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, (hidden, _) = self.rnn(x)
        return self.head(states[:, -1]) + hidden.mean()


class Writes(nn.Module):
    """In-place writes through views, seen through other views; constants; outputs of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("seen", torch.zeros(2))
        self.table = torch.arange(6.0)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x * self.scale
        first, rest = y[:, 0], y[:, 1:]
        first.mul_(3)
        rest[:, ::2] = 7.0
        y.view(-1)[2:4] = x.new_tensor([5.0, 6.0])
        y.transpose(0, 1)[3].add_(self.table[:4])
        self.seen[0] += 1
        top, where = y.max(dim=1)
        with torch.no_grad():
            frozen = y.exp() / 10
        parts = torch.cat([first.unsqueeze(1), rest, frozen], dim=1)
        z = torch.zeros_like(y)
        z.copy_(self.table)
        z.unsqueeze_(0)
        return parts, top, where, z.detach() + frozen.sum(), y.chunk(4, dim=1)[2]


class Sequenced(nn.Module):
    """A stack of equal blocks, one of which is different."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(8, 16) for _ in range(layers))
        self.last = Block(8, 24)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


class Block(nn.Module):
    """A residual feed-forward network."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))
