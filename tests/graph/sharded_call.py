"""Runs one op whole and in shards, in one process, and compares: the meaning of an iteration space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graph.op_samples import Call
from syncline._torch_compat import schema_arguments
from syncline.graph.assembly import Assembly
from syncline.graph.canonical import LEFT_OUT, Form
from syncline.graph.local import localise, run_local, valid_count
from syncline.graph.opgraph import Op, Tensor, TensorKind, TensorRef, resolve
from syncline.graph.origin import Origin
from syncline.graph.recording import Recorder
from syncline.graph.shards import Part, cut, join
from syncline.graph.space import DimKind


def as_op(call: Call) -> tuple[Op, list[torch.Tensor]]:
    """The op that a graph would have for this call, and the tensors that it takes."""
    target, args, kwargs = call
    recorder = Recorder()
    given: list[torch.Tensor] = []

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            given.append(value)
            form = Form(tuple(value.shape), value.dtype)
            return recorder.new_tensor("x", form, TensorKind.INPUT, requires_grad=value.requires_grad)
        return tuple(map(described, value)) if isinstance(value, list | tuple) else value

    arguments = {}
    for index, argument in enumerate(schema_arguments(target)):
        default = kwargs.get(argument.name, argument.default_value)
        if argument.name not in LEFT_OUT:
            arguments[argument.name] = described(args[index] if index < len(args) else default)
    result = target(*args, **kwargs)
    results = result if isinstance(result, tuple | list) else [result]
    forms = [Form(tuple(one.shape), one.dtype) for one in results]
    outputs = recorder.emit(target, arguments, forms, Origin())
    inputs = recorder.tensors[: len(given)]
    graph = Assembly(recorder.tensors, recorder.drafts, inputs, outputs, {}).graph({})
    (op,) = graph.ops
    taken = {tensor.id: value for tensor, value in zip(inputs, given, strict=True)}
    return op, [taken[index] for index in op.inputs]


def run_whole(op: Op, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    places = iter(inputs)

    def filled(value: Any) -> Any:
        if isinstance(value, TensorRef):
            return next(places)
        return [filled(item) for item in value] if isinstance(value, tuple) else value

    result = resolve(op.target)(**{name: filled(value) for name, value in op.arguments.items()})
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def gradients(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradient of each input that wants one, given those of the outputs."""
    wanted = [one for one in inputs if one.requires_grad]
    ends = [(out, grad) for out, grad in zip(outputs, sent, strict=True) if out.requires_grad]
    if not wanted or not ends:
        return [None] * len(inputs)
    found = torch.autograd.grad(
        [out for out, _ in ends], wanted, [grad for _, grad in ends], allow_unused=True
    )
    by_input = dict(zip(map(id, wanted), found, strict=True))
    return [by_input.get(id(one)) for one in inputs]


def check_split(op: Op, inputs: Sequence[torch.Tensor], dim: int, count: int) -> None:
    """Splitting the dim gives the same outputs and gradients, by the one rule of `graph.space`."""
    space = op.space
    outputs = run_whole(op, inputs)
    sent = [torch.randn_like(out) if out.is_floating_point() or out.is_complex() else out for out in outputs]
    parts = [Part.of(space.dims[dim].size, count, index) for index in range(count)]
    parts = [part for part in parts if part.size]
    pieces = [
        [
            cut(one, operand, space.sizes, {dim: part}).detach().requires_grad_(one.requires_grad)
            for one, operand in zip(inputs, space.inputs, strict=True)
        ]
        for part in parts
    ]
    locals_ = [localise(op, {dim: part}) for part in parts]
    total = sum(valid_count(locals_[i], pieces[i]) for i in range(len(parts)) if locals_[i].divide_by_valid)
    results = [
        run_local(local, own, lambda _: torch.as_tensor(total))
        for local, own in zip(locals_, pieces, strict=True)
    ]
    for place, operand in enumerate(space.outputs):
        shards = [result[place] for result in results]
        joined = join(shards, operand, space.sizes, dim) if operand.has(dim) else _summed(op, dim, shards)
        torch.testing.assert_close(joined, outputs[place])
    expected = gradients(outputs, inputs, sent)
    found = [
        gradients(
            result,
            own,
            [
                cut(one, operand, space.sizes, {dim: part})
                for one, operand in zip(sent, space.outputs, strict=True)
            ],
        )
        for result, own, part in zip(results, pieces, parts, strict=True)
    ]
    for place, operand in enumerate(space.inputs):
        _check_gradient(op, place, dim, [one[place] for one in found], expected[place], pieces, operand)


def _check_gradient(op, place, dim, shards, expected, pieces, operand) -> None:
    if expected is None:
        assert all(one is None for one in shards), f"gradient of input {place} where there is none"
        return
    full = [torch.zeros_like(pieces[i][place]) if one is None else one for i, one in enumerate(shards)]
    joined = join(full, operand, op.space.sizes, dim) if operand.has(dim) else torch.stack(full).sum(0)
    torch.testing.assert_close(joined, expected)


def _summed(op: Op, dim: int, shards: Sequence[torch.Tensor]) -> torch.Tensor:
    assert op.space.dims[dim].kind is DimKind.SUM, "an output lacks a dim that is not summed over"
    return torch.stack(list(shards)).sum(0)


def splits(op: Op) -> list[int]:
    """The dims that can be split without an exchange."""
    return [dim for dim in op.space.splittable if op.space.dims[dim].kind is not DimKind.COLLECTIVE]


__all__ = ["Tensor", "as_op", "check_split", "gradients", "run_whole", "splits"]
