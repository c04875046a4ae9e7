"""The training loop of one rank: the same for every strategy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler

from syncline.cluster.memory import MemoryMeter
from syncline.cluster.process_group import is_lost_peer
from syncline.cluster.rank import Rank
from syncline.errors import NodeLostError, NonFiniteLossError
from syncline.strategies.averaging.step import AveragingStep
from syncline.strategies.gradient_step import exposed_s, signal_lag
from syncline.strategies.protocol import TrainStep
from syncline.training.batches import BatchSource, evaluation_batches
from syncline.training.buffers import share_buffers
from syncline.training.checkpoints import CheckpointInfo, Checkpoints, latest_checkpoint
from syncline.training.config import TrainConfig
from syncline.training.measurements import Measurements
from syncline.training.progress import ProgressView
from syncline.training.seeding import seed_everything
from syncline.training.signals import Outcome, Signals, any_rank, mean_over_ranks
from syncline.training.sinks import Metrics, Sink
from syncline.training.stop_flag import StopFlag
from syncline.training.survival import Survival
from syncline.workloads.workload import Samples

MOST_ATTEMPTS = 5
"""Nodes that may be lost one after another while the rest find each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """What the loop works with."""

    config: TrainConfig
    rank: Rank
    device: torch.device
    step: TrainStep
    schedule: LRScheduler
    batches: BatchSource
    evaluation: Samples | None
    checkpoints: Checkpoints
    measurements: Measurements
    sinks: Sequence[Sink]
    """Empty on all ranks but the first."""
    view: ProgressView | None
    stop: StopFlag
    meter: MemoryMeter
    """Of the steps; evaluation and checkpoints do not count."""
    survival: Survival | None = None
    """How the run goes on when a node is lost; None when it ends then."""


