"""Runs a captured graph op by op on real tensors, to compare it with the model that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from syncline.graph import OpGraph, TensorKind, TensorRef, resolve


def run_graph(
    graph: OpGraph, model: nn.Module, inputs: Sequence[Tensor]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The outputs, and the new values of the buffers that the graph updates."""
    values: dict[int, Tensor] = dict(graph.constants)
    parameters = dict(model.named_parameters())
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for tensor in graph.tensors:
        if tensor.kind is TensorKind.PARAMETER:
            values[tensor.id] = parameters[tensor.name]
        elif tensor.kind is TensorKind.BUFFER:
            values[tensor.id] = buffers[tensor.name]
    values.update(zip(graph.inputs, inputs, strict=True))
    updated: dict[str, Tensor] = {}
    for op in graph.ops:
        arguments = {name: _filled(value, values) for name, value in op.arguments.items()}
        result = resolve(op.target)(**arguments)
        outputs = result if isinstance(result, tuple | list) else [result]
        for index, output in zip(op.outputs, outputs, strict=True):
            described = graph.tensors[index]
            assert (tuple(output.shape), output.dtype) == (described.shape, described.dtype), op.name
            assert output.requires_grad == described.requires_grad, op.name
            values[index] = output
        updated.update({graph.tensors[index].name: values[index] for index in op.updates})
    updated.update({graph.tensors[old].name: values[new] for old, new in graph.buffer_updates.items()})
    return [values[index] for index in graph.outputs], updated


def _filled(value: Any, values: Mapping[int, Tensor]) -> Any:
    if isinstance(value, TensorRef):
        return values[value.id]
    return [_filled(item, values) for item in value] if isinstance(value, tuple) else value


def check_equivalent(graph: OpGraph, model: nn.Module, inputs: Sequence[Tensor], expected: Any) -> None:
    """The graph gives what the model gave, the same gradients, and the same buffers afterwards.

    Args:
        graph: Captured from the model.
        model: Real, in the state before the call that gave `expected`.
        inputs: Flat, as they were in that call.
        expected: A function that calls the model and gives its outputs.
    """
    torch.manual_seed(1)
    found, updated = run_graph(graph, model, inputs)
    torch.manual_seed(1)
    wanted = expected()
    torch.testing.assert_close(found, list(wanted))
    after = dict(model.named_buffers())
    for name, value in updated.items():
        torch.testing.assert_close(value, after[name])
    parameters = [one for one in model.parameters() if one.requires_grad]
    ours, theirs = (
        torch.autograd.grad(
            [out for out in outputs if out.requires_grad],
            parameters,
            [torch.ones_like(out) for out in outputs if out.requires_grad],
            allow_unused=True,
        )
        for outputs in (found, wanted)
    )
    torch.testing.assert_close(list(ours), list(theirs))
