"""What a run is asked to do: read from flags and TOML, written into the run's folder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from syncline.errors import ConfigError
from syncline.strategies.protocol import StepOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, unless the user's own workload brings one."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    """The torch optimizer."""
    lr: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.01
    """Decay of the weights."""
    momentum: float = 0.9
    """For sgd."""
    betas: tuple[float, float] = (0.9, 0.95)
    """For adam and adamw."""

    def __post_init__(self) -> None:
        _at_least("optimizer.lr", self.lr, 0)
        _at_least("optimizer.weight_decay", self.weight_decay, 0)
        _at_least("optimizer.momentum", self.momentum, 0)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimizer.betas is {list(self.betas)}; each must be at least 0 and below 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate moves over the run."""

    shape: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up."""
    warmup_steps: int = 0
    """Steps of linear rise from 0."""
    floor: float = 0.0
    """Where linear and cosine end, as a fraction of the peak."""

    def __post_init__(self) -> None:
        _at_least("schedule.warmup_steps", self.warmup_steps, 0)
        _at_least("schedule.floor", self.floor, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When the run is saved, and how many saves are kept."""

    every: int = 0
    """Save after every so many steps; 0 saves at the end only."""
    keep: int = 2
    """The newest so many are kept."""

    def __post_init__(self) -> None:
        _at_least("checkpoint.every", self.every, 0)
        _at_least("checkpoint.keep", self.keep, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """When the model is evaluated, and on how much."""

    every: int = 0
    """Evaluate after every so many steps; 0 evaluates at the end only."""
    batches: int = 8
    """Global batches of the evaluation split to use; 0 skips evaluation."""

    def __post_init__(self) -> None:
        _at_least("evaluation.every", self.every, 0)
        _at_least("evaluation.batches", self.batches, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputConfig:
    """What the user's own model takes, where data needs a shape and the model does not tell it."""

    kind: Literal["features", "image", "tokens", "token-pairs"]
    """A float vector, a picture, a sequence of ids, or two of them."""
    shape: tuple[int, ...]
    """Shape of one sample without the batch dim."""
    classes: int
    """How many classes, or the size of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A run, resolved."""

    model: str
    """A built-in model, or package.module:function."""
    schema: Literal[1] = 1
    """The version of this file's form."""
    strategy: str = "data"
    """How to train: name:key=value,..."""
    ranks: int | None = None
    """How many ranks; by default one for each accelerator, or two on a CPU."""
    emulate: str | None = None
    """Nodes x ranks with slow links between, such as 2x2@200mbit."""
    plan: str | None = None
    """A plan.json to train by, with the strategy planned; by default a plan is searched for."""
    data: str | None = None
    """What to train on; by default what fits the model."""
    batch: int = 16
    """Global batch size, over all ranks."""
    steps: int = 100
    """How many steps."""
    seed: int = 0
    """Of weights, data order and randomness in training."""
    accumulate: int = 1
    """Micro-batches a step."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs under autocast."""
    clip_norm: float | None = None
    """Largest total norm of the gradients."""
    activation_checkpointing: bool = False
    """Recompute the blocks' activations in backward."""
    target_loss: float | None = None
    """Report when the training loss, averaged over ten steps, first falls to this."""
    inspect: int = 0
    """Steps in the middle of the run whose time and memory are taken apart; they do not count as measured."""
    max_restarts: int = 0
    """How often a failed run starts again from its last checkpoint."""
    tracking: tuple[Literal["tensorboard"], ...] = ()
    """Where metrics go besides metrics.jsonl."""
    optimizer: OptimizerConfig | None = None
    """The optimizer; by default adamw, and for images sgd."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The learning rate over time."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation."""
    input: InputConfig | None = None
    """What the user's own model takes."""

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "accumulate"):
            _at_least(name, getattr(self, name), 1)
        for name in ("seed", "inspect", "max_restarts"):
            _at_least(name, getattr(self, name), 0)
        if self.ranks is not None:
            _at_least("ranks", self.ranks, 1)
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ConfigError(f"clip_norm is {self.clip_norm}; it must be above 0.")

    @property
    def step_options(self) -> StepOptions:
        """The options that every strategy takes."""
        return StepOptions(
            accumulate=self.accumulate,
            precision=self.precision,
            clip_norm=self.clip_norm,
            activation_checkpointing=self.activation_checkpointing,
        )


def replace(config: TrainConfig, **changes: Any) -> TrainConfig:
    """The same run with some settings changed; None leaves a setting as it is."""
    return dataclasses.replace(
        config, **{name: value for name, value in changes.items() if value is not None}
    )


def _at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigError(f"{name} is {value}; it must be at least {least}.")
