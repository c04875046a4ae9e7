"""One record of what several calls measured, perhaps on different days and machines.

A setting is measured whole or not at all: strategies are only compared with the baseline of the same call's
folder. What an earlier record has of other settings stays, and every row says when and where it is from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daso_rows import SETTING
from daso_settings import TASKS
from record import origin_of

PLACE = ("model", "batch", "cluster")
"""What tells measurements of exposure and pace apart."""

Key = Callable[[dict[str, Any]], tuple[Any, ...]]


def join_records(path: Path, figures: dict[str, Any]) -> dict[str, Any]:
    """The figures, and what the record at a path has besides of the tasks of now."""
    earlier = json.loads(path.read_text()) if path.exists() else {}
    keys: dict[str, Key] = {"rows": _key_of(SETTING), "exposure": _key_of(PLACE), "pace": _key_of(PLACE)}
    wanted = {"rows": _wanted(SETTING), "exposure": _wanted(PLACE), "pace": _wanted(PLACE)}
    joined = dict(figures)
    for part, key in keys.items():
        own = figures[part]
        known = {key(one) for one in own}
        kept = [
            {"measured": origin_of(earlier)} | one
            for one in earlier.get(part, [])
            if key(one) not in known and key(one) in wanted[part]
        ]
        joined[part] = sorted([*kept, *own], key=lambda one, key=key: str(key(one)))
    return joined


def _key_of(names: tuple[str, ...]) -> Key:
    return lambda one: tuple(one[name] for name in names)


def _wanted(names: tuple[str, ...]) -> set[tuple[Any, ...]]:
    """The keys of all tasks."""
    return {
        tuple(cluster if name == "cluster" else getattr(task, name) for name in names)
        for cluster, tasks in TASKS.items()
        for task in tasks
    }
