"""The smallest real loop: your model, your optimizer, your data, one line of Syncline.

torchrun --nproc-per-node 2 examples/own_loop.py sharded
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import syncline

BATCH = 64
"""Rows of a global batch, over all ranks."""


def main(strategy: str) -> None:
    """Learn to tell which half of a vector is larger."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    example = torch.zeros(BATCH, 16), torch.zeros(BATCH, dtype=torch.long)
    step = syncline.parallelize(
        model, optimizer, nn.CrossEntropyLoss(), strategy=strategy, example_batch=example
    )

    torch.manual_seed(1)
    for number in range(200):
        inputs = torch.randn(BATCH, 16)
        targets = (inputs[:, :8].sum(1) > inputs[:, 8:].sum(1)).long()
        rows = step.rows(BATCH)
        loss = step((inputs[rows], targets[rows]))
        if number % 50 == 0 and torch.distributed.get_rank() == 0:
            print(f"step {number:3d}  loss {loss.item():.3f}")

    print(f"rank {torch.distributed.get_rank()}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
