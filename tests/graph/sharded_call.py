"""Runs one op whole and in shards, in one process, and compares: the meaning of an iteration space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from graph.op_samples import Call
from syncline._torch_compat import schema_arguments
from syncline.graph.assembly import Assembly
from syncline.graph.canonical import LEFT_OUT, Form
from syncline.graph.local import localise, run_local, valid_count
from syncline.graph.opgraph import Op, TensorKind, TensorRef, resolve
from syncline.graph.origin import Origin
from syncline.graph.recording import Recorder
from syncline.graph.shards import Part, cut, join, local_sizes
from syncline.graph.space import DimKind, Operand


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


def check_split(op: Op, inputs: Sequence[torch.Tensor], counts: Mapping[int, int]) -> None:
    """Splitting dims gives the same outputs and gradients, by the one rule of `graph.space`.

    Args:
        op: The op.
        inputs: Its full inputs.
        counts: How many ways each dim is split; several dims make a grid of shards.
    """
    space = op.space
    outputs = run_whole(op, inputs)
    sent = [torch.randn_like(out) if out.is_floating_point() or out.is_complex() else out for out in outputs]
    grid = _grid(op, counts)
    pieces = {
        place: [
            cut(one, operand, space.sizes, parts).detach().requires_grad_(one.requires_grad)
            for one, operand in zip(inputs, space.inputs, strict=True)
        ]
        for place, parts in grid.items()
    }
    calls = {place: localise(op, parts) for place, parts in grid.items()}
    results = {place: run_local(calls[place], pieces[place], _total(op, inputs)) for place in grid}
    for index, operand in enumerate(space.outputs):
        shards = {place: result[index] for place, result in results.items()}
        torch.testing.assert_close(_combined(op, operand, shards, counts), outputs[index])
    expected = gradients(outputs, inputs, sent)
    found = {
        place: gradients(
            results[place],
            pieces[place],
            [cut(one, operand, space.sizes, parts) for one, operand in zip(sent, space.outputs, strict=True)],
        )
        for place, parts in grid.items()
    }
    for index, operand in enumerate(space.inputs):
        shards = {
            place: torch.zeros_like(pieces[place][index]) if own[index] is None else own[index]
            for place, own in found.items()
        }
        if expected[index] is None:
            assert all(own[index] is None for own in found.values()), f"a gradient of input {index}"
        else:
            torch.testing.assert_close(_combined(op, operand, shards, counts), expected[index])


def _grid(op: Op, counts: Mapping[int, int]) -> dict[tuple[int, ...], dict[int, Part]]:
    """The parts that each shard has, by its coordinates."""
    ranges = [range(count) for count in counts.values()]
    return {
        place: {
            dim: Part.of(op.space.sizes[dim], count, index)
            for index, (dim, count) in zip(place, counts.items(), strict=True)
        }
        for place in product(*ranges)
    }


def _total(op: Op, inputs: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Stands for an all-reduce of the number of valid targets: the number in the full batch."""
    return lambda _: valid_count(localise(op, {}), inputs)


def _combined(
    op: Op, operand: Operand, shards: Mapping[tuple[int, ...], Any], counts: Mapping[int, int]
) -> torch.Tensor:
    """The full tensor: shards joined along the dims that it has, and summed over those that it lacks."""
    level: dict[tuple[int, ...], torch.Tensor] = dict(shards)
    for depth in reversed(range(len(counts))):
        dim = list(counts)[depth]
        outer = _grid(op, dict(list(counts.items())[:depth]))
        joined: dict[tuple[int, ...], torch.Tensor] = {}
        for place, parts in outer.items():
            row = [level[(*place, index)] for index in range(counts[dim])]
            sizes = local_sizes(op.space.sizes, parts)
            joined[place] = join(row, operand, sizes, dim) if operand.has(dim) else torch.stack(row).sum(0)
        level = joined
    return level[()]


def splits(op: Op) -> list[int]:
    """The dims that can be split without an exchange."""
    return [dim for dim in op.space.splittable if op.space.dims[dim].kind is not DimKind.COLLECTIVE]
