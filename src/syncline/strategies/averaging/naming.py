"""Names in a checkpoint of states that are not the same on all nodes.

The first node's state has the names of every strategy, so that any of them can go on from it. What
another node has is called `nodes.I.NAME`, and what a rank has for itself `nodes.I.ranks.R.NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

AVERAGING = "averaging"
"""How the names begin of what only an averaging strategy needs; a checkpoint of another has none."""

_OPTIONAL = re.compile(rf"(nodes\.\d+\.)?(ranks\.\d+\.)?{AVERAGING}\.")


def node_scope(node: int) -> str:
    """What stands before the names of a node's state."""
    return "" if node == 0 else f"nodes.{node}."


def rank_scope(node: int, rank: int) -> str:
    """What stands before the names of a rank's own state."""
    return f"nodes.{node}.ranks.{rank}."


def find_saved(state: dict[str, Any], saved: Collection[str], scopes: Sequence[str]) -> dict[str, str]:
    """The name under which a checkpoint holds each entry of a state, for as many as it holds.

    Args:
        state: What shall be loaded.
        saved: The names in the checkpoint.
        scopes: What may stand before this rank's names, the best first.
    """
    found = {}
    for name in state:
        base = next((name.removeprefix(scope) for scope in scopes if scope and name.startswith(scope)), name)
        candidates = [scope + base for scope in scopes] if len(scopes) > 1 else [name]
        match = next((each for each in candidates if each in saved), None)
        if match is not None:
            found[name] = match
    return found


def is_optional(name: str) -> bool:
    """Whether a state can do without this entry."""
    return _OPTIONAL.match(name) is not None
