"""Views and in-place writes, undone: a write through one view is seen through all others.

Every value of the traced program knows the storage that it looks at and the views that lead there. A write
makes a new version of the storage; values of an older version are derived again when they are next used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from syncline._torch_compat import OpOverload
from syncline.errors import CaptureError
from syncline.graph.canonical import Form
from syncline.graph.opgraph import Tensor
from syncline.graph.origin import Origin
from syncline.graph.recording import Recorder

aten = torch.ops.aten


@dataclass(slots=True)
class Storage:
    """Memory that several values can share: its newest content."""

    root: Tensor
    version: int = 0


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view: the op that makes it, without the tensor that it looks at."""

    target: OpOverload
    arguments: dict[str, Any]
    forms: tuple[Form, ...]
    output: int = 0


@dataclass(slots=True)
class Value:
    """A value of the traced program: the storage seen through a chain of views."""

    storage: Storage
    tensor: Tensor
    chain: tuple[ViewStep, ...] = ()
    version: int = 0

    @classmethod
    def fresh(cls, tensor: Tensor) -> Value:
        """A value with memory of its own."""
        return cls(Storage(tensor), tensor)

    def viewed(self, step: ViewStep | None, tensor: Tensor) -> Value:
        """Another view of the same memory, which is up to date."""
        chain = self.chain if step is None else (*self.chain, step)
        return Value(self.storage, tensor, chain, self.storage.version)


def current(recorder: Recorder, value: Value, origin: Origin) -> Tensor:
    """The tensor that holds the value now."""
    if value.version != value.storage.version:
        value.tensor = _path(recorder, value, origin)[-1]
        value.version = value.storage.version
    return value.tensor


def overwrite(recorder: Recorder, value: Value, content: Tensor, origin: Origin) -> None:
    """Gives the value, and with it the memory that it looks at, new content."""
    path = _path(recorder, value, origin)
    for step, parent in zip(reversed(value.chain), reversed(path[:-1]), strict=True):
        content = _written_through(recorder, step, parent, content, origin)
    value.storage.root = content
    value.storage.version += 1


def _path(recorder: Recorder, value: Value, origin: Origin) -> list[Tensor]:
    """The storage's content, and what each view along the chain shows of it."""
    path = [value.storage.root]
    for step in value.chain:
        arguments = {"self": path[-1], **step.arguments}
        path.append(recorder.emit(step.target, arguments, step.forms, origin, is_view=True)[step.output])
    return path


def _written_through(
    recorder: Recorder, step: ViewStep, parent: Tensor, content: Tensor, origin: Origin
) -> Tensor:
    """What the parent becomes when a view of it gets new content."""
    form = Form(parent.shape, parent.dtype)
    given = step.arguments
    name = step.target.overloadpacket.__name__
    if name == "detach":
        return content
    if name == "reshape":
        call = (aten.reshape.default, {"self": content, "shape": parent.shape})
    elif name == "permute":
        order = given["dims"]
        back = tuple(order.index(dim) for dim in range(len(order)))
        call = (aten.permute.default, {"self": content, "dims": back})
    elif name == "slice":
        call = (aten.slice_scatter.default, {"self": parent, "src": content, **given})
    elif name in ("select", "unbind"):
        index = given["index"] if name == "select" else step.output
        call = (
            aten.select_scatter.default,
            {"self": parent, "src": content, "dim": given["dim"], "index": index},
        )
    elif name == "split_with_sizes":
        start = sum(given["split_sizes"][: step.output])
        end = start + given["split_sizes"][step.output]
        place = {"dim": given["dim"], "start": start, "end": end, "step": 1}
        call = (aten.slice_scatter.default, {"self": parent, "src": content, **place})
    else:
        raise CaptureError(
            f"{origin.source or 'The model'} writes in place through a view made by '{name}', which cannot "
            "be followed.\nWrite to a copy (x = x.clone()) or make a new tensor instead."
        )
    return recorder.emit(*call, (form,), origin)[0]
