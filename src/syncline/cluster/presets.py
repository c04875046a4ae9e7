"""From what a user writes for a cluster to the cluster: a file, a preset, or `NxM`."""

from __future__ import annotations

import re
from pathlib import Path

from syncline.cluster.cluster_file import load_cluster
from syncline.cluster.datasheets import PRESETS
from syncline.cluster.emulation import parse_emulation
from syncline.cluster.machine import devices_here, emulated_machines, machines_like_this
from syncline.cluster.topology import Cluster
from syncline.errors import ClusterError, unknown_name

LOCAL = "local"
"""The preset for this machine as it is."""

_SHORT_FORM = re.compile(r"(\d+)x(\d+)")
_EMULATED = re.compile(r"\d+x\d+@.*")


def preset_names() -> tuple[str, ...]:
    """Every name that `cluster_from` knows."""
    return (LOCAL, *PRESETS)


def is_machines_like_this(text: str) -> bool:
    """Whether a text means nodes of this machine's kind: `local`, `local:2` or `2x4`."""
    return _SHORT_FORM.fullmatch(text) is not None or text.partition(":")[0] == LOCAL


def is_emulated(text: str) -> bool:
    """Whether a text means nodes that are emulated on this machine: `2x2@200mbit`."""
    return _EMULATED.fullmatch(text) is not None


def cluster_from(text: str) -> Cluster:
    """The cluster that a text means.

    Args:
        text: The path of a `cluster.toml`; `2x4`, which is 2 nodes like this machine with 4 devices each;
            `2x2@200mbit`, nodes emulated on this machine; a preset such as `a100-dgx` (one node) or
            `a100-dgx:4` (4 nodes).

    Raises:
        ClusterError: There is no such file or preset, or the file is wrong.
    """
    short = _SHORT_FORM.fullmatch(text)
    if short is not None:
        nodes, per_node = (_count(part, text) for part in short.groups())
        return machines_like_this(text, nodes=nodes, per_node=per_node)
    if is_emulated(text):
        return emulated_machines(text, parse_emulation(text))
    name, colon, nodes_text = text.partition(":")
    if name in preset_names():
        nodes = _count(nodes_text, text) if colon else 1
        if name == LOCAL:
            return machines_like_this(text, nodes=nodes, per_node=devices_here())
        return PRESETS[name].cluster(text, nodes)
    path = Path(text).expanduser()
    if path.is_file():
        return load_cluster(path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        raise ClusterError(
            f"There is no cluster file {text}. Measure one with: syncline probe -o {text}\n"
            f"Or name a preset: {', '.join(preset_names())}."
        )
    raise ClusterError(
        unknown_name("cluster preset", name, preset_names())
        + "\nAdd :N for N nodes, or give a cluster.toml, or NxM for N nodes like this one with M devices."
    )


def _count(digits: str, text: str) -> int:
    if not digits.isdecimal() or int(digits) < 1:
        raise ClusterError(
            f"'{digits}' in the cluster '{text}' is no number of nodes or devices. Write for example "
            "a100-dgx:4 or 2x4."
        )
    return int(digits)
