"""In-place ops: what they compute, as ops that make a new tensor."""

from __future__ import annotations

from typing import Any

import torch

from syncline._torch_compat import OpOverload, overload_name, schema_arguments
from syncline.errors import CaptureError
from syncline.graph.canonical import Form
from syncline.graph.opgraph import Tensor
from syncline.graph.origin import Origin
from syncline.graph.recording import Recorder, tensors_in

aten = torch.ops.aten
_RENAMED = {
    "normal_.default": aten.normal_functional.default,
    "bernoulli_.float": aten.bernoulli.p,
}
_REBINDING = frozenset({"detach_", "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_"})


def is_write(target: OpOverload) -> bool:
    """Whether an op writes to its first argument."""
    return any(one.alias_info is not None and one.alias_info.is_write for one in schema_arguments(target))


def is_rebinding(target: OpOverload) -> bool:
    """Whether an in-place op only changes how a tensor is looked at."""
    return target.overloadpacket.__name__ in _REBINDING


def write(recorder: Recorder, target: OpOverload, arguments: dict[str, Any], origin: Origin) -> Tensor:
    """Records what the op would write, in the type of the tensor written to."""
    written: Tensor = next(tensors_in(arguments.values()))
    form = Form(written.shape, written.dtype)
    name = target.overloadpacket.__name__
    if name == "zero_":
        return recorder.emit(aten.zeros.default, {}, (form,), origin)[0]
    if name == "fill_" and not isinstance(arguments["value"], Tensor):
        return recorder.emit(aten.full.default, {"fill_value": arguments["value"]}, (form,), origin)[0]
    if name in ("copy_", "fill_"):
        source = arguments["src" if name == "copy_" else "value"]
        wide = Form(written.shape, source.dtype)
        (source,) = recorder.emit(aten.expand.default, {"self": source}, (wide,), origin, is_view=True)
        return recorder.emit(aten.to.dtype, {"self": source}, (form,), origin)[0]
    functional = _functional(target, origin)
    result = Form(written.shape, _result_type(functional, arguments, written))
    (content,) = recorder.emit(functional, arguments, (result,), origin)
    return recorder.emit(aten.to.dtype, {"self": content}, (form,), origin)[0]


def _functional(target: OpOverload, origin: Origin) -> OpOverload:
    name, overload = target.overloadpacket.__name__, overload_name(target)
    renamed = _RENAMED.get(f"{name}.{overload}")
    if renamed is not None:
        return renamed
    packet = getattr(aten, name.removesuffix("_"), None)
    found = getattr(packet, overload, None) if name.endswith("_") else None
    if found is None:
        raise CaptureError(
            f"{origin.source or 'The model'} calls '{name}', which changes a tensor in place in a way that "
            "cannot be followed.\nMake a new tensor instead."
        )
    return found


def _result_type(functional: OpOverload, arguments: dict[str, Any], written: Tensor) -> torch.dtype:
    """The type that the functional op gives, which can be wider than that of the tensor written to."""

    def stand_in(value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        return tuple(map(stand_in, value)) if isinstance(value, tuple) else value

    result = functional(**{name: stand_in(value) for name, value in arguments.items()})
    return result.dtype if isinstance(result, torch.Tensor) else written.dtype
