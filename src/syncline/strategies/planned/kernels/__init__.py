"""Kernels of ops whose shards have to exchange something: a `collective` dim is split over ranks."""

from syncline.strategies.planned.kernels.registry import exchange_kernel
from syncline.strategies.planned.kernels.shard import Kernel, OpShard

__all__ = ["Kernel", "OpShard", "exchange_kernel"]
