"""Reads an exported program: its inputs by kind and name, then its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from syncline._torch_compat import has_values
from syncline.errors import CaptureError
from syncline.graph.aliasing import Value
from syncline.graph.assembly import Assembly
from syncline.graph.canonical import Form
from syncline.graph.lowering import Lowering
from syncline.graph.opgraph import OpGraph, Tensor, TensorKind
from syncline.graph.origin import Wrapping
from syncline.graph.recording import Recorder

_KINDS = {
    InputKind.PARAMETER: TensorKind.PARAMETER,
    InputKind.BUFFER: TensorKind.BUFFER,
    InputKind.CONSTANT_TENSOR: TensorKind.CONSTANT,
    InputKind.USER_INPUT: TensorKind.INPUT,
}


@dataclass(frozen=True, slots=True)
class Names:
    """How the model calls its tensors: of several names for one tensor, the first."""

    first: Mapping[str, str]
    """The first name of the tensor that each name means."""
    buffers: frozenset[str]

    @classmethod
    def of(cls, module: nn.Module) -> Names:
        """The names in the module that was exported."""
        seen: dict[int, str] = {}
        first: dict[str, str] = {}
        buffers = dict(module.named_buffers(remove_duplicate=False))
        for name, tensor in (*module.named_parameters(remove_duplicate=False), *buffers.items()):
            first[name] = seen.setdefault(id(tensor), name)
        return cls(first, frozenset(buffers))


def read(exported: ExportedProgram, module: nn.Module, wrapping: Wrapping) -> OpGraph:
    """The graph of an exported program.

    Args:
        exported: The program.
        module: What was exported.
        wrapping: Where the model is in that module.
    """
    reader = _Reader(exported, Names.of(module), wrapping)
    outputs = reader.lowering.run(exported.graph_module)
    tensors = [reader.lowering.tensor(value) for value in outputs if isinstance(value, Value)]
    recorder = reader.lowering.recorder
    assembly = Assembly(
        tensors=recorder.tensors,
        drafts=recorder.drafts,
        inputs=reader.inputs,
        outputs=tensors,
        buffer_updates=reader.written_buffers(),
        constants=reader.constants,
    )
    tied = {
        wrapping.tensor(name): wrapping.tensor(first)
        for name, first in reader.names.first.items()
        if name != first
    }
    return assembly.graph(tied, exported)


class _Reader:
    """Makes a tensor of each input of the program."""

    def __init__(self, exported: ExportedProgram, names: Names, wrapping: Wrapping) -> None:
        self.names = names
        self.lowering = Lowering(Recorder(), wrapping)
        self.inputs: list[Tensor] = []
        self.constants: dict[int, torch.Tensor] = {}
        self._wrapping = wrapping
        self._values: dict[str, Value] = {}
        self._given: list[tuple[Tensor, Value]] = []
        nodes = (node for node in exported.graph.nodes if node.op == "placeholder")
        for node, spec in zip(nodes, exported.graph_signature.input_specs, strict=True):
            value = self._input(node, spec)
            self.lowering.bind(node, value)
            self._keep_constant(value, exported.constants.get(spec.target or ""))

    def _input(self, node: fx.Node, spec: InputSpec) -> Value | object:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value
        kind = _KINDS[spec.kind]
        if spec.target in self.names.buffers:
            kind = TensorKind.BUFFER
        name = self.names.first.get(spec.target or "", spec.target) or node.name
        if name not in self._values:
            tensor = self._tensor(name, value, kind)
            self._values[name] = Value.fresh(tensor)
            self._given.append((tensor, self._values[name]))
        return self._values[name]

    def _keep_constant(self, value: Value | object, content: object) -> None:
        if not isinstance(value, Value) or value.tensor.kind is not TensorKind.CONSTANT:
            return
        if isinstance(content, torch.Tensor) and has_values(content):
            self.constants[value.tensor.id] = content

    def _tensor(self, name: str, value: torch.Tensor, kind: TensorKind) -> Tensor:
        tensor = self.lowering.recorder.new_tensor(
            name if kind is TensorKind.INPUT else self._wrapping.tensor(name),
            Form(tuple(value.shape), value.dtype),
            kind,
            requires_grad=kind is TensorKind.PARAMETER and value.requires_grad,
        )
        if kind is TensorKind.INPUT:
            self.inputs.append(tensor)
        return tensor

    def written_buffers(self) -> dict[int, Tensor]:
        """The buffers that forward assigned to, by id, and their new content."""
        written: dict[int, Tensor] = {}
        for before, value in self._given:
            after = value.storage.root
            if before is after or before.kind in (TensorKind.INPUT, TensorKind.CONSTANT):
                continue
            if before.kind is TensorKind.PARAMETER:
                raise CaptureError(
                    f"The forward pass writes to the parameter {before.name}, which only an optimizer may "
                    "do.\nMake it a buffer, or compute a new tensor from it."
                )
            written[before.id] = after
        return written
