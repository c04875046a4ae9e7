"""From the folders of benchmarks to their page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from syncline.benchmark.environment import ENVIRONMENT_FILE, read_environment
from syncline.benchmark.report.page import report_page
from syncline.benchmark.row import Row, read_rows
from syncline.training.files import write_text


def check_results(folder: Path) -> None:
    """Refuse a folder without results."""
    read_rows(folder)


def merged_rows(folders: Sequence[Path]) -> list[Row]:
    """The rows of all folders; of a cell that several have, the last counts."""
    found: dict[tuple[str, str], Row] = {}
    for folder in folders:
        found |= {(row.framework, row.cell): row for row in read_rows(folder)}
    return list(found.values())


def write_report(folders: Sequence[Path], page: Path) -> None:
    """Write the page of one benchmark, or of several together."""
    environments = [read_environment(one) for one in folders if (one / ENVIRONMENT_FILE).exists()]
    title = " and ".join(folder.resolve().name.lstrip(".") for folder in folders)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, report_page(merged_rows(folders), environments, title=title))
