"""Kernels of ops whose shards have to exchange something: a `collective` dim is split over ranks."""

from syncline.strategies.planned.kernels.registry import early_start, exchange_kernel
from syncline.strategies.planned.kernels.shard import EarlyStart, Kernel, OpShard

__all__ = ["EarlyStart", "Kernel", "OpShard", "early_start", "exchange_kernel"]
