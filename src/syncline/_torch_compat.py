"""The only place that touches private torch APIs.

Each entry names the torch version that it was tested with and the public replacement that is awaited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

# Tested with 2.13. Awaited: a public name for the types of `torch.ops.aten.linear.default` and of
# `torch.ops.higher_order.cond`.
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload

# Tested with 2.13. Awaited: a public way to make tensors that have a device and a shape but no memory
# (`torch.device("meta")` loses the values of constants that a model makes in its forward pass).
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

# Tested with 2.13. Awaited: an option of `torch.export` not to generate Python code for its graphs.
from torch.fx._lazy_graph_module import _use_lazy_graph_module

# Only for `Trace`, see there.
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
    track_tensor_tree,
)

# Tested with 2.13. Awaited: a public base class for modes that see every op, as `torch.overrides` has one for
# functions.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode


def fake_mode() -> AbstractContextManager[Any]:
    """A mode in which new tensors have a shape, a type and a device, but no memory."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def graphs_without_code() -> AbstractContextManager[Any]:
    """Within, traced graphs get Python code only when they are called: that takes a third of an export."""
    return _use_lazy_graph_module(True)


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory, and so values.

    Tested with 2.13. Awaited: as for `fake_mode`.
    """
    return not tensor.is_meta and not isinstance(tensor, FakeTensor)


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that are views of the same memory, even if there is none.

    Tested with 2.13. Awaited: a public comparison of storages that works without memory.
    """
    return tensor.untyped_storage()._cdata


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


def returns_one_tensor(op: OpOverload) -> bool:
    """Whether an op gives a tensor, rather than several or a list of them.

    Tested with 2.13. Awaited: public access to the schema of an op.
    """
    return [str(one.type) for one in op._schema.returns] == ["Tensor"]


class Trace:
    """The graph that `torch.export` is building right now, for recording nodes into it directly.

    Tested with 2.13. Awaited: tracing a repeated block once (`torch.compiler.nested_compile_region` does
    that for compilation, but export refuses it without strict mode).
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self.graph: fx.Graph = tracer.graph

    @classmethod
    def running(cls) -> Trace | None:
        """The trace that the calling code is part of; None when nothing is being traced."""
        mode = get_proxy_mode()
        return None if mode is None else cls(mode.tracer)

    @property
    def module_path(self) -> str:
        """The path of the module being called, as nodes have it."""
        return next(reversed(self._tracer.module_stack.values()))[0]

    def node(self, tensor: torch.Tensor) -> fx.Node | None:
        """The node that made a tensor; None if it is a constant to the trace."""
        slot = get_proxy_slot(tensor, self._tracer, None)
        return None if slot is None else slot.proxy.node

    def bind(self, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """Makes a tensor the value of a node."""
        track_tensor_tree(tensor, fx.Proxy(node, self._tracer), constant=None, tracer=self._tracer)
        return tensor

    def paused(self) -> AbstractContextManager[Any]:
        """A context in which nothing is recorded."""
        return disable_proxy_modes_tracing()


def preserved_version(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Within, writing to a tensor does not count as a change that backward must refuse.

    Tested with 2.13. Awaited: a public way to fetch freed weights again, as FSDP2 itself does.
    """
    return torch.autograd._unsafe_preserve_version_counter(tensor)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Within, the profiler does not see what is started.

    A collective that is still under way when a profile stops would write the end of its record into freed
    memory, and the process crash or train on garbage. Whoever does not wait for one in the same step must
    start it here.

    Tested with 2.13. Awaited: a profiler that leaves out what it has not seen end.
    """
    torch.autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch.autograd._enable_record_function(True)


def schema_returns(op: OpOverload) -> Sequence[Any]:
    """What an op returns: names and types.

    Tested with 2.13. Awaited: public access to the schema of an op.
    """
    return op._schema.returns


def open_groups() -> list[dist.ProcessGroup]:
    """The process groups that this process is in.

    Tested with 2.13. Awaited: a public list of groups, or one call that aborts all of them.
    """
    return list(dist.distributed_c10d._world.pg_map)


def copy_all(into: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy tensors into others of the same shapes, in one call.

    Tested with 2.13. Awaited: a public name for the ops on lists that optimizers use.
    """
    torch._foreach_copy_(into, values)


class StandIn(torch.Tensor):
    """A tensor with a shape, a type and the CPU as its device, but without memory; subclasses see its ops.

    Tested with 2.13. Awaited: a public base class for tensors without memory (`torch.device("meta")` is
    another device, which initialisers ask for and skip).
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyrefly: ignore[bad-override]

    @classmethod
    def run(cls, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an op on such tensors gives."""
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(  # pyrefly: ignore[bad-override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return cls.run(func, args, kwargs or {})

    @staticmethod
    def shaped(
        kind: type[StandIn], shape: Sequence[int], dtype: torch.dtype, *, requires_grad: bool = False
    ) -> Any:
        """A tensor of that class; contiguous."""
        return torch.Tensor._make_wrapper_subclass(  # pyrefly: ignore[missing-attribute]
            kind, torch.Size(shape), dtype=dtype, device=torch.device("cpu"), requires_grad=requires_grad
        )


class LaidAlike(torch.optim.Adam):
    """An Adam whose gradients and state lie in memory as their parameters do when a step begins.

    Torch's fused kernels for CPUs go through memory in its own order, whatever strides say: what lies
    otherwise is applied to other numbers, without an error. A group that has a parameter with gaps in memory
    is updated without the kernel.

    Tested with 2.13. Awaited: kernels that look at strides.
    """

    def _init_group(
        self,
        group: dict[str, Any],
        params_with_grad: list[Any],
        grads: list[Any],
        exp_avgs: list[Any],
        exp_avg_sqs: list[Any],
        max_exp_avg_sqs: list[Any],
        state_steps: list[Any],
    ) -> bool:
        group["fused"] = all(_is_dense(parameter) for parameter in group["params"])
        for parameter in group["params"] if group["fused"] else ():
            if parameter.grad is not None:
                parameter.grad = _laid_as(parameter, parameter.grad)
            state = self.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    state[name] = _laid_as(parameter, value)
        return super()._init_group(
            group, params_with_grad, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps
        )


def _laid_as(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The value in the memory order of its parameter."""
    if _local(value).stride() == _local(parameter).stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether there are no gaps between its numbers in memory."""
    own = _local(tensor)
    return torch.empty_like(own, device="meta").stride() == own.stride()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What a DTensor has on this rank; importing that class would take a launcher a second."""
    return getattr(tensor, "_local_tensor", tensor)
