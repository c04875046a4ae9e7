"""What to say where no plan fits a device."""

from __future__ import annotations

import math

from syncline.cluster.topology import Cluster
from syncline.planning.prediction import Memory
from syncline.planning.search import Candidate


def explain_infeasible(
    smallest: Candidate | None, limit: float, *, model: str, batch: int, cluster: Cluster
) -> str:
    """What binds, and the smallest change that would fit; `smallest` is the plan that needs least."""
    if smallest is None:
        return "No sharding satisfies all pins. Take one of them back."
    memory: Memory = smallest.prediction.memory
    kind = memory.largest.replace("_", " ")
    needed = memory.total
    lines = [
        f"'{model}' at batch {batch} does not fit on {cluster.name}: the smallest plan needs "
        f"{_size(needed)} a device, the limit is {_size(limit)}.",
        f"What binds is {kind}: {_size(getattr(memory, memory.largest))} of it.",
        f"The smallest change that fits: --memory {_size(needed, up=True).replace(' ', '')}",
    ]
    fixed = needed - memory.saved_activations
    if fixed < limit and memory.saved_activations:
        share = (limit - fixed) / memory.saved_activations
        # A batch that splits as evenly as this one: others may have to be repeated on several devices.
        even = math.gcd(batch, cluster.world_size)
        smaller = int(batch * share) // even * even
        if smaller >= 1:
            lines[-1] += f", or --batch {smaller}"
    lines[-1] += ", or more devices."
    return "\n".join(lines)


def _size(nbytes: float, *, up: bool = False) -> str:
    """Bytes for people, to three digits; rounded up on demand, so that what was counted fits."""
    unit, name = next(
        ((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")) if nbytes >= unit), (1.0, "B")
    )
    value = nbytes / unit
    digits = max(0, 2 - int(math.log10(max(value, 1.0))))
    if up:
        value = math.ceil(value * 10**digits) / 10**digits
    return f"{value:.{digits}f} {name}"
