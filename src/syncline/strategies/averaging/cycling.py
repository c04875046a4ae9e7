"""DASO's step: blocking while it warms up and cools down, and in between exchanges that nobody waits for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

from syncline.strategies.averaging.buckets import Buckets, float_buffers
from syncline.strategies.averaging.gradients import GradientAverage
from syncline.strategies.averaging.inside import average_inside, optimizer_floats
from syncline.strategies.averaging.merging import ByDelta, ByPaper
from syncline.strategies.averaging.node_rate import NodeRate
from syncline.strategies.averaging.node_work import NodeWork
from syncline.strategies.averaging.review import Review
from syncline.strategies.averaging.schedule import PIECES, CycleSchedule, Phase, Phases
from syncline.strategies.averaging.step import AveragingStep
from syncline.strategies.averaging.weights import WeightExchange
from syncline.strategies.averaging.wire import shortening
from syncline.workloads.workload import Batch


class CyclingStep(AveragingStep):
    """One rank's side of DASO.

    Args:
        work: The job, and its nodes.
        phases: When to block and when to cycle.
        schedule: How often nodes exchange while cycling.
        merge: How a node takes over an average: the published rule or the one that keeps all steps.
        node_rate: The factor of the learning rate while nodes train by themselves; None for what suits
            the optimizer.
        review_every: After how many steps the loss is looked at.
    """

    def __init__(
        self,
        work: NodeWork,
        *,
        phases: Phases,
        schedule: CycleSchedule,
        merge: Literal["paper", "delta"],
        node_rate: float | None,
        review_every: int,
    ) -> None:
        super().__init__(work)
        self.schedule = schedule
        # A run that is resumed with other rates shall have these.
        self._asked = {"schedule": schedule.state(), "merge": merge, "node_rate": node_rate}
        self._merge: Literal["paper", "delta"] = merge
        self._rate = NodeRate(node_rate, clips=work.job.options.clip_norm is not None)
        self._phases = phases
        self._review_every = review_every
        self._open()

    def _open(self) -> None:
        """The exchanges among the nodes of now."""
        work = self._work
        rule = ByDelta() if self._merge == "delta" else ByPaper(work.groups.count)
        self.weights = WeightExchange(work, rule, cut=self.schedule.auto)
        self._review = Review(self._review_every, work.job.device)
        self._gradients = GradientAverage(
            work.model, work.groups, work.wire, every_rank=work.inside.is_sharded
        )
        self._is_noted = False
        self._apart = False

    @property
    def exposed_s(self) -> float:
        """Seconds in which this rank has stood still for other nodes."""
        return self.weights.exchange.times.exposed_s + self._gradients.exchange.times.exposed_s

    def __call__(self, batch: Batch) -> Tensor:
        """Train on this rank's rows; their mean loss, detached."""
        loss = super().__call__(batch)
        self._review.tick(self.exposed_s)
        is_cycling = self._phases.of(self.done) is Phase.CYCLING
        # All have waited for each other just now: the first rates can follow at once.
        is_first = self.schedule.auto and self.done == self._phases.warm_up
        if is_cycling or is_first:
            self._review.add(loss)
        if is_first or self._review.is_due:
            self._review.post(self.done + (1 if is_first else 1 + self.lead))
        return loss

    def _update(self) -> None:
        number = self.done + 1
        if self._phases.of(number) is Phase.BLOCKING:
            self._update_together(number)
            return
        self._apart = self._apart or self._works_apart()
        with self._rate.applied(self.optimizer):
            super()._update()
        for reviewed in self._review.take(number):
            if self._phases.of(number - 1) is Phase.BLOCKING and reviewed.exchange_steps is not None:
                self.schedule.gradient_steps = reviewed.exchange_steps * shortening(self._work.wire)
            self.schedule.review(reviewed.loss, reviewed.exchange_steps, reviewed.handling_steps)
            self._rate.measure(self.optimizer, self._groups, self._device)
        if self._phases.ends_cycling(number):
            self.weights.merge(number)
            self.make_nodes_equal()
            self.weights.rebase()
            self.schedule.place = 0
            self._apart = False
        else:
            self._cycle(number)

    def _update_together(self, number: int) -> None:
        """A blocking step."""
        before_s = self.exposed_s
        self._gradients.run()
        self._review.note_exchange(0.0, self.exposed_s - before_s)
        super()._update()
        if number == self._phases.warm_up:
            self.weights.rebase()

    def _cycle(self, number: int) -> None:
        """Merge what is due, and start what is due."""
        schedule, weights = self.schedule, self.weights
        is_due = weights.under_way is not None and number >= weights.under_way.due
        is_spare = self._is_spare(number)
        self._watch(number, is_needed=is_due or is_spare)
        if is_spare:
            with self._worked_on_exchanges(halves=0):
                weights.share()
        if is_due and self._merge == "paper" and schedule.wanted is None and schedule.starts_now():
            self._join_node()
            with self._worked_on_exchanges(halves=2):
                weights.start_then_merge(number, schedule.rates.wait, schedule.rates.pieces)
            self._is_noted = False
        else:
            if is_due:
                with self._worked_on_exchanges():
                    weights.merge(number)
            if weights.under_way is None:
                schedule.settle()
            if schedule.syncs_node_now() or schedule.rates.local_skip == 1:
                self._join_node()
            if weights.under_way is None and schedule.starts_now():
                with self._worked_on_exchanges():
                    weights.start(number, schedule.rates.wait, schedule.rates.pieces)
                self._is_noted = False
        schedule.advance()

    def _is_spare(self, number: int) -> bool:
        """Whether what is under way has probably arrived a step before it is due; the node is told then."""
        under_way = self.weights.under_way
        if under_way is None or number != under_way.due - 1:
            return False
        return self.schedule.arrives_within(number - under_way.started, under_way.pieces)

    def _watch(self, number: int, *, is_needed: bool) -> None:
        """Note when what is under way has arrived; on ranks that speak for their node."""
        under_way = self.weights.under_way
        if under_way is None or not under_way.pending.works or self._is_noted:
            return
        waited, share = number - under_way.started, under_way.pieces / PIECES
        if under_way.pending.has_arrived:
            self._review.note_exchange(waited, share=share)
            self._is_noted = True
        elif is_needed:
            before_s = self.exposed_s
            # The node is not told yet: its other ranks are not here.
            self.weights.exchange.wait(under_way.pending)
            self._review.note_exchange(waited, self.exposed_s - before_s, share=share)
            self._is_noted = True

    @contextmanager
    def _worked_on_exchanges(self, *, halves: int = 1) -> Iterator[None]:
        """Note for how long this node sends or merges, or both, or tells its ranks, without standing still.

        Where one rank works on it for all, the others wait for that one in their next step.
        """
        began_s, before_s = time.perf_counter(), self.exposed_s
        share = halves * self.schedule.rates.pieces / PIECES
        yield
        worked_s = time.perf_counter() - began_s - (self.exposed_s - before_s)
        ranks = 1 if self._work.inside.is_sharded else self._groups.size
        self._review.note_handling(ranks * worked_s, share=share)

    def _join_node(self) -> None:
        """Average weights and optimizer state of ranks that worked apart, so that nobody's work is lost."""
        if self._apart:
            floats = [*self._weights(), *optimizer_floats(self.optimizer), *float_buffers(self.model)]
            average_inside(Buckets(floats), self._groups)
            self._apart = False

    def _works_apart(self) -> bool:
        cycles = self._phases.of(self.done + 1) is Phase.CYCLING
        return cycles and self.schedule.rates.local_skip > 1 and self._groups.size > 1

    def _is_apart(self) -> bool:
        return self._apart

    def _schedule_state(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule.state(),
            "weights": self.weights.state(),
            "review": self._review.state(),
            "gradients": self._gradients.state(),
            "apart": self._apart,
            "rate": self._rate.factor,
        }

    def _tensors(self) -> dict[str, Tensor]:
        return self.weights.tensors() | self._gradients.tensors()

    def _rank_tensors(self) -> dict[str, Tensor]:
        return {"reviewed": self._review.rank_tensor()} | self.weights.known()

    def _apply_schedule(self, told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.schedule = CycleSchedule.of_state(told["schedule"])
        self.weights.apply(told["weights"], tensors)
        self._review.apply(told["review"], tensors["reviewed"])
        self._gradients.apply(told["gradients"], tensors)
        self._apart = told["apart"]
        self._rate.factor = told["rate"]

    def _drop(self) -> None:
        # They know the groups that are left; `_open` makes new ones.
        for name in ("weights", "_gradients"):
            self.__dict__.pop(name, None)
        self._review.drop()

    def _notes(self) -> dict[str, Any]:
        return {"schedule": self.schedule.state()}

    def _reopen(self, told: dict[str, Any]) -> None:
        self.schedule = CycleSchedule.of_state(told["schedule"])
        self.schedule.place = 0
        self._open()
        # Nodes have come apart, and go on so: what the first one has is what all know from here on.
        known = self.weights.read()
        for values in known:
            dist.broadcast(values, src=0)
        self.weights.rebase(known)
        self._rate.measure(self.optimizer, self._groups, self._device)

    def _restart(self) -> None:
        self.make_nodes_equal()
        self._open()

    def _layout(self) -> dict[str, Any]:
        return super()._layout() | {"asked": self._asked}
