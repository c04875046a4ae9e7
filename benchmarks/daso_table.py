"""The record of training across slow links as the tables of its page: one of language, one of images.

    python benchmarks/daso_table.py

writes them into docs/training-across-slow-links.md, in place of those that are there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daso_rows import BASELINE
from daso_settings import TASKS, WEIGHTS
from record import ROOT

PAGE = ROOT / "docs/training-across-slow-links.md"
RECORD = Path(__file__).parent / "results/daso.json"
KINDS = ("gpt2", "resnet18")
CLUSTERS = {
    "2x1@100mbit": "2×1, 100 Mbit/s",
    "2x2@100mbit": "2×2, 100 Mbit/s",
    "2x1@1gbit": "2×1, 1 Gbit/s",
    "2x2@1gbit": "2×2, 1 Gbit/s",
}
STRATEGIES = {
    BASELINE: "",
    "daso": "",
    "daso:sync-every=auto": "",
    "daso:sync-every=auto,wire=bf16": "",
    "daso:sync-every=auto,merge=paper": "",
    "sharded:group=2": " (HSDP)",
    "data:compress=fp16": "",
    "data:compress=powersgd": "",
    "local-sgd": "",
    "torchft:local-sgd": "",
    "diloco:sync-every=16": "",
    "torchft:diloco": "",
}
"""With what is said of them."""
_TABLE = re.compile(r"\| strategy \| 2×.*\n(?:\|.*\n)*")
SEEDS = 3
"""As many need not be told."""


def table_of(rows: Sequence[dict[str, Any]], kind: str) -> str:
    """One line a strategy, one column a cluster and model, for the models of a kind."""
    found = {(row["strategy"], row["cluster"], row["model"]): row for row in rows}
    columns = _columns(kind)
    lines = [_head(kind)]
    for strategy, told in STRATEGIES.items():
        cells = [_cell(found.get((strategy, cluster, model))) for cluster, model in columns]
        lines.append(f"| `{strategy}`{told} | {' | '.join(cells)} |\n")
    return "".join(lines)


def with_tables(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page with these rows in its tables, which may have had other columns."""
    kinds = iter(KINDS)
    return re.sub(_TABLE, lambda _: table_of(rows, next(kinds)), page)


def _columns(kind: str) -> list[tuple[str, str]]:
    """Clusters and models, the slowest links first."""
    return [
        (cluster, task.model)
        for cluster in CLUSTERS
        for task in TASKS[cluster]
        if task.model.startswith(kind)
    ]


def _head(kind: str) -> str:
    titles = [f"{CLUSTERS[cluster]}, {WEIGHTS[model]}" for cluster, model in _columns(kind)]
    return f"| strategy | {' | '.join(titles)} |\n| --- |{' --- |' * len(titles)}\n"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or "skipped" in row:
        return ""
    if "reason" in row:
        return "failed"
    told = _seeds_told(row)
    if row["strategy"] == BASELINE:
        return f"{row['total_s']:.0f} s, {row['eval_loss']:.3f}{told}"
    time = f"– ({row['total_ratio']:.2f})" if row["less_time"] is None else _percent(row["less_time"], 0)
    change = row["eval_loss_ratio"] - 1
    sign = "+" if round(1000 * change) > 0 else ""
    return f"{time}, {sign}{_percent(change, 1)}{told}"


def _seeds_told(row: dict[str, Any]) -> str:
    """How many seeds there are, or how many of them got there, where that is not understood."""
    seeds, reached = row["seeds"], row["reached"]
    if row["less_time"] is not None and reached < seeds:
        return f" ({reached} of {seeds} seeds)"
    return "" if seeds == SEEDS else f" ({seeds} seed{'s' if seeds > 1 else ''})"


def _percent(share: float, digits: int) -> str:
    # Adding zero makes a zero of one below it.
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %".replace("-", "−")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(), json.loads(RECORD.read_text())["rows"]))
    print(f"Written to {PAGE}")
