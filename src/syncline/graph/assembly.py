"""Makes the graph of recorded ops: drops what nothing needs, names ops, and works out what each costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from syncline._torch_compat import OpOverload, overload_name, schema_arguments
from syncline.graph.chunking import join_chunks
from syncline.graph.lookup import space_of
from syncline.graph.opgraph import Op, OpGraph, Tensor, TensorKind, TensorRef
from syncline.graph.recording import Draft
from syncline.graph.rules.call import Call
from syncline.graph.saving import Saved, saved_for_backward
from syncline.graph.space import IterationSpace


@dataclass(slots=True)
class Assembly:
    """What a lowering found, on its way to a graph."""

    tensors: list[Tensor]
    drafts: Sequence[Draft]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    buffer_updates: Mapping[int, Tensor]
    constants: Mapping[int, torch.Tensor] = field(default_factory=dict)
    _spaces: dict[Any, IterationSpace] = field(default_factory=dict)
    _saved: dict[Any, Saved] = field(default_factory=dict)

    def graph(self, tied: Mapping[str, str], exported: ExportedProgram | None = None) -> OpGraph:
        """The graph, with tensors and ops numbered in order."""
        wanted = [*self.outputs, *self.buffer_updates.values()]
        drafts = join_chunks(_needed(self.drafts, wanted), wanted, self._new_tensor)
        kept = self._number(drafts)
        names = self._names(drafts)
        ops = tuple(
            self._op(index, name, draft, kept)
            for index, (name, draft) in enumerate(zip(names, drafts, strict=True))
        )
        return OpGraph(
            tensors=tuple(self._named(kept, ops)),
            ops=ops,
            inputs=tuple(kept[tensor.id].id for tensor in self.inputs),
            outputs=tuple(kept[tensor.id].id for tensor in self.outputs),
            buffer_updates={kept[old].id: kept[new.id].id for old, new in self.buffer_updates.items()},
            tied=dict(tied),
            constants={kept[old].id: value for old, value in self.constants.items()},
            exported=exported,
        )

    def _new_tensor(self, like: Tensor) -> Tensor:
        self.tensors.append(replace(like, id=len(self.tensors)))
        return self.tensors[-1]

    def _number(self, drafts: Iterable[Draft]) -> dict[int, Tensor]:
        """The tensors that stay, by their old id; all but activations stay even if nothing uses them."""
        made = {tensor.id for draft in drafts for tensor in draft.outputs}
        stay = [t for t in self.tensors if t.id in made or t.kind is not TensorKind.ACTIVATION]
        return {tensor.id: replace(tensor, id=index) for index, tensor in enumerate(stay)}

    def _names(self, drafts: Iterable[Draft]) -> list[str]:
        counts: Counter[str] = Counter()
        names = []
        for draft in drafts:
            name = f"{draft.origin.module}/{draft.target.overloadpacket.__name__}".lstrip("/")
            counts[name] += 1
            names.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
        return names

    def _named(self, kept: Mapping[int, Tensor], ops: Iterable[Op]) -> list[Tensor]:
        """The tensors, with activations called after the ops that make them."""
        tensors = list(kept.values())
        for op in ops:
            for place, index in enumerate(op.outputs):
                name = op.name if len(op.outputs) == 1 else f"{op.name}.{place}"
                tensors[index] = replace(tensors[index], name=name)
        return tensors

    def _op(self, index: int, name: str, draft: Draft, kept: Mapping[int, Tensor]) -> Op:
        space, saved = self._facts(draft)
        inputs = [kept[tensor.id] for tensor in draft.inputs]
        outputs = [kept[tensor.id] for tensor in draft.outputs]
        needs = [tensor.requires_grad for tensor in inputs]
        differentiated = any(tensor.requires_grad for tensor in outputs)
        moved = not draft.is_view
        return Op(
            id=index,
            name=name,
            target=str(draft.target),
            arguments={key: _with_refs(value, kept) for key, value in draft.arguments.items()},
            inputs=tuple(tensor.id for tensor in inputs),
            outputs=tuple(tensor.id for tensor in outputs),
            space=space,
            module=draft.origin.module,
            source=draft.origin.source,
            forward_flops=space.forward_flops(),
            backward_flops=space.backward_flops(needs) if differentiated else 0,
            bytes_read=sum(tensor.bytes for tensor in dict.fromkeys(inputs)) if moved else 0,
            bytes_written=sum(tensor.bytes for tensor in outputs) if moved else 0,
            saved=tuple((*inputs, *outputs)[place].id for place in saved.places) if differentiated else (),
            saved_extra_bytes=saved.extra_bytes if differentiated else 0,
            is_view=draft.is_view,
            updates=tuple(kept[tensor.id].id for tensor in draft.updates),
        )

    def _facts(self, draft: Draft) -> tuple[IterationSpace, Saved]:
        """The space of an op and what it saves, worked out once for all calls that are alike."""
        forms = tuple((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in draft.inputs)
        attributes = tuple((key, _without_tensors(value)) for key, value in draft.arguments.items())
        key = (draft.target, forms, attributes, tuple(tensor.shape for tensor in draft.outputs))
        if key not in self._spaces:
            self._spaces[key] = space_of(_call(draft), frozenset(draft.target.tags))
            self._saved[key] = saved_for_backward(draft)
        return self._spaces[key], self._saved[key]


def _needed(drafts: Sequence[Draft], wanted: Iterable[Tensor]) -> list[Draft]:
    """The ops that something wanted depends on, and those that update buffers."""
    alive = {tensor.id for tensor in wanted}
    needed: list[Draft] = []
    for draft in reversed(drafts):
        if draft.updates or any(tensor.id in alive for tensor in draft.outputs):
            alive.update(tensor.id for tensor in draft.inputs)
            needed.append(draft)
    return needed[::-1]


def _call(draft: Draft) -> Call:
    return Call(
        name=draft.target.overloadpacket.__name__,
        overload=overload_name(draft.target),
        arguments=draft.arguments,
        optional=optional_tensors(draft.target),
        outputs=tuple(tensor.shape for tensor in draft.outputs),
    )


def optional_tensors(target: OpOverload) -> frozenset[str]:
    """The arguments of an op that are a tensor or None."""
    return frozenset(one.name for one in schema_arguments(target) if str(one.type) == "Optional[Tensor]")


def _with_refs(value: Any, kept: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return TensorRef(kept[value.id].id)
    return tuple(_with_refs(item, kept) for item in value) if isinstance(value, tuple) else value


def _without_tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        return "tensor"
    return tuple(map(_without_tensors, value)) if isinstance(value, tuple) else value
