"""Reading a suite from TOML, and narrowing it by flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from syncline.benchmark.suite import Suite
from syncline.errors import ConfigError, unknown_name
from syncline.strategies.registry import parse_strategy
from syncline.training.config_file import read_as, read_settings, to_toml


def read_suite(path: Path) -> Suite:
    """A checked suite; `name` is the file's when it has none."""
    settings = read_settings(path)
    return read_as(Suite, {"name": path.stem} | settings, str(path))


def narrow(suite: Suite, *, only: Sequence[str] = (), ranks: int | None = None) -> Suite:
    """The suite with some of its strategies, or another number of ranks."""
    changes: dict[str, Any] = {}
    if only:
        kept = [one for one in suite.strategies if one in only or parse_strategy(one).name in only]
        known = [*suite.strategies, *(parse_strategy(one).name for one in suite.strategies)]
        for name in only:
            if name not in known:
                raise ConfigError(f"--only: {unknown_name('strategy of the suite', name, known)}")
        changes["strategies"] = tuple(kept)
    if ranks is not None:
        changes["world_sizes"] = (ranks,)
    return dataclasses.replace(suite, **changes)


def with_settings(suite: Suite, path: Path) -> Suite:
    """The suite with settings of its runs from a file, which win over its own."""
    settings = read_settings(path)
    try:
        return dataclasses.replace(suite, train=suite.train | settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def suite_text(suite: Suite) -> str:
    """The suite as TOML, all of it."""
    values = dataclasses.asdict(suite)
    tables = {f"train.{key}": value for key, value in suite.train.items() if isinstance(value, dict)}
    values["train"] = {key: value for key, value in suite.train.items() if not isinstance(value, dict)}
    return to_toml(values | tables)
