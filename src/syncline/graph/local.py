"""An op on one shard: the arguments that change when its dims are split, and the call itself.

Only what needs no exchange is here: `free` and `sum` dims. An op whose `collective` dim is split runs as
the executor's own kernel, because its shards have to talk to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from syncline.graph.opgraph import Op, TensorRef, resolve
from syncline.graph.shards import Part, local_sizes
from syncline.graph.space import DimKind

_SUM_REDUCTION = 2


@dataclass(frozen=True, slots=True)
class LocalOp:
    """What one shard calls, and what it does with inputs and outputs around the call."""

    target: str
    arguments: Mapping[str, Any]
    """All arguments by name; tensors as `TensorRef` whose id is the place among the op's inputs."""
    scale: float = 1.0
    """Outputs are multiplied by it: the shard's share of a mean."""
    silenced: frozenset[int] = frozenset()
    """Inputs that another shard adds: here they count as zeros."""
    lookup: Part | None = None
    """The rows of the table that this shard has: other rows give zeros."""
    divide_by_valid: bool = False
    """The output is a sum, to be divided by the number (or weight) of valid targets of all shards."""


def localise(op: Op, parts: Mapping[int, Part]) -> LocalOp:
    """The op on the shard that has these parts of the split dims.

    Args:
        op: The op at its full size.
        parts: For each split dim of its space, the part that this shard has.
    """
    space = op.space
    for dim in parts:
        if space.dims[dim].kind in (DimKind.WHOLE, DimKind.COLLECTIVE):
            kind = space.dims[dim].kind
            raise ValueError(f"{op.name}: the dim {space.dims[dim].name} is {kind}, it has no local form")
    sizes = local_sizes(space.sizes, parts)
    local = LocalOp(
        op.target, _by_place(op.arguments, iter(range(len(op.inputs)))), silenced=_silenced(op, parts)
    )
    if space.local is None or not parts:
        return local
    return _ADAPTATIONS[space.local](op, local, parts, sizes)


def run_local(
    local: LocalOp,
    inputs: Sequence[torch.Tensor],
    all_reduce: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Calls the op on a shard's tensors.

    Args:
        local: The op.
        inputs: The shard's pieces of the op's inputs.
        all_reduce: Sums a scalar over the shards; only for `divide_by_valid`.
    """
    # Zero times the input, and not zeros: so it has a gradient on every shard, and all take part in its sum.
    given = [one * 0 if place in local.silenced else one for place, one in enumerate(inputs)]
    outside = None
    if local.lookup is not None:
        given[1], outside = _own_rows(given[1], local.lookup)
    result = resolve(local.target)(**{name: _filled(value, given) for name, value in local.arguments.items()})
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    if outside is not None:
        outputs = (outputs[0].masked_fill(outside.unsqueeze(-1), 0),)
    if local.divide_by_valid:
        count = valid_count(local, given)
        return (outputs[0] / (count if all_reduce is None else all_reduce(count)),)
    return outputs if local.scale == 1.0 else tuple(output * local.scale for output in outputs)


def valid_count(local: LocalOp, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """How many targets a class loss averages over on this shard; with class weights, their sum."""
    target, weight = (_filled(local.arguments[name], inputs) for name in ("target", "weight"))
    valid = target != local.arguments["ignore_index"]
    if weight is None:
        return valid.sum()
    return (weight[target.masked_fill(~valid, 0)] * valid).sum()


def _silenced(op: Op, parts: Mapping[int, Part]) -> frozenset[int]:
    summed = [part for dim, part in parts.items() if op.space.dims[dim].kind is DimKind.SUM]
    if all(part.start == 0 for part in summed):
        return frozenset()
    return frozenset(place for place, operand in enumerate(op.space.inputs) if operand.once)


def _own_rows(indices: torch.Tensor, rows: Part) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices into the shard's rows, and which of them are another shard's."""
    outside = (indices < rows.start) | (indices >= rows.stop)
    return (indices - rows.start).masked_fill(outside, 0), outside


_Adaptation = Callable[[Op, LocalOp, Mapping[int, Part], tuple[int, ...]], LocalOp]


def _changed(local: LocalOp, **arguments: Any) -> LocalOp:
    return replace(local, arguments={**local.arguments, **arguments})


def _shape(op: Op, local: LocalOp, parts: Mapping[int, Part], sizes: tuple[int, ...]) -> LocalOp:
    name = "shape" if "shape" in op.arguments else "size"
    return _changed(local, **{name: op.space.outputs[0].shape(sizes)})


def _split(op: Op, local: LocalOp, parts: Mapping[int, Part], sizes: tuple[int, ...]) -> LocalOp:
    dim = op.arguments["dim"]
    return _changed(local, split_sizes=tuple(output.shape(sizes)[dim] for output in op.space.outputs))


def _groups(op: Op, local: LocalOp, parts: Mapping[int, Part], sizes: tuple[int, ...]) -> LocalOp:
    name = "groups" if "groups" in op.arguments else "num_groups"
    if op.arguments[name] == 1:
        return local
    return _changed(local, **{name: sizes[op.space.index("g")]})


def _mean(op: Op, local: LocalOp, parts: Mapping[int, Part], sizes: tuple[int, ...]) -> LocalOp:
    share = 1.0
    for dim in parts:
        if op.space.dims[dim].kind is DimKind.SUM:
            share *= sizes[dim] / op.space.sizes[dim]
    return replace(local, scale=share)


def _mean_valid(op: Op, local: LocalOp, parts: Mapping[int, Part], sizes: tuple[int, ...]) -> LocalOp:
    return replace(_changed(local, reduction=_SUM_REDUCTION), divide_by_valid=True)


def _lookup(op: Op, local: LocalOp, parts: Mapping[int, Part], sizes: tuple[int, ...]) -> LocalOp:
    rows = next((part for dim, part in parts.items() if op.space.dims[dim].name == "v"), None)
    if rows is None:
        return local
    padding = op.arguments["padding_idx"]
    own = padding - rows.start if rows.start <= padding < rows.stop else -1
    return replace(_changed(local, padding_idx=own), lookup=rows)


_ADAPTATIONS: dict[str, _Adaptation] = {
    "shape": _shape,
    "split": _split,
    "groups": _groups,
    "mean": _mean,
    "mean_valid": _mean_valid,
    "lookup": _lookup,
}


def _by_place(value: Any, places: Any) -> Any:
    """Arguments whose references are places among the inputs."""
    if isinstance(value, TensorRef):
        return TensorRef(next(places))
    if isinstance(value, Mapping):
        return {name: _by_place(item, places) for name, item in value.items()}
    return tuple(_by_place(item, places) for item in value) if isinstance(value, tuple) else value


def _filled(value: Any, inputs: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, TensorRef):
        return inputs[value.id]
    return [_filled(item, inputs) for item in value] if isinstance(value, tuple) else value
