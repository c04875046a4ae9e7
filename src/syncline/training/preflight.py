"""What can be known of a model and its data before any rank is started."""

from __future__ import annotations

from dataclasses import replace

from syncline.cluster.memory import machine_memory_bytes
from syncline.errors import ModelError
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
    _check_weights_fit(config.model, ranks)
    settings = config.optimizer or default_optimizer(workload.input)
    return replace(config, data=workload.data_spec, optimizer=settings)


def _check_weights_fit(text: str, ranks: int) -> None:
    model = parse_model(text).build("meta")
    count = sum(parameter.numel() for parameter in model.parameters())
    weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
    available_bytes = machine_memory_bytes("MemAvailable")
    if available_bytes is not None and weights_bytes * ranks > available_bytes:
        raise ModelError(
            f"'{text}' has {count:,} parameters: {weights_bytes / 1e9:.1f} GB of weights for each of {ranks} "
            f"ranks on this machine, which has {available_bytes / 1e9:.1f} GB of memory free.\n"
            "Use fewer ranks, a smaller size (such as size=tiny), or a larger machine."
        )
