"""Joins a product with the cut of its outputs into equal chunks, such as queries, keys and values.

Between the two, a chunk's share of the outputs is strided, which a tensor of the graph must not be. As one op
only the weights are, and these are its own: so heads can be split, as they can be with three products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from syncline._torch_compat import OpOverload
from syncline.graph.canonical import Arguments
from syncline.graph.opgraph import Tensor, TensorKind
from syncline.graph.recording import Draft

aten, own = torch.ops.aten, torch.ops.syncline


@dataclass(frozen=True, slots=True)
class _Cut:
    """A product, what turns its output to another shape, if anything does, and what cuts it."""

    product: Draft
    reshape: Draft | None
    split: Draft


def join_chunks(
    drafts: Sequence[Draft], wanted: Iterable[Tensor], new_tensor: Callable[[Tensor], Tensor]
) -> list[Draft]:
    """The ops, with every product that is only cut into equal chunks joined with the cut.

    Args:
        drafts: All ops, in order.
        wanted: The tensors that are needed after the last op.
        new_tensor: Makes a tensor that is new to the graph.
    """
    uses = Counter(tensor.id for draft in drafts for tensor in draft.inputs)
    uses.update(tensor.id for tensor in wanted)
    users = {tensor.id: draft for draft in drafts for tensor in draft.inputs}
    replaced: dict[int, list[Draft]] = {}
    for draft in drafts:
        found = _find(draft, users, uses)
        if found is not None:
            replaced.update(_joined(found, new_tensor))
    return [new for draft in drafts for new in replaced.get(id(draft), [draft])]


def _find(product: Draft, users: dict[int, Draft], uses: Counter[int]) -> _Cut | None:
    weights = _own_weights(product)
    if not weights or any(uses[one.id] > 1 or one.kind is not TensorKind.PARAMETER for one in weights):
        return None
    (output,) = product.outputs
    after, reshape = users.get(output.id), None
    if after is not None and after.target is aten.reshape.default:
        reshape, after = after, users.get(after.outputs[0].id)
        if reshape.outputs[0].shape[-1:] != output.shape[-1:]:
            return None
    between = [output] if reshape is None else [output, *reshape.outputs]
    if after is None or after.target is not aten.split_with_sizes.default:
        return None
    last = after.arguments["dim"] == len(between[-1].shape) - 1
    equal = len(set(after.arguments["split_sizes"])) == 1 and len(after.outputs) > 1
    if not last or not equal or any(uses[one.id] > 1 for one in between):
        return None
    return _Cut(product, reshape, after)


def _own_weights(product: Draft) -> list[Tensor]:
    """The weights of a product that can be joined; none for any other op."""
    arguments = product.arguments
    if product.target is aten.linear.default:
        return [one for one in (arguments["weight"], arguments["bias"]) if one is not None]
    if product.target is aten.addmm.default and arguments["beta"] == arguments["alpha"] == 1:
        return [arguments["mat2"], arguments["self"]] if len(arguments["self"].shape) == 1 else []
    return []


def _joined(cut: _Cut, new_tensor: Callable[[Tensor], Tensor]) -> dict[int, list[Draft]]:
    """What stands in the place of each op."""
    pieces = cut.split.outputs
    if cut.reshape is None:
        return {id(cut.product): [_chunks(cut.product, pieces)], id(cut.split): []}
    (output,) = cut.product.outputs
    shape = (*output.shape[:-1], pieces[0].shape[-1])
    chunks = tuple(new_tensor(replace(output, shape=shape)) for _ in pieces)
    reshapes = [
        replace(cut.reshape, arguments={"self": chunk, "shape": piece.shape}, outputs=(piece,))
        for chunk, piece in zip(chunks, pieces, strict=True)
    ]
    return {
        id(cut.product): [_chunks(cut.product, chunks)],
        id(cut.reshape): [],
        id(cut.split): reshapes,
    }


def _chunks(product: Draft, outputs: tuple[Tensor, ...]) -> Draft:
    names = ("input", "weight", "bias") if product.target is aten.linear.default else ("self", "mat1", "mat2")
    target: OpOverload = own.linear_chunks.default if names[0] == "input" else own.addmm_chunks.default
    arguments: Arguments = {name: product.arguments[name] for name in names}
    return replace(product, target=target, arguments={**arguments, "chunks": len(outputs)}, outputs=outputs)
