"""One step of LSTM, GRU and plain recurrence on a shard of the units, forward and backward.

Tensors have units first and the batch last, so that the units of all shards line up when they are gathered
and each gate is one block of memory. `full` is the state of all units, everything else of the own ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_relu_backward = torch.ops.aten.threshold_backward.grad_input


@dataclass(slots=True)
class State:
    """Of a sequence at one step."""

    hidden: Tensor
    cell: Tensor
    """Of an LSTM; otherwise the hidden state again."""


@dataclass(slots=True)
class Gradient:
    """Of a state, as far as it is known; None is zero."""

    hidden: Tensor
    cell: Tensor | None = None


class Products(NamedTuple):
    """The gradients of one step's two products, to be filled: by input and by hidden weights.

    They are one tensor where the products are simply added.
    """

    by_input: Tensor
    by_hidden: Tensor


class Cell(Protocol):
    """One kind of recurrence."""

    @property
    def gates(self) -> int:
        """How many there are."""
        ...

    @property
    def kept(self) -> int:
        """How many tensors of the units' size a step keeps for backward."""
        ...

    @property
    def own_bias(self) -> bool:
        """Whether the bias of the hidden product is inside a gate, and not simply added."""
        ...

    def forward(
        self, given: Tensor, weight: Tensor, bias: Tensor | None, full: Tensor, before: State, kept: Tensor
    ) -> State:
        """The next state, from the input's share of the gates; fills `kept`."""
        ...

    def backward(
        self, sent: Gradient, after: State, before: State, kept: Tensor, for_products: Products
    ) -> tuple[Tensor | None, Tensor | None]:
        """Fills the gradients of both products; gives those of the hidden state and cell before, as far as
        they do not come through the hidden product."""
        ...


class Lstm:
    """Input, forget, new and output gates."""

    gates = kept = 4
    own_bias = False

    def forward(
        self, given: Tensor, weight: Tensor, bias: Tensor | None, full: Tensor, before: State, kept: Tensor
    ) -> State:
        """See `Cell`."""
        torch.addmm(given, weight, full, out=kept)
        into, forget, new, out = kept.chunk(4)
        kept[: 2 * len(into)].sigmoid_()
        new.tanh_()
        out.sigmoid_()
        cell = torch.addcmul(forget * before.cell, into, new)
        return State(out * cell.tanh(), cell)

    def backward(
        self, sent: Gradient, after: State, before: State, kept: Tensor, for_products: Products
    ) -> tuple[Tensor | None, Tensor | None]:
        """See `Cell`; both products have the same gradient."""
        into, forget, new, out = kept.chunk(4)
        to_into, to_forget, to_new, to_out = for_products.by_input.chunk(4)
        squashed = after.cell.tanh()
        _sigmoid_backward(sent.hidden * squashed, out, grad_input=to_out)
        cell = torch.ops.aten.tanh_backward(sent.hidden * out, squashed)
        if sent.cell is not None:
            cell += sent.cell
        _sigmoid_backward(cell * new, into, grad_input=to_into)
        _sigmoid_backward(cell * before.cell, forget, grad_input=to_forget)
        _tanh_backward(cell * into, new, grad_input=to_new)
        return None, cell * forget


class Gru:
    """Reset and update gates, and a new value; the hidden product of the last is reset before it is added."""

    gates = 3
    kept = 4
    own_bias = True

    def forward(
        self, given: Tensor, weight: Tensor, bias: Tensor | None, full: Tensor, before: State, kept: Tensor
    ) -> State:
        """See `Cell`; keeps both gates, the new value and its hidden product."""
        product = weight @ full if bias is None else torch.addmm(bias.unsqueeze(1), weight, full)
        units = len(before.hidden)
        torch.add(given[: 2 * units], product[: 2 * units], out=kept[: 2 * units]).sigmoid_()
        reset, update, new, inner = kept.chunk(4)
        inner.copy_(product[2 * units :])
        torch.addcmul(given[2 * units :], reset, inner, out=new).tanh_()
        hidden = torch.addcmul(new, update, before.hidden - new)
        return State(hidden, hidden)

    def backward(
        self, sent: Gradient, after: State, before: State, kept: Tensor, for_products: Products
    ) -> tuple[Tensor | None, Tensor | None]:
        """See `Cell`."""
        reset, update, new, inner = kept.chunk(4)
        to_reset, to_update, to_new = for_products.by_input.chunk(3)
        hidden = sent.hidden
        direct = hidden * update
        _tanh_backward(hidden - direct, new, grad_input=to_new)
        _sigmoid_backward(hidden * (before.hidden - new), update, grad_input=to_update)
        _sigmoid_backward(to_new * inner, reset, grad_input=to_reset)
        both = 2 * len(hidden)
        for_products.by_hidden[:both] = for_products.by_input[:both]
        torch.mul(to_new, reset, out=for_products.by_hidden[both:])
        return direct, None


@dataclass(frozen=True, slots=True)
class Plain:
    """tanh or relu of the sum of both products."""

    relu: bool
    gates: int = 1
    kept: int = 1
    own_bias: bool = False

    def forward(
        self, given: Tensor, weight: Tensor, bias: Tensor | None, full: Tensor, before: State, kept: Tensor
    ) -> State:
        """See `Cell`."""
        torch.addmm(given, weight, full, out=kept)
        hidden = (kept.relu_() if self.relu else kept.tanh_()).clone()
        return State(hidden, hidden)

    def backward(
        self, sent: Gradient, after: State, before: State, kept: Tensor, for_products: Products
    ) -> tuple[Tensor | None, Tensor | None]:
        """See `Cell`."""
        if self.relu:
            _relu_backward(sent.hidden, kept, 0, grad_input=for_products.by_input)
        else:
            _tanh_backward(sent.hidden, kept, grad_input=for_products.by_input)
        return None, None


CELLS: dict[str, Callable[[], Cell]] = {
    "lstm": Lstm,
    "gru": Gru,
    "rnn_tanh": lambda: Plain(relu=False),
    "rnn_relu": lambda: Plain(relu=True),
}
