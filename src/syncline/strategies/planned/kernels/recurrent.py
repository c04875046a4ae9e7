"""LSTM, GRU and plain recurrence with the hidden units split: the state is gathered at every step.

Backward sums, at every step, what each shard's gates owe to the state of all units. Inside, tensors are
(step, unit, batch): see `recurrent_cells`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from syncline.graph.space import DimKind
from syncline.strategies.planned.kernels.exchange import Group, gather_into, gathered, scattered_sum
from syncline.strategies.planned.kernels.recurrent_cells import CELLS, Cell, Gradient, Products, State
from syncline.strategies.planned.kernels.shard import Kernel, OpShard


def recurrent(shard: OpShard) -> Kernel:
    """The kernel of `lstm`, `gru`, `rnn_tanh` and `rnn_relu`."""
    name = shard.op.target.split(".")[1]
    stack = _Stack(shard, CELLS[name](), shard.group(DimKind.COLLECTIVE))
    members = 1 if stack.group is None else stack.group.size()
    units = shard.op.space.dims[shard.op.space.index("h")].size
    if units % members:
        raise NotImplementedError(f"{shard.op.name}: {units} units in {members} unequal parts")
    return stack.run


@dataclass(frozen=True, slots=True)
class _Stack:
    """All layers and directions."""

    shard: OpShard
    cell: Cell
    group: Group

    def run(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The whole op."""
        device = inputs[0].device.type
        if not torch.is_autocast_enabled(device):
            return self._run(inputs)
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return self._run([one.to(dtype) for one in inputs])

    def _run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        given = self.shard.fill(inputs)
        layers, ways = given["num_layers"], 2 if given["bidirectional"] else 1
        starts = given["hx"] if isinstance(given["hx"], list) else [given["hx"]]
        hidden, *cells = (one.transpose(1, 2).contiguous() for one in starts)
        full = _GatherUnits.apply(hidden, self.group)
        each = len(given["params"]) // (layers * ways)
        x = given["input"].transpose(0, 1) if given["batch_first"] else given["input"]
        drop = _Dropout.of(given, x, self.group) if layers > 1 else None
        own, last_hidden, last_cells = [], [], []
        for layer in range(layers):
            own, fulls = [], []
            for way in range(ways):
                index = layer * ways + way
                part = _Layer(self.cell, self.group, reverse=way == 1, feeds_next=layer + 1 < layers)
                start = (hidden[index], full[index], cells[0][index] if cells else None)
                out, whole, cell = part.run(x, start, given["params"][index * each : (index + 1) * each])
                own.append(out)
                fulls.append(whole)
                last_hidden.append(out[0 if part.reverse else -1])
                last_cells.append(cell)
            if layer + 1 < layers:
                x = torch.cat(fulls, 1).transpose(1, 2)
                x = x if drop is None else drop(x)
        order = (2, 0, 1) if given["batch_first"] else (0, 2, 1)
        states = [last_hidden, last_cells] if cells else [last_hidden]
        return (
            torch.cat(own, 1).permute(order).contiguous(),
            *(torch.stack(one).transpose(1, 2).contiguous() for one in states),
        )


