"""A part of a captured graph as something that runs: plain ATen calls on the tensors it is given.

The calls are those that the model itself makes, in the same order and on the same tensors, so their results
are the same to the last bit. Activations are let go after their last use.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from syncline._torch_compat import returns_one_tensor, schema_arguments
from syncline.graph.cutting import StagePart
from syncline.graph.opgraph import Op, OpGraph, TensorRef, resolve


class StageProgram:
    """Runs one stage: from the activation that comes in and the batch to what goes out."""

    def __init__(self, graph: OpGraph, part: StagePart, device: torch.device) -> None:
        self.takes_activation = part.entry is not None
        self.exit = graph.tensors[part.exit]
        self.entry = None if part.entry is None else graph.tensors[part.entry]
        self._places = [graph.inputs.index(tensor) for tensor in part.inputs]
        names = [graph.tensors[tensor].name for tensor in (*part.parameters, *part.buffers)]
        self._state_names = names
        self._constants = [graph.constants[tensor].to(device) for tensor in part.constants]
        self._updated = [graph.tensors[buffer].name for buffer, _ in part.buffer_updates]
        self._run = _compile(graph, part, device)

    @property
    def state_names(self) -> Sequence[str]:
        """The parameters and buffers that it reads or writes, by their names in the model."""
        return self._state_names

    def __call__(
        self, state: Mapping[str, Tensor], batch: Sequence[Tensor], activation: Tensor | None = None
    ) -> Tensor:
        """What goes out.

        Args:
            state: Parameters and buffers by name.
            batch: All tensors of the batch, in the order in which the batch flattens.
            activation: What came from the stage before; None for the first.
        """
        entry = [activation] if self.takes_activation else []
        given = [state[name] for name in self._state_names]
        inputs = [batch[place] for place in self._places]
        result, updates = self._run(*entry, *given, *self._constants, *inputs)
        with torch.no_grad():
            for name, content in zip(self._updated, updates, strict=True):
                state[name].copy_(content)
        # Under autocast an activation may be narrower than it was captured; the next stage expects this.
        return result if result.dtype == self.exit.dtype else result.to(self.exit.dtype)


def _compile(graph: OpGraph, part: StagePart, device: torch.device) -> fx.GraphModule:
    traced = fx.Graph()
    nodes: dict[int, fx.Node] = {}
    entry = () if part.entry is None else (part.entry,)
    for tensor in (*entry, *part.parameters, *part.buffers, *part.constants, *part.inputs):
        nodes[tensor] = traced.placeholder(f"t{tensor}")
    for index in part.ops:
        _call(traced, nodes, graph.ops[index], device)
    updates = tuple(nodes[content] for _, content in part.buffer_updates)
    traced.output((nodes[part.exit], updates))
    return fx.GraphModule(nn.Module(), traced)


def _call(traced: fx.Graph, nodes: dict[int, fx.Node], op: Op, device: torch.device) -> None:
    function = resolve(op.target)
    arguments = {name: _filled(value, nodes) for name, value in op.arguments.items()}
    makes_tensor = not op.inputs and any(one.name == "device" for one in schema_arguments(function))
    if makes_tensor:
        arguments["device"] = device
    made = traced.call_function(function, kwargs=arguments)
    if returns_one_tensor(function):
        nodes[op.outputs[0]] = made
        return
    for place, tensor in enumerate(op.outputs):
        nodes[tensor] = traced.call_function(operator.getitem, (made, place))


def _filled(value: Any, nodes: Mapping[int, fx.Node]) -> Any:
    if isinstance(value, TensorRef):
        return nodes[value.id]
    return [_filled(item, nodes) for item in value] if isinstance(value, tuple) else value
