"""What the launcher of an emulated node is told, and how it says how its ranks ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

EXIT_FAILED = 70
"""A rank failed; its file in the folder of the logs says how."""
EXIT_STOPPED = 71
"""A signal ended the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTask:
    """The ranks of one node."""

    entry: str
    argument: str
    logs: str
    nodes: int
    node: int
    ranks: int
    """On this node."""
    address: str
    """Of this node."""
    rendezvous: str
    """The address and port where nodes meet, on the first of them."""
    run_id: str
    restart: int
    stop_timeout_s: int
    parent: int
    """The process that starts the nodes."""
    alone: bool
    """Start these ranks without the other nodes' launchers, so that a node can be lost and come back."""
    python_path: list[str]
    """Its `sys.path`, where the entry can be found."""


def encode_task(task: NodeTask) -> bytes:
    """A task as `decode_task` reads it."""
    return json.dumps(asdict(task)).encode()


def decode_task(text: str) -> NodeTask:
    """The task that `encode_task` wrote."""
    return NodeTask(**json.loads(text))


def node_log_path(logs: Path, node: int) -> Path:
    """The file with what the launcher of a node has to say; ranks have files of their own."""
    return logs / f"node-{node}.log"
