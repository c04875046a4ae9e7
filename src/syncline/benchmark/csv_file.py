"""Rows as a table for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields

from syncline.benchmark.row import Row

_NESTED = ("curve", "timeline", "group_step_s")


def to_csv(rows: Sequence[Row]) -> str:
    """One line a row; what is a table itself gets a column for each of its keys."""
    lines = [_flat(row) for row in rows]
    names = [one.name for one in fields(Row) if one.name not in _NESTED]
    order = {name: place for place, name in enumerate(names)}
    columns = sorted(
        dict.fromkeys(key for line in lines for key in line),
        key=lambda key: order[key.partition(".")[0]],
    )
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _flat(row: Row) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in asdict(row).items():
        if name in _NESTED:
            continue
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif isinstance(value, list):
            flat |= {f"{name}.{place}": inner for place, inner in enumerate(value)}
        else:
            flat[name] = value
    return flat
