"""The training loop of a run that goes on when a node is lost, and takes in one that comes back."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

from syncline.cluster.process_group import is_lost_peer
from syncline.errors import NodeLostError
from syncline.strategies.averaging.step import AveragingStep
from syncline.training.loop import Loop, LoopParts
from syncline.training.own_losses import OwnLosses
from syncline.training.signals import Outcome, Signals
from syncline.training.survival import Survival

MOST_ATTEMPTS = 5
"""Nodes that may be lost one after another while the rest find each other."""


class SurvivingLoop(Loop):
    """Trains among the nodes that live."""

    def __init__(self, parts: LoopParts, survival: Survival, *, done: int) -> None:
        super().__init__(parts, done=done)
        if not isinstance(parts.step, AveragingStep):
            raise TypeError("only steps that average over nodes can go on with fewer")
        self._step = parts.step
        self._survival = survival
        self._wants_regroup = False
        # A rank may have heard of a step that another has not, when it is that far ahead.
        self._own = OwnLosses(2 * (parts.step.lead + 2))

    def run(self) -> None:
        """Train, report, evaluate and save, whoever is lost."""
        while not self._is_over:
            if self._loses_node(self._go_on):
                self._regroup()

    def meet(self, *, is_new: bool) -> None:
        """Agree with the other members of a new group on where the run stands."""
        parts = self._parts
        self._step.meet(is_new=is_new)
        self.done = self._step.done
        while parts.schedule.last_epoch < self.done:
            parts.schedule.step()
        self._signals = Signals(parts.device, lead=self._step.lead)
        self._catch_up()
        self._wants_regroup = False
        # What was being saved when a node was lost is not there.
        self._saved = -1

    def _go_on(self) -> None:
        if self.stopped or self.done >= self._config.steps:
            self._survival.rest()
        super()._go_on()
        if self._wants_regroup and not self._is_over:
            self._settle()
            self._regroup()

    def _has_newcomers(self) -> bool:
        return self._survival.has_newcomers

    def _train_on_batch(self, number: int) -> Tensor:
        loss = super()._train_on_batch(number)
        self._own.note(number, loss)
        return loss

    def _evaluate(self) -> Tensor | None:
        loss = super()._evaluate()
        if loss is not None:
            self._own.note_evaluation(self.done, loss)
        return loss

    def _catch_up(self) -> None:
        """Agree among the members of now on the steps that the first rank has not heard of."""
        for outcome in self._own.agree(self._posted):
            # Whoever has heard of a step before has nothing to add, unless the run must end.
            if outcome.step in self._posted or not outcome.is_finite:
                self._take(outcome)
        self._posted.clear()

    def _take(self, outcome: Outcome) -> None:
        super()._take(outcome)
        self._wants_regroup |= outcome.regroup

    def _loses_node(self, act: Callable[[], None]) -> bool:
        """Do something; says whether a node was lost meanwhile, here and to all others.

        Nothing of the error is kept: its frames hold what must be gone before connections close.
        """
        try:
            act()
        except RuntimeError as error:
            if not is_lost_peer(error):
                raise
        else:
            return False
        self._survival.miss()
        return True

    def _regroup(self) -> None:
        """Go on among those who live now; another node may be lost while they find each other."""
        before = self._survival.nodes
        for _ in range(MOST_ATTEMPTS):
            if not self._loses_node(self._regroup_once):
                if self._parts.view is not None:
                    told = _tell_change(before, self._survival.nodes, self.done)
                    self._parts.view.tell_change(told, ranks=dist.get_world_size())
                return
        raise NodeLostError(f"Nodes were lost {MOST_ATTEMPTS} times while the rest tried to find each other.")

    def _regroup_once(self) -> None:
        # Signals that are under way hold the group that is to be left.
        self._signals = Signals(self._parts.device)
        self._step.release()
        self._parts.checkpoints.abandon()
        self._survival.regroup()
        self._step.regroup()
        self._parts.checkpoints.reopen()
        self.meet(is_new=False)


def _tell_change(before: frozenset[int], now: frozenset[int], done: int) -> str:
    """Who is lost or has come, and who goes on."""
    changes = [f"node {node} was lost" for node in sorted(before - now)]
    changes += [f"node {node} has joined" for node in sorted(now - before)]
    what = ", ".join(changes or ["a node was lost and has come back"])
    others = f"{len(now)} node{'s go' if len(now) > 1 else ' goes'} on"
    return f"{what[0].upper()}{what[1:]}: {others} after step {done}."
