"""The only place that touches private torch APIs.

Each entry names the torch version that it was tested with and the public replacement that is awaited.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

# Tested with 2.13. Awaited: a public name for the types of `torch.ops.aten.linear.default` and of
# `torch.ops.higher_order.cond`.
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload

# Tested with 2.13. Awaited: a public way to make tensors that have a device and a shape but no memory
# (`torch.device("meta")` loses the values of constants that a model makes in its forward pass).
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def fake_mode() -> AbstractContextManager[Any]:
    """A mode in which new tensors have a shape, a type and a device, but no memory."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory, and so values.

    Tested with 2.13. Awaited: as for `fake_mode`.
    """
    return not tensor.is_meta and not isinstance(tensor, FakeTensor)


def share_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors, which may have no memory, are views of the same one.

    Tested with 2.13. Awaited: a public comparison of storages that works without memory.
    """
    return first.untyped_storage()._cdata == second.untyped_storage()._cdata


def schema_arguments(op: OpOverload) -> Sequence[Any]:
    """The arguments of an op: name, type, default value, and whether it is aliased or written to.

    Tested with 2.13. Awaited: public access to the schema of an op.
    """
    return op._schema.arguments


def overload_name(op: OpOverload) -> str:
    """The part of an op's name after its last dot: `default`, `Tensor`.

    Tested with 2.13. Awaited: public access to the schema of an op.
    """
    return op._overloadname
