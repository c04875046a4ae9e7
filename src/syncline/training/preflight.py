"""What can be known of a model and its data before any rank is started."""

from __future__ import annotations

from dataclasses import replace

from syncline.cluster.memory import machine_memory_bytes
from syncline.cluster.rank import current_rank, launched_by_torchrun
from syncline.errors import ModelError
from syncline.strategies.protocol import defers_weights
from syncline.strategies.registry import parse_strategy
from syncline.training.config import TrainConfig
from syncline.training.schedule import default_optimizer
from syncline.workloads.load import load_workload
from syncline.workloads.models.registry import is_builtin, parse_model
from syncline.workloads.own import find_function


def resolve_workload(config: TrainConfig, ranks: int) -> TrainConfig:
    """The run with its data and optimizer named; refuses a model or data that cannot be trained.

    The user's own function is only looked up here: calling it may take as much memory as a rank has.
    """
    if ":" in config.model and not is_builtin(config.model):
        find_function(config.model)
        return config
    workload = load_workload(config.model, data=config.data, seed=config.seed, input=config.input)
    nodes = current_rank().nodes if launched_by_torchrun() else 1
    is_split = defers_weights(parse_strategy(config.strategy))
    _check_weights_fit(config.model, ranks, 1 / nodes if is_split else ranks / nodes)
    settings = config.optimizer or default_optimizer(workload.input)
    return replace(config, data=workload.data_spec, optimizer=settings)


def _check_weights_fit(text: str, ranks: int, copies: float) -> None:
    """Refuse a model of which this machine cannot hold as many copies, however they are split over ranks."""
    model = parse_model(text).build("meta")
    count = sum(parameter.numel() for parameter in model.parameters())
    weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
    available_bytes = machine_memory_bytes("MemAvailable")
    if available_bytes is not None and weights_bytes * copies > available_bytes:
        holders = f"each of {ranks} ranks" if copies > 1 else f"{ranks} ranks together"
        raise ModelError(
            f"'{text}' has {count:,} parameters: {weights_bytes / 1e9:.1f} GB of weights for {holders} "
            f"on this machine, which has {available_bytes / 1e9:.1f} GB of memory free.\n"
            "Use fewer ranks, a smaller size (such as size=tiny), or a larger machine."
        )
