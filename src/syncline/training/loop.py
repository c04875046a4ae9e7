"""The training loop of one rank: the same for every strategy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LRScheduler

from syncline.cluster.memory import MemoryMeter
from syncline.cluster.rank import Rank
from syncline.errors import NonFiniteLossError
from syncline.strategies.protocol import TrainStep
from syncline.training.batches import BatchSource, evaluation_batches
from syncline.training.buffers import share_buffers
from syncline.training.checkpoint_info import CheckpointInfo, latest_checkpoint
from syncline.training.checkpoints import Checkpoints
from syncline.training.config import TrainConfig
from syncline.training.inspection.inspector import Inspector
from syncline.training.measurements import Measurements
from syncline.training.progress import ProgressView
from syncline.training.seeding import seed_everything
from syncline.training.signals import Outcome, Signals, any_rank
from syncline.training.sinks import Metrics, Sink
from syncline.training.stop_flag import StopFlag
from syncline.workloads.workload import Samples


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
    inspector: Inspector


class Loop:
    """Trains from the step after `done` to the last, or until someone wants to stop."""

    def __init__(self, parts: LoopParts, *, done: int) -> None:
        self.done = done
        self.stopped = False
        self.measurements = parts.measurements
        self._parts = parts
        self._config = parts.config
        self._saved = done
        self._signals = Signals(parts.device, weight=parts.step.loss_weight, lead=parts.step.lead)
        self._posted: dict[int, Metrics] = {}
        self._is_over = False

    def run(self) -> None:
        """Train, report, evaluate and save."""
        while not self._is_over:
            self._go_on()

    def _go_on(self) -> None:
        """Make a step and save when that is due, or end."""
        if self.done < self._config.steps and not self.stopped:
            self.train_once()
            if self._is_due(self._config.checkpoint.every) and self.done < self._config.steps:
                if not self._parts.step.is_apart:
                    self._settle()
                self._save()
        else:
            self._settle()
            self._save()
            self._is_over = True

    def train_once(self) -> None:
        """Train on the next global batch, evaluate if that is due, and act on what earlier steps came to."""
        parts, number = self._parts, self.done + 1
        if parts.inspector.disturbs(number):
            # What watching leaves in the process cannot be told from training afterwards.
            parts.meter.stop()
        with parts.inspector.around(number, parts.step):
            loss = self._train_on_batch(number)
        self.done = number
        is_last = number == self._config.steps
        due = is_last or self._is_due(self._config.evaluation.every)
        eval_loss = self._evaluate() if due else None
        self._signals.post(
            number, loss, stop=parts.stop.is_set, eval_loss=eval_loss, regroup=self._has_newcomers()
        )
        before_s = self._signals.waited_s
        for outcome in self._signals.read():
            self._take(outcome)
        # A rank that is ahead of the others stands still here, and that is part of what a step takes.
        self._posted[number]["step_s"] += self._signals.waited_s - before_s
        if parts.step.exposed_s is not None:
            self.measurements.exposed_s = parts.step.exposed_s + self._signals.waited_s

    def _train_on_batch(self, number: int) -> torch.Tensor:
        parts = self._parts
        started = time.perf_counter()
        parts.meter.resume()
        seed_everything(self._config.seed, number, parts.rank.index)
        part = parts.step.rows(self._config.batch)
        with parts.inspector.fetching():
            batch = parts.batches.rows(number - 1, part)
        rate = parts.schedule.get_last_lr()[0]
        loss = parts.step(batch)
        parts.schedule.step()
        self._posted[number] = {"lr": rate, "step_s": time.perf_counter() - started}
        return loss

    def _take(self, outcome: Outcome) -> None:
        """Act on what a step came to: the same on every rank."""
        parts = self._parts
        if not outcome.is_finite:
            raise NonFiniteLossError(self._not_finite(f"The loss is {outcome.loss} at step {outcome.step}"))
        metrics = self._posted.pop(outcome.step)
        disturbed = parts.inspector.disturbs(outcome.step)
        self.measurements.add_step(loss=outcome.loss, step_s=metrics["step_s"], disturbed=disturbed)
        self.stopped |= outcome.stop
        line = {
            "step": outcome.step,
            "samples": outcome.step * self._config.batch,
            "loss": outcome.loss,
            "lr": metrics["lr"],
            "step_s": metrics["step_s"],
            "time_s": self.measurements.train_s,
        }
        if disturbed:
            line["inspected"] = True
        if outcome.eval_loss is not None:
            line["eval_loss"] = self.measurements.eval_loss = outcome.eval_loss
        for sink in parts.sinks:
            sink.write(line)
        if parts.view is not None:
            speed = self._config.batch / metrics["step_s"]
            parts.view.show(step=outcome.step, loss=outcome.loss, samples_per_s=speed)

    def _settle(self) -> None:
        """Wait for all outcomes."""
        for outcome in self._signals.read(everything=True):
            self._take(outcome)

    def _evaluate(self) -> torch.Tensor | None:
        """This rank's mean loss on the evaluation split."""
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
        return torch.stack(losses).double().mean()

    def _save(self) -> None:
        if self._saved == self.done:
            return
        parts, self._saved = self._parts, self.done
        parts.meter.pause()
        broken = not all(bool(p.isfinite().all()) for p in _local_parameters(parts.step.model))
        # Ranks that are apart do not wait for each other's word: one that is broken ends the run for all.
        if broken if parts.step.is_apart else any_rank(broken, parts.device):
            raise NonFiniteLossError(self._not_finite(f"Weights are not finite after step {self.done}"))
        share_buffers(parts.step)
        info = CheckpointInfo(
            step=self.done,
            samples=self.done * self._config.batch,
            train_s=self.measurements.train_s + sum(one["step_s"] for one in self._posted.values()),
            model=self._config.model,
            strategy=self._config.strategy,
            world_size=parts.rank.world_size,
            data_state=parts.batches.state_dict(),
        )
        parts.checkpoints.save(parts.step.state_dict(), info)

    def _has_newcomers(self) -> bool:
        """Whether nodes want to join."""
        return False

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.done % every == 0

    def _not_finite(self, what: str) -> str:
        if not self._parts.step.is_apart:
            # Ranks that are apart might wait for each other for ever.
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
