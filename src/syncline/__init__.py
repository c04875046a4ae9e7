"""Find how to train a model fastest on a cluster, train it that way, and see what each way costs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncline.strategies.parallelize import parallelize as parallelize
    from syncline.workloads.planning import plan as plan
    from syncline.workloads.workload import InputSpec as InputSpec
    from syncline.workloads.workload import Workload as Workload

__version__ = "0.1.0"
__all__ = ["InputSpec", "Workload", "parallelize", "plan"]

_HOMES = {
    "InputSpec": "syncline.workloads.workload",
    "Workload": "syncline.workloads.workload",
    "parallelize": "syncline.strategies.parallelize",
    "plan": "syncline.workloads.planning",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import syncline` alone does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'syncline' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
