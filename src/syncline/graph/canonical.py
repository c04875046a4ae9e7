"""Reduces synonyms: many ATen ops that say the same thing become one, so that the table stays short.

Views become `reshape` or `permute`, conversions `to`, tensors made from nothing lose the tensor that
they were modelled on, and ops that change nothing disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from syncline._torch_compat import OpOverload
from syncline.graph.opgraph import Tensor

aten = torch.ops.aten
Arguments: TypeAlias = dict[str, Any]
LEFT_OUT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"})
"""Arguments about placement in memory, which a graph for any device does not have."""


@dataclass(frozen=True, slots=True)
class Form:
    """What an op does, apart from how it was called."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Canonical:
    """The op to record; None when the call gives back its `self` unchanged."""

    target: OpOverload | None
    arguments: Arguments


def canonical(target: OpOverload, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    """The one way to write this call, given what it returns."""
    name = target.overloadpacket.__name__
    rewrite = _REWRITES.get(name)
    kept = {key: value for key, value in arguments.items() if key not in LEFT_OUT}
    if rewrite is None or (name == "view" and target is aten.view.dtype):
        return Canonical(target, kept)
    return rewrite(target, kept, outputs)


def _self(arguments: Mapping[str, Any]) -> Tensor:
    return arguments["self"] if "self" in arguments else arguments["input"]


def _same(arguments: Arguments) -> Canonical:
    return Canonical(None, {"self": _self(arguments)})


def _reshape(target: Any, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    tensor, shape = _self(arguments), outputs[0].shape
    if tensor.shape == shape:
        return _same(arguments)
    return Canonical(aten.reshape.default, {"self": tensor, "shape": shape})


def _permute(target: OpOverload, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    """The permutation is read off by moving a tensor whose dims all have different sizes."""
    tensor = _self(arguments)
    probe = torch.empty(tuple(range(2, 2 + len(tensor.shape))), device="meta")
    moved = target(**{**arguments, "self": probe})
    order = tuple(extent - 2 for extent in moved.shape)
    if order == tuple(range(len(order))):
        return _same(arguments)
    return Canonical(aten.permute.default, {"self": tensor, "dims": order})


def _expand(target: Any, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    tensor, shape = _self(arguments), outputs[0].shape
    if tensor.shape == shape:
        return _same(arguments)
    return Canonical(aten.expand.default, {"self": tensor, "size": shape, "implicit": False})


def _split(target: Any, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    tensor = _self(arguments)
    dim = arguments.get("dim", 0) % len(tensor.shape)
    sizes = tuple(form.shape[dim] for form in outputs)
    return Canonical(aten.split_with_sizes.default, {"self": tensor, "split_sizes": sizes, "dim": dim})


def _convert(target: Any, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    tensor = _self(arguments)
    if tensor.dtype == outputs[0].dtype:
        return _same(arguments)
    return Canonical(aten.to.dtype, {"self": tensor, "dtype": outputs[0].dtype})


def _slice(target: Any, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    tensor = _self(arguments)
    dim = arguments["dim"] % len(tensor.shape)
    extent = tensor.shape[dim]
    if "length" in arguments:  # narrow
        first = arguments["start"] % max(extent, 1)
        start, end, step = first, first + arguments["length"], 1
    else:
        start, end, _ = slice(arguments["start"], arguments["end"]).indices(extent)
        step = arguments["step"]
    if outputs[0].shape[dim] == extent and step == 1:
        return _same(arguments)
    return Canonical(
        aten.slice.Tensor, {"self": tensor, "dim": dim, "start": start, "end": end, "step": step}
    )


def _dropout(target: OpOverload, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    if not arguments["train"] or arguments["p"] == 0:
        return _same(arguments)
    return Canonical(target, arguments)


def _detach(target: Any, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    if not _self(arguments).requires_grad:
        return _same(arguments)
    return Canonical(aten.detach.default, {"self": _self(arguments)})


def _unchanged(target: Any, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    return _same(arguments)


def _tile(target: Any, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    tensor = _self(arguments)
    missing = len(tensor.shape) - len(arguments["dims"])
    repeats = (1,) * missing + tuple(arguments["dims"])
    return Canonical(aten.repeat.default, {"self": tensor, "repeats": repeats})


def _made(target: OpOverload, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    """zeros, new_zeros, zeros_like and their kin: only size, type and value matter."""
    name = target.overloadpacket.__name__.removeprefix("new_").removesuffix("_like")
    form = outputs[0]
    made: Arguments = {"size": form.shape}
    if name == "full":
        made["fill_value"] = arguments["fill_value"]
    packet = getattr(aten, name)
    made["dtype"] = form.dtype
    return Canonical(packet.memory_format if name == "empty" else packet.default, made)


def _typed(target: OpOverload, arguments: Arguments, outputs: tuple[Form, ...]) -> Canonical:
    """Makes the type explicit, which would else depend on a global default."""
    return Canonical(target, {**arguments, "dtype": outputs[0].dtype})


_Rewrite: TypeAlias = Callable[[Any, Arguments, tuple[Form, ...]], Canonical]
_MADE = ("zeros", "ones", "full", "empty", "rand", "randn")
_REWRITES: dict[str, _Rewrite] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "flatten", "unflatten", "ravel", "view_as"), _reshape
    ),
    **dict.fromkeys(("reshape_as", "unsqueeze", "unsqueeze_", "squeeze", "squeeze_"), _reshape),
    **dict.fromkeys(("atleast_1d", "atleast_2d", "atleast_3d", "_reshape_alias"), _reshape),
    **dict.fromkeys(("permute", "transpose", "t", "numpy_T", "mT", "swapaxes"), _permute),
    **dict.fromkeys(("swapdims", "movedim", "moveaxis", "transpose_", "t_", "swapaxes_"), _permute),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk"), _split),
    **dict.fromkeys(("unsafe_split", "unsafe_split_with_sizes"), _split),
    **dict.fromkeys(("to", "_to_copy", "type_as"), _convert),
    **dict.fromkeys(("slice", "narrow"), _slice),
    **dict.fromkeys(("clone", "contiguous", "alias", "lift_fresh", "lift_fresh_copy"), _unchanged),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), _unchanged),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _dropout),
    **dict.fromkeys(("detach", "detach_"), _detach),
    "tile": _tile,
    **dict.fromkeys([f"{prefix}{name}" for name in _MADE[:4] for prefix in ("", "new_")], _made),
    **dict.fromkeys([f"{name}_like" for name in _MADE], _made),
    **dict.fromkeys(("rand", "randn"), _made),
    **dict.fromkeys(("arange", "linspace", "eye", "scalar_tensor"), _typed),
}
