"""Sees every op while a model is built; those that make large tensors are written down, not run.

An op that cannot be written down is run: the large tensors that it works on become real.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from syncline._torch_compat import TorchDispatchMode
from syncline.workloads.deferred.tensors import DeferredTensor, Memory, run_for_real
from syncline.workloads.deferred.values import Computed, Drawn, Filled, Reading, Recipe, chunks, count_draws

_ATEN = torch.ops.aten

_FILLED_WITH: dict[Any, float] = {
    _ATEN.empty.memory_format: 0.0,
    _ATEN.empty_like.default: 0.0,
    _ATEN.new_empty.default: 0.0,
    _ATEN.zeros.default: 0.0,
    _ATEN.zeros_like.default: 0.0,
    _ATEN.new_zeros.default: 0.0,
    _ATEN.ones.default: 1.0,
    _ATEN.ones_like.default: 1.0,
    _ATEN.new_ones.default: 1.0,
}
_FILLED_WITH_ARGUMENT: dict[Any, int] = {
    _ATEN.full.default: 1,
    _ATEN.full_like.default: 1,
    _ATEN.new_full.default: 2,
}
_DRAWN_BY: dict[Any, tuple[Any, tuple[float, float]]] = {
    _ATEN.randn.default: (_ATEN.normal_.default, (0.0, 1.0)),
    _ATEN.randn_like.default: (_ATEN.normal_.default, (0.0, 1.0)),
    _ATEN.rand.default: (_ATEN.uniform_.default, (0.0, 1.0)),
    _ATEN.rand_like.default: (_ATEN.uniform_.default, (0.0, 1.0)),
}
_FACTORIES = {*_FILLED_WITH, *_FILLED_WITH_ARGUMENT, *_DRAWN_BY}
_DRAWS = (_ATEN.normal_.default, _ATEN.uniform_.default)
_FILLS = (_ATEN.fill_.Scalar, _ATEN.fill_.Tensor, _ATEN.zero_.default)
_COPIES = (_ATEN.clone.default, _ATEN._to_copy.default)
_TESTS: dict[Any, bool] = {_ATEN.any.default: True, _ATEN.all.default: False}
"""Reductions to one truth value, by what decides them early."""
_MOST_DRAWS = 8
"""Drawing until all numbers fit makes all of them again each round; after so many the tensor becomes real."""


class Recorder(TorchDispatchMode):
    """While it is active, new CPU tensors of at least so many elements are deferred ones."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self._large = large
        self._made: list[weakref.ref[DeferredTensor]] = []

    def alive(self) -> list[DeferredTensor]:
        """The deferred tensors that somebody still holds."""
        return [tensor for ref in self._made if (tensor := ref()) is not None]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        op, kwargs = func, kwargs or {}
        deferred = [value for value in args if isinstance(value, DeferredTensor)]
        if any(one.memory.real is not None for one in deferred):
            return run_for_real(op, args, kwargs)
        if op in _FACTORIES:
            found = self._create(op, args, kwargs)
        elif not deferred:
            found = None
        elif op.is_view:
            found = self._view(op, args, kwargs)
        elif args[0] is deferred[0] and op in _DRAWS:
            found = _draw(args[0], op, args[1:], kwargs.get("generator"))
        elif args[0] is deferred[0] and op in _FILLS:
            found = _fill(args[0], args[1] if len(args) > 1 else 0)
        elif op is _ATEN.copy_.default:
            found = _copy(args[0], args[1])
        elif op in _TESTS:
            found = _test(op, deferred[0])
        else:
            found = self._compute(op, args, kwargs)
        return run_for_real(op, args, kwargs) if found is None else found

    def _new(self, memory: Memory, shape: torch.Size, offset: int = 0) -> DeferredTensor:
        made = DeferredTensor.of(memory, shape, offset)
        self._made.append(weakref.ref(made))
        return made

    def _create(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
        device = kwargs.get("device") or getattr(args[0], "device", None) or torch.device("cpu")
        if torch.device(device).type != "cpu" or kwargs.get("pin_memory"):
            return None
        shown = op(*_twins(args), **{**kwargs, "device": "meta"})
        if not _can_stand(shown) or shown.numel() < self._large or not shown.dtype.is_floating_point:
            return None
        value = _FILLED_WITH.get(op, 0.0)
        if op in _FILLED_WITH_ARGUMENT:
            value = args[_FILLED_WITH_ARGUMENT[op]]
        recipe = Filled(torch.tensor(value, dtype=shown.dtype))
        made = self._new(Memory(shown.numel(), shown.dtype, recipe), shown.shape)
        if op in _DRAWN_BY:
            draw, arguments = _DRAWN_BY[op]
            _draw(made, draw, arguments, None)
        return made

    def _view(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
        seen = op(*_twins(args), **kwargs)
        source = args[0]
        if not _can_stand(seen) or seen.dtype != source.dtype or not isinstance(source, DeferredTensor):
            return None
        return self._new(source.memory, seen.shape, int(seen.storage_offset()))

    def _compute(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
        """The result of an elementwise op, if its operands are deferred tensors of one shape and scalars."""
        keywords = dict(kwargs)
        if op in _COPIES:
            device = keywords.get("device")
            if device is not None and torch.device(device).type != "cpu":
                return None
            keywords = {"dtype": keywords["dtype"]} if keywords.get("dtype") else {}
        elif torch.Tag.pointwise not in op.tags or torch.Tag.nondeterministic_seeded in op.tags:
            return None
        shape = next(one.shape for one in args if isinstance(one, DeferredTensor))
        if not all(_is_operand(one, shape) for one in (*args, *keywords.values())):
            return None
        operands = tuple(_operand(one) for one in args)
        if torch.Tag.inplace in op.tags:
            return args[0].write(Computed(op, operands, keywords, in_place=True))
        shown = op(*_twins(args), **kwargs)
        if not _can_stand(shown) or shown.shape != shape:
            return None
        recipe = Computed(op, operands, keywords, in_place=False)
        return self._new(Memory(shown.numel(), shown.dtype, recipe), shape)


def _can_stand(shown: Any) -> bool:
    return isinstance(shown, Tensor) and shown.is_contiguous() and shown.ndim > 0


def _twins(args: tuple[Any, ...]) -> list[Any]:
    return [one.twin() if isinstance(one, DeferredTensor) else one for one in args]


def _is_operand(value: Any, shape: torch.Size) -> bool:
    if isinstance(value, DeferredTensor):
        return value.shape == shape and value.memory.real is None
    if isinstance(value, Tensor):
        return value.ndim == 0
    return not isinstance(value, list | tuple)


def _operand(value: Any) -> Any:
    if isinstance(value, DeferredTensor):
        return value.recipe
    return value.clone() if isinstance(value, Tensor) else value


def _draw(
    tensor: DeferredTensor, draw: Callable[..., Tensor], arguments: tuple[Any, ...], given: Any
) -> DeferredTensor | None:
    """Write down that random numbers are drawn, and bring the generator to where drawing them leaves it."""
    generator = torch.default_generator if given is None else given
    if generator.device.type != "cpu":
        return None
    drawn = Drawn(draw, arguments, tensor.numel(), tensor.dtype, generator.get_state())
    for start, stop in drawn.blocks():
        drawn.fill(stop - start, generator)
    return tensor.write(drawn)


def _fill(tensor: DeferredTensor, value: Any) -> DeferredTensor:
    return tensor.write(Filled(torch.as_tensor(value).detach().to(tensor.dtype).clone()))


def _copy(tensor: Any, source: Any) -> DeferredTensor | None:
    if not isinstance(tensor, DeferredTensor):
        return None
    if isinstance(source, DeferredTensor) and source.shape == tensor.shape:
        recipe: Recipe = source.recipe
        if source.dtype != tensor.dtype:
            cast = {"dtype": tensor.dtype}
            recipe = Computed(_ATEN._to_copy.default, (recipe,), cast, in_place=False)
        return tensor.write(recipe)
    is_scalar = isinstance(source, Tensor) and source.ndim == 0 and source.device.type == "cpu"
    return _fill(tensor, source) if is_scalar else None


def _test(op: Any, tensor: DeferredTensor) -> Tensor | None:
    recipe, reading, decisive = tensor.recipe, Reading(), _TESTS[op]
    if count_draws(recipe) > _MOST_DRAWS:
        return None
    for start, stop in chunks(tensor.numel()):
        if bool(op(reading.read(recipe, start, stop))) is decisive:
            return torch.tensor(decisive)
    return torch.tensor(not decisive)
