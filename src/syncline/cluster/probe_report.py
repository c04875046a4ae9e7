"""What a probe found, as data that travels from the ranks to whoever started them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import cattrs

from syncline.cluster.fitting import LinkFit, LinkSample
from syncline.cluster.topology import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """What was measured on one level."""

    level: str
    fit: LinkFit
    samples: tuple[LinkSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """The measured cluster, and the measurements behind it."""

    cluster: Cluster
    matmul_flops_per_s: dict[int, float]
    """By rows of the matrices, in float32."""
    links: tuple[LinkReport, ...]
    probe_s: float

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return cattrs.unstructure(self)

    @classmethod
    def from_json(cls, text: str) -> ProbeReport:
        """The report whose `as_dict` was written as JSON."""
        return cattrs.structure(json.loads(text), cls)
