"""The settings of `syncline plan`: from its flags and from a TOML file with the same keys."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.errors import ConfigError, unknown_name
from syncline.planning.pins import Pin
from syncline.planning.strict import read_strictly
from syncline.planning.table_builder import ADAM_STATE_FACTOR

COSTS = ("syncline", "pase")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTable:
    """The table `[input]`: what the model takes, where it does not say so itself."""

    kind: str
    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What to plan."""

    model: str
    cluster: str = "local"
    batch: int | None = None
    """The global batch; by default 64, or one sample for each device if that is more."""
    memory: str | None = None
    cost: str = "syncline"
    seed: int = 0
    proposals: int = 3000
    """Of the random search that the plan is compared with."""
    optimizer_state_factor: float = ADAM_STATE_FACTOR
    """Bytes of optimizer state for each byte of a parameter: 2 for Adam, 1 for momentum, 0 for plain SGD."""
    pase_ratio: float = 5000.0
    """For the cost `pase`: the FLOPs that a device does while it sends one word."""
    pin: tuple[Pin, ...] = ()
    input: InputTable | None = None

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise ConfigError(unknown_name("cost model", self.cost, COSTS))
        if self.batch is not None and self.batch < 1:
            raise ConfigError(f"The batch is {self.batch}; it must be at least 1.")
        if self.proposals < 0 or self.optimizer_state_factor < 0:
            raise ConfigError("proposals and optimizer_state_factor must not be negative.")


def resolve(flags: dict[str, Any], path: Path | None) -> PlanConfig:
    """Settings from the defaults, the file and the flags, each winning over what is before it.

    Raises:
        ConfigError: Names the file, the key and what is allowed.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    from_file = _read(path) if path is not None else {}
    if path is not None:
        _build({"model": "any"} | from_file, str(path))
    settings = from_file | given
    if "model" not in settings:
        raise ConfigError(
            "Which model? Name one, such as: syncline plan gpt2-small\nSee: syncline plan --help"
        )
    return _build(settings, "the command line")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {path}: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _build(settings: dict[str, Any], source: str) -> PlanConfig:
    try:
        return read_strictly(PlanConfig, settings)
    except ValueError as error:
        raise ConfigError(f"Wrong settings in {source}:\n{error}") from None