class Loop:
    """Trains from the step after `done` to the last, or until someone wants to stop."""

    def __init__(self, parts: LoopParts, *, done: int) -> None:
        self.done = done
        self.stopped = False
        self.measurements = parts.measurements
        self._parts = parts
        self._config = parts.config
        self._saved = done
        self._signals = Signals(parts.rank.world_size, parts.device, signal_lag(parts.step))
        self._posted: deque[Metrics] = deque()
        self._is_over = False
        self._wants_regroup = False

    def run(self) -> None:
        """Train, report, evaluate and save."""
        while not self._is_over:
            if self._loses_node(self._go_on):
                self._regroup()

    def _go_on(self) -> None:
        if self.done < self._config.steps and not self.stopped:
            self._advance()
        else:
            self._settle()
            self._save()
            self._is_over = True

    def _advance(self) -> None:
        self.train_once()
        wants_pause = self.stopped or self._wants_regroup
        is_due = self._is_due(self._config.evaluation.every) or self._is_due(self._config.checkpoint.every)
        if wants_pause or is_due:
            self._settle()
        if self._wants_regroup:
            self._regroup()

    def _loses_node(self, act: Callable[[], None]) -> bool:
        """Do something; says whether a node was lost meanwhile, where the run can go on so.

        Nothing of the error is kept: its frames hold what must be gone before connections close.
        """
        try:
            act()
        except RuntimeError as error:
            if self._parts.survival is None or not is_lost_peer(error):
                raise
            return True
        return False

    def _regroup(self) -> None:
        """Go on among those who live now; another node may be lost while they find each other."""
        for _ in range(MOST_ATTEMPTS):
            if not self._loses_node(self._regroup_once):
                return
        raise NodeLostError(f"Nodes were lost {MOST_ATTEMPTS} times while the rest tried to find each other.")

    def _regroup_once(self) -> None:
        parts = self._parts
        if parts.survival is None or not isinstance(parts.step, AveragingStep):
            raise TypeError("only runs that survive the loss of a node regroup")
        self._signals = Signals(1, parts.device)
        parts.step.release()
        parts.checkpoints.abandon()
        parts.survival.regroup()
        parts.step.regroup()
        parts.checkpoints.reopen()
        self.meet(is_new=False)

    def meet(self, *, is_new: bool) -> None:
        """Agree with the other members of a new group on where the run stands."""
        parts = self._parts
        if not isinstance(parts.step, AveragingStep):
            raise TypeError("only runs that survive the loss of a node meet again")
        parts.step.meet(is_new=is_new)
        self.done = parts.step.done
        while parts.schedule.last_epoch < self.done:
            parts.schedule.step()
        self._signals = Signals(dist.get_world_size(), parts.device, signal_lag(parts.step))
        self._posted.clear()
        self._wants_regroup = False
        # What was being saved when a node was lost is not there.
        self._saved = -1

    def train_once(self) -> None:
        """Train on the next global batch, and act on what the step before came to."""
        parts, number = self._parts, self.done + 1
        started = time.perf_counter()
        parts.meter.resume()
        seed_everything(self._config.seed, number, parts.rank.index)
        part = parts.step.rows(self._config.batch)
        batch = parts.batches.rows(number - 1, part)
        rate = parts.schedule.get_last_lr()[0]
        loss = parts.step(batch)
        parts.schedule.step()
        before = self._signals.read() if self._signals.is_full else None
        newcomers = parts.survival is not None and parts.survival.has_newcomers
        self._signals.post(number, loss, stop=parts.stop.is_set, regroup=newcomers)
        self._posted.append({"step": number, "lr": rate, "step_s": time.perf_counter() - started})
        self.done = number
        self.measurements.exposed_s = exposed_s(parts.step)
        if before is not None:
            self._take(before, self._posted.popleft())

    def _take(self, outcome: Outcome, metrics: Metrics, eval_loss: float | None = None) -> None:
        """Act on what a step came to: the same on every rank."""
        parts = self._parts
        if not outcome.is_finite:
            raise NonFiniteLossError(self._not_finite(f"The loss is {outcome.loss} at step {outcome.step}"))
        self.measurements.add_step(loss=outcome.loss, step_s=metrics["step_s"])
        self.stopped |= outcome.stop
        self._wants_regroup |= outcome.regroup
        line = {
            "step": outcome.step,
            "samples": outcome.step * self._config.batch,
            "loss": outcome.loss,
            "lr": metrics["lr"],
            "step_s": metrics["step_s"],
            "time_s": self.measurements.train_s,
        }
        if eval_loss is not None:
            line["eval_loss"] = eval_loss
        for sink in parts.sinks:
            sink.write(line)
        if parts.view is not None:
            speed = self._config.batch / metrics["step_s"]
            parts.view.show(step=outcome.step, loss=outcome.loss, samples_per_s=speed)

    def _settle(self) -> None:
        """Read the outcomes that are under way now, then evaluate and save what is due after the last."""
        while self._signals.under_way > 1 and (earlier := self._signals.read()) is not None:
            self._take(earlier, self._posted.popleft())
        outcome = self._signals.read()
        if outcome is None:
            return
        at_end = self.done == self._config.steps
        eval_loss = None
        if outcome.is_finite and (at_end or self._is_due(self._config.evaluation.every)):
            eval_loss = self._evaluate()
        self._take(outcome, self._posted.popleft(), eval_loss)
        if self._is_due(self._config.checkpoint.every) and not at_end:
            self._save()

    def _evaluate(self) -> float | None:
        parts = self._parts
        if parts.evaluation is None or not self._config.evaluation.batches:
            return None
        parts.meter.pause()
        share_buffers(parts.step)
        losses = [
            parts.step.evaluate(batch)
            for batch in evaluation_batches(
                parts.evaluation,
                self._config.batch,
                self._config.evaluation.batches,
                part=parts.step.rows(self._config.batch),
            )
        ]
        own = torch.stack(losses).double().mean().item()
        self.measurements.eval_loss = mean_over_ranks(own, parts.device)
        return self.measurements.eval_loss

    def _save(self) -> None:
        if self._saved == self.done:
            return
        parts, self._saved = self._parts, self.done
        parts.meter.pause()
        broken = not all(bool(p.isfinite().all()) for p in _local_parameters(parts.step.model))
        if any_rank(broken, parts.device):
            raise NonFiniteLossError(self._not_finite(f"Weights are not finite after step {self.done}"))
        share_buffers(parts.step)
        info = CheckpointInfo(
            step=self.done,
            samples=self.measurements.samples,
            train_s=self.measurements.train_s,
            model=self._config.model,
            strategy=self._config.strategy,
            world_size=parts.rank.world_size,
            data_state=parts.batches.state_dict(),
        )
        parts.checkpoints.save(parts.step.state_dict(), info)

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.done % every == 0

    def _not_finite(self, what: str) -> str:
        self._parts.checkpoints.wait()
        last = latest_checkpoint(self._parts.checkpoints.folder)
        kept = f"The last good checkpoint is {last}." if last else "No checkpoint was saved before."
        return (
            f"{what} of {self._config.steps}.\n{kept}\n"
            "Try a lower learning rate ([optimizer] lr), warm-up ([schedule] warmup_steps) or clip_norm "
            "in the file given with --config."
        )


def _local_parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """What this rank holds of the parameters."""
    return [
        p.to_local() if isinstance(p, torch.distributed.tensor.DTensor) else p for p in model.parameters()
    ]