@dataclass(frozen=True, slots=True)
class _Dropout:
    """Between layers. All shards see all units, so that they have to drop the same ones."""

    rate: float
    stream: torch.Generator

    @classmethod
    def of(cls, given: dict[str, Any], x: Tensor, group: Group) -> _Dropout | None:
        """The dropout that the op wants, if any; the first member's random numbers seed everyone's."""
        if not (given["train"] and given["dropout"] > 0):
            return None
        seed = torch.randint(2**62, (1,), device=x.device)
        if group is not None:
            dist.broadcast(seed, group=group, group_src=0)
        return cls(given["dropout"], torch.Generator(x.device).manual_seed(int(seed)))

    def __call__(self, x: Tensor) -> Tensor:
        keep = 1 - self.rate
        mask = torch.empty_like(x, memory_format=torch.contiguous_format)
        mask.bernoulli_(keep, generator=self.stream)
        return x * (mask.div_(keep) if keep else mask)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer in one direction."""

    cell: Cell
    group: Group
    reverse: bool
    feeds_next: bool
    """The next layer takes the outputs of all units."""

    def run(
        self, x: Tensor, start: tuple[Tensor, Tensor, Tensor | None], weights: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The own units' outputs, those of all units if the next layer takes them, and the last cell."""
        of_input, of_hidden, *biases = weights
        inside = self.cell.own_bias
        bias = None
        if biases:
            bias = biases[0] if inside else biases[0] + biases[1]
        # The input's share of all steps at once.
        given = F.linear(x, of_input, bias).transpose(1, 2).contiguous()
        hidden_bias = biases[1] if biases and inside else None
        return _Recurrence.apply(given, of_hidden, hidden_bias, *start, self)

    def order(self, steps: int) -> range:
        """The steps in the order in which they are run."""
        return range(steps - 1, -1, -1) if self.reverse else range(steps)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        hidden: Tensor,
        full: Tensor,
        cell: Tensor | None,
        layer: _Layer,
    ) -> Any:
        steps, _, batch = given.shape
        kept = given.new_empty((steps, layer.cell.kept * len(hidden), batch))
        fulls = given.new_empty((steps, len(full), batch))
        states: list[Any] = [None] * steps
        state, seen = State(hidden, hidden if cell is None else cell), full
        order = layer.order(steps)
        for step in order:
            state = states[step] = layer.cell.forward(given[step], weight, bias, seen, state, kept[step])
            if layer.feeds_next or step != order[-1]:
                gather_into(fulls[step], state.hidden, layer.group)
            seen = fulls[step]
        out = torch.stack([one.hidden for one in states])
        cells = None if cell is None else torch.stack([one.cell for one in states])
        ctx.save_for_backward(weight, hidden, full, cell, kept, fulls, out, cells)
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        return out, fulls if layer.feeds_next else None, None if cell is None else state.cell

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        weight, hidden, full, cell, kept, fulls, out, cells = ctx.saved_tensors
        layer: _Layer = ctx.layer
        given = _own_gradient(out, gradients[0], gradients[1], layer.group)
        for_input = kept.new_empty((len(out), layer.cell.gates * out.shape[1], out.shape[2]))
        for_hidden = torch.empty_like(for_input) if layer.cell.own_bias else for_input
        order = layer.order(len(out))
        # Without a cell the hidden states stand for it.
        start, later = State(hidden, hidden if cell is None else cell), out if cells is None else cells
        carried, carried_cell = None, gradients[2]
        direct, product = None, None
        for place in range(len(order) - 1, -1, -1):
            step = order[place]
            previous = order[place - 1] if place else None
            before = start if previous is None else State(out[previous], later[previous])
            sent = Gradient(given[step] if carried is None else given[step] + carried, carried_cell)
            products = Products(for_input[step], for_hidden[step])
            after = State(out[step], later[step])
            direct, carried_cell = layer.cell.backward(sent, after, before, kept[step], products)
            if place or ctx.needs_input_grad[4]:
                product = weight.t() @ for_hidden[step]
            if place and product is not None:
                carried = scattered_sum(product, layer.group)
                carried = carried if direct is None else carried.add_(direct)
        for_weight = for_bias = None
        if ctx.needs_input_grad[1]:
            for_weight = _joined(for_hidden) @ _joined(_before(full, fulls, layer)).t()
        if ctx.needs_input_grad[2]:
            for_bias = for_hidden.sum((0, 2))
        for_full = product if ctx.needs_input_grad[4] else None
        return for_input, for_weight, for_bias, direct, for_full, carried_cell, None


def _own_gradient(out: Tensor, own: Tensor | None, full: Tensor | None, group: Group) -> Tensor:
    """The gradient of the own units' outputs: the shards' next layers each have a share of it."""
    if full is None:
        return torch.zeros_like(out) if own is None else own
    shared = _scattered_units(full, group)
    return shared if own is None else shared.add_(own)


def _before(full: Tensor, fulls: Tensor, layer: _Layer) -> Tensor:
    """The state of all units that each step started from."""
    pieces = [fulls[1:], full.unsqueeze(0)] if layer.reverse else [full.unsqueeze(0), fulls[:-1]]
    return torch.cat(pieces)


def _joined(steps: Tensor) -> Tensor:
    """(step, row, batch) as (row, step and batch)."""
    return steps.transpose(0, 1).flatten(1)


def _scattered_units(partial: Tensor, group: Group) -> Tensor:
    """The own units of the sum over the group of (n, unit, batch)."""
    if group is None:
        return partial
    members = partial.unflatten(1, (group.size(), -1)).transpose(0, 1)
    return scattered_sum(members.contiguous(), group).squeeze(0)


class _GatherUnits(torch.autograd.Function):
    """All units of (n, unit, batch); the gradient is the sum of what all shards found."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return gathered(own, group).transpose(0, 1).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _scattered_units(gradients[0], ctx.group), None
