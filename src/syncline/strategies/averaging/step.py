"""What the steps of all averaging strategies share: nodes that train as one, and a state of each node."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from syncline.strategies.averaging.buckets import Buckets, float_buffers, trained_parameters
from syncline.strategies.averaging.exchange import Exchange
from syncline.strategies.averaging.inside import Inside, average_inside, optimizer_floats
from syncline.strategies.averaging.naming import AVERAGING, node_scope, rank_scope
from syncline.strategies.averaging.node_work import NodeWork
from syncline.strategies.averaging.sharing import share_state
from syncline.strategies.averaging.wire import Wire
from syncline.strategies.gradient_step import GradientStep, no_gradient_sync
from syncline.strategies.sharded import reshard
from syncline.strategies.state import apply_state
from syncline.workloads.workload import Batch

_SCHEDULE = f"{AVERAGING}.schedule"
_FORM = 4
"""Of what a checkpoint holds of a schedule and of what is under way."""


class AveragingStep(GradientStep):
    """A step of a node: its ranks work as one, and `_update` says what it exchanges with others."""

    # Nodes that exchange seldom must not wait for each other's loss behind an exchange.
    lead: int = 7

    def __init__(self, work: NodeWork) -> None:
        super().__init__(
            work.job,
            model=work.model,
            forward=work.inside.forward,
            gradient_sync=self._sync_inside,
            check_gradients=work.inside.check_gradients,
        )
        self.done = 0
        self._work = work
        self._name_scopes()

    def __call__(self, batch: Batch) -> Tensor:
        """Train on this rank's rows; their mean loss, detached."""
        loss = super().__call__(batch)
        if self._work.inside.is_sharded:
            # DDP shares them; FSDP2 leaves each rank with those of its own rows.
            average_inside(Buckets(float_buffers(self.model)), self._groups)
        self.done += 1
        return loss

    def evaluate(self, batch: Batch) -> Tensor:
        """This rank's mean loss on its rows with its node's weights, without training."""
        loss = super().evaluate(batch)
        reshard(self.model)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The node's weights and optimizer state, and the place in the schedule."""
        is_own = self._is_apart() and dist.get_rank() != self._groups.members[0]
        scope = self._rank_scope if is_own else self._node_scope
        state = {_scoped(name, scope): value for name, value in super().state_dict().items()}
        told = {"done": self.done, "layout": self._layout()} | self._schedule_state()
        state[_SCHEDULE] = json.dumps(told)
        own = self._rank_scope if self._work.inside.is_sharded else self._node_scope
        state |= {f"{own}{AVERAGING}.{name}": value for name, value in self._tensors().items()}
        state |= {
            f"{self._rank_scope}{AVERAGING}.{name}": value for name, value in self._rank_tensors().items()
        }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state; without a place in a schedule, it is the start of one."""
        bare = {_bare(name, self.scopes): value for name, value in state.items()}
        apply_state(self.model, self.optimizer, bare)
        told = json.loads(bare[_SCHEDULE]) if _SCHEDULE in bare else None
        if told is None or told["layout"] != self._layout():
            # What was under way between other nodes, or in another form, has no meaning here.
            self.done = 0 if told is None else told["done"]
            self._restart()
            return
        self.done = told["done"]
        prefix = f"{AVERAGING}."
        tensors = {
            name.removeprefix(prefix): value for name, value in bare.items() if name.startswith(prefix)
        }
        self._apply_schedule(told, tensors)

    def make_nodes_equal(self) -> None:
        """Give all nodes the exact mean of weights, buffers and optimizer state; all ranks must call this."""
        buffers = float_buffers(self.model)
        buckets = Buckets([*self._weights(), *optimizer_floats(self.optimizer), *buffers])
        average_inside(Buckets(buffers) if self._work.inside.is_sharded else buckets, self._groups)
        exchange = Exchange(self._groups, every_rank=self._work.inside.is_sharded)
        wires = [Wire("fp32", self._groups.count) for _ in range(len(buckets))]
        averages = exchange.average(wires, buckets.read())
        buckets.write(average.mean for average in averages)

    def release(self) -> None:
        """Let go of everything that belongs to the process group, before it is left.

        A connection closes when the last that uses it is gone, and peers that wait for this rank learn of it
        only so. DDP, which keeps itself alive in circles, also leaves hooks on parameters until it is gone.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self._drop()
        inside = Inside(forward=self.model, gradient_sync=no_gradient_sync)
        self._work, self._forward = replace(self._work, inside=inside), self.model
        gc.collect()
        self._groups.close()

    def regroup(self) -> None:
        """Work with those who are members of the process group now; every rank of it must call this."""
        self._work = self._work.regrouped()
        self._forward = self._work.inside.forward
        self._name_scopes()

    def meet(self, *, is_new: bool) -> None:
        """Give newcomers the first rank's state, and all ranks of a node one state; after `regroup`."""
        share_state(self.model, self.optimizer, self._groups, is_new=is_new)
        told: list[Any] = [{"done": self.done} | self._notes()]
        dist.broadcast_object_list(told, src=0)
        self.done = told[0]["done"]
        self._reopen(told[0])

    def _name_scopes(self) -> None:
        self._groups = self._work.groups
        node, rank = self._groups.node, dist.get_rank()
        self._rank_scope = rank_scope(node, rank)
        self._node_scope = node_scope(node)
        self.scopes = tuple(dict.fromkeys((self._rank_scope, self._node_scope, "")))

    def _layout(self) -> dict[str, Any]:
        """What must be the same for a schedule to go on."""
        return {
            "form": _FORM,
            "kind": type(self).__name__,
            "sizes": [len(members) for members in self._groups.nodes.ranks],
            "wire": self._work.wire,
            "sharded": self._work.inside.is_sharded,
        }

    def _weights(self) -> list[nn.Parameter]:
        return trained_parameters(self.model)

    def _sync_inside(self, last: bool) -> AbstractContextManager[Any]:
        return self._work.inside.gradient_sync(last and not self._works_apart())

    def _works_apart(self) -> bool:
        """Whether the ranks of a node leave their gradients apart in the step to come."""
        return False

    def _is_apart(self) -> bool:
        """Whether the ranks of a node have weights of their own just now."""
        return False

    def _schedule_state(self) -> dict[str, Any]:
        """What a resumed run must know, the same on all ranks, as JSON can hold it."""
        return {}

    def _tensors(self) -> dict[str, Tensor]:
        """What a resumed run must know, the same on all ranks of a node."""
        return {}

    def _rank_tensors(self) -> dict[str, Tensor]:
        """What a resumed run must know of each rank."""
        return {}

    def _apply_schedule(self, told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what `_schedule_state` and the tensors gave."""

    def _drop(self) -> None:
        """Forget what is under way."""

    def _notes(self) -> dict[str, Any]:
        """What newcomers must know of the schedule."""
        return {}

    def _reopen(self, told: dict[str, Any]) -> None:
        """Go on with the first rank's schedule among new members, whose weights may differ."""
        self._restart()

    def _restart(self) -> None:
        """Begin anew from the weights that are there, which may differ between nodes."""


def _scoped(name: str, scope: str) -> str:
    return scope + name if name.startswith(("model.", "optimizer.")) else name


def _bare(name: str, scopes: Sequence[str]) -> str:
    return next((name.removeprefix(scope) for scope in scopes if scope and name.startswith(scope)), name)
