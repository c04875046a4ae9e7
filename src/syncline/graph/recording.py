"""Records ops one after another, each with new tensors: a graph in single assignment, still unordered in
names and without iteration spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from syncline._torch_compat import OpOverload
from syncline.graph.canonical import Arguments, Form, canonical
from syncline.graph.opgraph import Tensor, TensorKind
from syncline.graph.origin import Origin


@dataclass(frozen=True, slots=True)
class Draft:
    """An op whose arguments hold its tensors."""

    target: OpOverload
    arguments: Arguments
    outputs: tuple[Tensor, ...]
    origin: Origin
    is_view: bool
    """Its output is the memory of its input."""
    updates: tuple[Tensor, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that it takes, in the order of the arguments."""
        return tuple(tensors_in(self.arguments.values()))


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among values, lists of them laid out flat."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)


class Recorder:
    """Collects tensors and ops, and knows which of them need gradients."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.drafts: list[Draft] = []

    def new_tensor(self, name: str, form: Form, kind: TensorKind, *, requires_grad: bool = False) -> Tensor:
        """A tensor that no op has made before."""
        tensor = Tensor(len(self.tensors), name, form.shape, form.dtype, kind, requires_grad)
        self.tensors.append(tensor)
        return tensor

    def emit(
        self,
        target: OpOverload,
        arguments: Arguments,
        forms: Sequence[Form],
        origin: Origin,
        *,
        is_view: bool = False,
    ) -> tuple[Tensor, ...]:
        """Records a call and gives its outputs; a call that changes nothing gives its input."""
        call = canonical(target, arguments, tuple(forms))
        if call.target is None:
            return (call.arguments["self"],)
        return self._record(call.target, call.arguments, forms, origin, is_view=is_view)

    def _record(
        self,
        target: OpOverload,
        arguments: Arguments,
        forms: Sequence[Form],
        origin: Origin,
        *,
        is_view: bool,
    ) -> tuple[Tensor, ...]:
        inputs = list(tensors_in(arguments.values()))
        wanted = any(tensor.requires_grad for tensor in inputs)
        cut = target is torch.ops.aten.detach.default
        name = target.overloadpacket.__name__
        outputs = tuple(
            self.new_tensor(
                name,
                form,
                TensorKind.ACTIVATION,
                requires_grad=wanted and not cut and _differentiable(form.dtype),
            )
            for form in forms
        )
        updates = _updated_buffers(name, arguments)
        self.drafts.append(Draft(target, arguments, outputs, origin, is_view, updates))
        return outputs


def _differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _updated_buffers(name: str, arguments: Arguments) -> tuple[Tensor, ...]:
    """Batch norm updates its running statistics, though its schema does not say so."""
    statistics = [arguments.get("running_mean"), arguments.get("running_var")]
    training = arguments.get("training") or arguments.get("use_input_stats")
    if name not in ("batch_norm", "instance_norm") or not training:
        return ()
    return tuple(tensor for tensor in statistics if isinstance(tensor, Tensor))
