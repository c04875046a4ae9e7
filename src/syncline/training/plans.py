"""The plan of a run: `plan.json` in its folder says how every op was split."""

from __future__ import annotations

from pathlib import Path

from syncline.errors import ConfigError
from syncline.planning.plan import Plan
from syncline.planning.plan_file import load_plan, save_plan
from syncline.strategies.planned.checks import check_ranks, rank_count
from syncline.strategies.registry import parse_strategy
from syncline.training.config import TrainConfig

PLAN_FILE = "plan.json"
_STRATEGY = "planned"


def check_given_plan(config: TrainConfig) -> None:
    """Refuse a plan that is not readable, not for as many ranks, or beside a strategy that needs none."""
    if config.plan is None:
        return
    name = parse_strategy(config.strategy).name
    if name != _STRATEGY:
        raise ConfigError(
            f"The strategy '{name}' does not train by a plan, but {config.plan} is given.\n"
            f"Use --strategy {_STRATEGY}, or leave --plan out."
        )
    check_ranks(load_plan(Path(config.plan)), config.ranks or 1)


def keep_given_plan(config: TrainConfig, folder: Path) -> None:
    """Put the plan that was given into the run's folder, where all ranks find it."""
    if config.plan is not None:
        save_plan(load_plan(Path(config.plan)), folder / PLAN_FILE)


def plan_of_run(config: TrainConfig, folder: Path, world_size: int) -> Plan | None:
    """The plan in the run's folder; None where there is none for as many ranks: one is searched for."""
    path = folder / PLAN_FILE
    if parse_strategy(config.strategy).name != _STRATEGY or not path.exists():
        return None
    plan = load_plan(path)
    return plan if rank_count(plan) == world_size else None


def keep_plan(plan: Plan | None, folder: Path) -> None:
    """Write the plan that a step trains by, if it has one."""
    if plan is not None:
        save_plan(plan, folder / PLAN_FILE)
