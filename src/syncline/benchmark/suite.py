"""What is compared: models, strategies, world sizes, clusters and seeds, on one budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from syncline.cluster.emulation import parse_emulation
from syncline.errors import ConfigError
from syncline.strategies.registry import parse_strategy
from syncline.training.config import TrainConfig
from syncline.training.config_file import build_config
from syncline.training.inspection.window import Window
from syncline.training.measurements import WARM_UP_STEPS
from syncline.workloads.models.registry import is_builtin, parse_model
from syncline.workloads.own import find_function

LOCAL = "local"
LEAST_MEASURED = 4
"""Steps that must be left to measure, besides warm-up and inspection; inspection gives way to them."""
OWN_KEYS = (
    "model",
    "strategy",
    "ranks",
    "emulate",
    "plan",
    "batch",
    "steps",
    "seed",
    "target_loss",
    "inspect",
    "max_restarts",
    "tracking",
)
"""Settings of a run that the suite decides itself."""


def uncounted_steps(inspect: int) -> int:
    """Steps whose times do not count: warm-up, and those that the inspection of so many disturbs."""
    return WARM_UP_STEPS + (Window(first=1, timed=inspect).last if inspect else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long each cell trains: one of the three."""

    samples: int | None = None
    """So many samples."""
    steps: int | None = None
    """So many steps."""
    seconds: float | None = None
    """As many steps as are expected to fit, by a short run before."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("samples", "steps", "seconds")}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) != 1:
            told = ", ".join(given) or "none of them"
            raise ConfigError(f"budget has {told}; give one of samples, steps and seconds.")
        name, value = given.popitem()
        if value <= 0:
            raise ConfigError(f"budget.{name} is {value}; it must be above 0.")

    def steps_of(self, batch: int) -> int | None:
        """Steps with a global batch of this size; None when only time is given."""
        return self.samples // batch if self.samples is not None else self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What to run, and under which rules."""

    name: str
    models: tuple[str, ...]
    """Built-in models, or package.module:function."""
    strategies: tuple[str, ...]
    """Each as name:key=value,..."""
    budget: Budget
    schema: Literal[1] = 1
    """The version of this file's form."""
    world_sizes: tuple[int, ...] = (2,)
    """Ranks on this machine; emulated clusters say themselves how many they have."""
    clusters: tuple[str, ...] = (LOCAL,)
    """local, or emulated nodes such as 2x2@200mbit."""
    seeds: tuple[int, ...] = (0,)
    """Of weights and data order; every strategy is run with each."""
    scaling: Literal["strong", "weak"] = "strong"
    """Whether the batch is that of all ranks together, or of each rank."""
    batch: int = 16
    """The batch; see scaling."""
    target_loss: float | None = None
    """What to train to: the time, samples and cost until then are reported."""
    inspect: int = 4
    """Steps of each run whose time and memory are taken apart; 0 for none."""
    train: dict[str, Any] = field(default_factory=dict)
    """Other settings of the runs, as in the file for `syncline train --config`."""

    def __post_init__(self) -> None:
        for name in ("models", "strategies", "world_sizes", "clusters", "seeds"):
            values: Sequence[Any] = getattr(self, name)
            if not values:
                raise ConfigError(f"{name} is empty; name at least one.")
            twice = sorted({str(value) for value in values if values.count(value) > 1})
            if twice:
                raise ConfigError(f"{name} has {twice[0]} twice; each cell is run once for each seed.")
        if min(self.world_sizes) < 1 or self.batch < 1 or self.inspect < 0 or min(self.seeds) < 0:
            raise ConfigError(
                "world_sizes and batch must be at least 1, seeds and inspect at least 0: they are "
                f"{list(self.world_sizes)}, {self.batch}, {list(self.seeds)} and {self.inspect}."
            )
        self._check_names()
        self._check_train()
        self._check_steps()

    def _check_names(self) -> None:
        for text in self.strategies:
            parse_strategy(text)
        for text in self.models:
            if ":" not in text or is_builtin(text):
                parse_model(text)
            else:
                find_function(text)
        for text in self.clusters:
            if text != LOCAL:
                parse_emulation(text)

    def _check_train(self) -> None:
        taken = sorted(set(OWN_KEYS) & self.train.keys())
        if taken:
            raise ConfigError(
                f"[train] sets {', '.join(taken)}, which the suite itself decides.\n"
                "Use the suite's own keys: models, strategies, world_sizes, clusters, seeds, batch, budget."
            )
        self.base_config()

    def _check_steps(self) -> None:
        sizes = [size for cluster in self.clusters for size in self.world_sizes_on(cluster)]
        largest = self.batch * (max(sizes) if self.scaling == "weak" else 1)
        steps = self.budget.steps_of(largest)
        if steps is None:
            return
        uncounted = uncounted_steps(min(1, self.inspect))
        if steps < uncounted + LEAST_MEASURED:
            raise ConfigError(
                f"The budget is {steps} steps with a global batch of {largest}, but it must be at least "
                f"{uncounted + LEAST_MEASURED}: {uncounted} for warm-up and inspection, {LEAST_MEASURED} to "
                "measure.\nGive a larger budget, or a smaller batch."
            )
        Window.of(inspect=self.inspect, steps=steps)

    def world_sizes_on(self, cluster: str) -> tuple[int, ...]:
        """How many ranks cells have there; emulated clusters say it themselves."""
        return self.world_sizes if cluster == LOCAL else (parse_emulation(cluster).world_size,)

    def base_config(self) -> TrainConfig:
        """A run of the suite before it is known which cell it belongs to."""
        settings = {"evaluation": {"batches": 4}} | self.train | {"model": self.models[0]}
        return build_config(settings, "[train]")
