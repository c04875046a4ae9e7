"""Walks the nodes of an exported program and records what they do, without in-place writes, nested
graphs, or ops that only check what export has established already."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from syncline._torch_compat import HigherOrderOperator, OpOverload, schema_arguments, storage_key
from syncline.errors import CaptureError
from syncline.graph.aliasing import Value, ViewStep, current, overwrite
from syncline.graph.canonical import LEFT_OUT, Form, canonical
from syncline.graph.inplace import is_rebinding, is_write, write
from syncline.graph.opgraph import Tensor
from syncline.graph.origin import Origin, Wrapping, origin_of
from syncline.graph.recording import Recorder

Nested: TypeAlias = Any
"""A value, or a tuple of them as ops with several outputs give."""

aten = torch.ops.aten
_NOWHERE = Origin()
_CHECKS = ("_assert", "sym_constrain", "_functional_assert", "_functional_sym_constrain")


class Lowering:
    """The state of one walk: which value each node has."""

    def __init__(self, recorder: Recorder, wrapping: Wrapping) -> None:
        self.recorder = recorder
        self._wrapping = wrapping
        self._values: dict[fx.Node, Nested] = {}

    def bind(self, node: fx.Node, value: Nested) -> None:
        """Says what a placeholder is."""
        self._values[node] = value

    def run(self, module: fx.GraphModule) -> list[Any]:
        """Records the graph and gives its outputs: values, or what else the model returned."""
        for node in module.graph.nodes:
            if node.op == "output":
                return [self._value(item) for item in node.args[0]]
            if node.op == "call_function":
                self._values[node] = self._call(module, node)
        return []

    def tensor(self, value: Value, origin: Origin = _NOWHERE) -> Tensor:
        """The tensor that holds a value now."""
        return current(self.recorder, value, origin)

    def _value(self, item: Any) -> Any:
        return self._values[item] if isinstance(item, fx.Node) else item

    def _call(self, module: fx.GraphModule, node: fx.Node) -> Nested:
        target = node.target
        if target is operator.getitem:
            return self._value(node.args[0])[node.args[1]]
        origin = origin_of(node.meta, self._wrapping)
        if isinstance(target, HigherOrderOperator):
            return self._inline(module, node, origin)
        if not isinstance(target, OpOverload):
            raise _reads_data(origin)
        name = target.overloadpacket.__name__
        if name.startswith(_CHECKS):
            return None
        if name == "broadcast_tensors":
            return self._broadcast(node, origin)
        if is_write(target):
            return self._write(node, target, origin)
        return self._record(node, target, origin)

    def _record(self, node: fx.Node, target: OpOverload, origin: Origin) -> Nested:
        values = self._arguments(target, node)
        arguments = {name: self._resolve(value, origin) for name, value in values.items()}
        forms, many = _forms(node.meta.get("val"), origin)
        viewed = _first_value(values.values())
        aliased = viewed is not None and _aliases(node, target)
        outputs = self.recorder.emit(target, arguments, forms, origin, is_view=aliased)
        made = [
            self._viewed(viewed, target, arguments, forms, index, tensor)
            if aliased and viewed is not None
            else Value.fresh(tensor)
            for index, tensor in enumerate(outputs)
        ]
        return tuple(made) if many else made[0]

    def _broadcast(self, node: fx.Node, origin: Origin) -> Nested:
        """Each tensor expanded by itself."""
        values = self._nested(node.args[0])
        forms, _ = _forms(node.meta["val"], origin)
        expanded = []
        for value, form in zip(values, forms, strict=True):
            arguments = {"self": self.tensor(value, origin)}
            (tensor,) = self.recorder.emit(aten.expand.default, arguments, (form,), origin, is_view=True)
            expanded.append(self._viewed(value, aten.expand.default, arguments, (form,), 0, tensor))
        return tuple(expanded)

    def _viewed(
        self,
        value: Value,
        target: OpOverload,
        arguments: dict[str, Any],
        forms: tuple[Form, ...],
        index: int,
        tensor: Tensor,
    ) -> Value:
        call = canonical(target, arguments, forms)
        if call.target is None:
            return value.viewed(None, tensor)
        given = {name: item for name, item in call.arguments.items() if name != "self"}
        return value.viewed(ViewStep(call.target, given, forms, index), tensor)

    def _write(self, node: fx.Node, target: OpOverload, origin: Origin) -> Nested:
        values = self._arguments(target, node)
        written = next(iter(values.values()))
        arguments = {name: self._resolve(value, origin) for name, value in values.items()}
        if is_rebinding(target):
            forms, _ = _forms(node.meta["val"], origin)
            (tensor,) = self.recorder.emit(target, arguments, forms, origin, is_view=True)
            value = self._viewed(written, target, arguments, forms, 0, tensor)
            self._values[node.all_input_nodes[0]] = value
            return value
        content = write(self.recorder, target, arguments, origin)
        overwrite(self.recorder, written, content, origin)
        return written

    def _inline(self, module: fx.GraphModule, node: fx.Node, origin: Origin) -> Nested:
        """A nested graph, as torch makes for `no_grad` and `autocast`, becomes part of this one.

        Without gradients means: of detached inputs.
        """
        getter = next(arg for arg in node.args if isinstance(arg, fx.Node) and arg.op == "get_attr")
        inner = getattr(module, str(getter.target))
        assert isinstance(inner, fx.GraphModule)
        first = next(one for one in inner.graph.nodes if one.op != "placeholder")
        region = _region(node, origin if origin.source else origin_of(first.meta, self._wrapping))
        placeholders = [one for one in inner.graph.nodes if one.op == "placeholder"]
        for placeholder, given in zip(placeholders, node.args[region.place + 1 :], strict=True):
            value = self._value(given)
            detached = not region.differentiated and isinstance(value, Value)
            self._values[placeholder] = self._detached(value, origin) if detached else value
        return tuple(self.run(inner))

    def _detached(self, value: Value, origin: Origin) -> Value:
        tensor = self.tensor(value, origin)
        form = Form(tensor.shape, tensor.dtype)
        (detached,) = self.recorder.emit(aten.detach.default, {"self": tensor}, (form,), origin, is_view=True)
        step = None if detached is tensor else ViewStep(aten.detach.default, {}, (form,))
        return value.viewed(step, detached)

    def _arguments(self, target: OpOverload, node: fx.Node) -> dict[str, Any]:
        """All arguments by name, in the order of the schema, with defaults; nodes as their values."""
        bound: dict[str, Any] = {}
        for index, argument in enumerate(schema_arguments(target)):
            if argument.name in LEFT_OUT:
                continue
            if index < len(node.args):
                item = node.args[index]
            elif argument.name in node.kwargs:
                item = node.kwargs[argument.name]
            else:
                item = argument.default_value
            bound[argument.name] = self._nested(item)
        return bound

    def _nested(self, item: Any) -> Any:
        if isinstance(item, tuple | list):
            return tuple(self._nested(one) for one in item)
        return self._value(item)

    def _resolve(self, value: Any, origin: Origin) -> Any:
        if isinstance(value, Value):
            return self.tensor(value, origin)
        if isinstance(value, tuple):
            return tuple(self._resolve(one, origin) for one in value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise _reads_data(origin)
        return value


@dataclass(frozen=True, slots=True)
class _Region:
    """A nested graph: which argument it is, and whether it is differentiated."""

    place: int
    differentiated: bool


def _region(node: fx.Node, origin: Origin) -> _Region:
    name = str(node.target)
    if name == "wrap_with_set_grad_enabled":
        return _Region(1, bool(node.args[0]))
    if name == "wrap_with_autocast" and not node.args[2]:
        return _Region(4, True)
    raise CaptureError(
        f"{origin.source or 'The model'} uses '{name}', which cannot be part of a plan.\n"
        "Leave autocast to the training's precision setting, and write control flow that depends on tensors "
        "as arithmetic, for example with torch.where."
    )


def _forms(result: Any, origin: Origin) -> tuple[tuple[Form, ...], bool]:
    """The shapes and types of what a node gives, and whether it gives several tensors."""
    many = isinstance(result, tuple | list)
    tensors = result if isinstance(result, tuple | list) else (result,)
    forms = []
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise _reads_data(origin)
        if not all(isinstance(extent, int) for extent in tensor.shape):
            raise CaptureError(
                f"{origin.source or 'The model'} makes a tensor whose shape depends on data "
                f"({list(tensor.shape)}), so its cost cannot be known before training.\n"
                "Use a fixed size and a mask, for example torch.where instead of boolean indexing."
            )
        forms.append(Form(tuple(tensor.shape), tensor.dtype))
    return tuple(forms), many


def _reads_data(origin: Origin) -> CaptureError:
    return CaptureError(
        f"{origin.source or 'The model'} turns the value of a tensor into a Python number, so what follows "
        "depends on data.\nKeep it a tensor: leave out item(), int(), float() and tolist()."
    )


def _first_value(values: Iterable[Any]) -> Value | None:
    return next((value for value in values if isinstance(value, Value)), None)


def _aliases(node: fx.Node, target: OpOverload) -> bool:
    """Whether the result looks at the memory of the first input; some ops decide that by its strides."""
    arguments = schema_arguments(target)
    if not arguments or arguments[0].alias_info is None:
        return False
    result, source = node.meta["val"], node.all_input_nodes[0].meta["val"]
    first = result[0] if isinstance(result, tuple | list) else result
    return isinstance(source, torch.Tensor) and storage_key(source) == storage_key(first)
