"""From the folders of benchmarks to their page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from syncline.benchmark.environment import read_environments
from syncline.benchmark.folder import SUITE_FILE
from syncline.benchmark.output import write_output
from syncline.benchmark.report.page import report_page
from syncline.benchmark.row import Row, read_rows
from syncline.errors import ConfigError
from syncline.training.config_file import read_settings

_TERMS = ("budget", "train")
"""What of a suite the names of its cells do not tell."""


def merged_rows(folders: Sequence[Path]) -> list[Row]:
    """The rows of all folders; of a cell that several have, the last counts.

    Raises:
        ConfigError: Cells of the same name were trained on other terms, so none may stand for the other.
    """
    found: dict[tuple[str, str], tuple[Row, Path]] = {}
    for folder in folders:
        for row in read_rows(folder):
            key = (row.framework, row.cell)
            if key in found and not _on_same_terms((row, folder), found[key]):
                raise ConfigError(
                    f"{found[key][1]} and {folder} both have the cell {row.cell}, but with another budget, "
                    "other data or other settings: one report cannot show both.\n"
                    "Make a report of each."
                )
            found[key] = row, folder
    return [row for row, _ in found.values()]


def _on_same_terms(one: tuple[Row, Path], other: tuple[Row, Path]) -> bool:
    """By their suites' budgets and settings; where no suite was kept, by what measured rows tell of them."""
    suites = [folder / SUITE_FILE for _, folder in (one, other)]
    if all(path.exists() for path in suites):
        first, second = ([read_settings(path).get(key) for key in _TERMS] for path in suites)
        return first == second
    rows = [row for row, _ in (one, other) if row.status == "ok"]
    return len({(row.data, row.samples) for row in rows}) <= 1


def write_report(folders: Sequence[Path], page: Path) -> None:
    """Write the page of one benchmark, or of several together."""
    environments = [one for folder in folders for one in read_environments(folder)]
    title = " and ".join(folder.resolve().name.lstrip(".") for folder in folders)
    write_output(page, report_page(merged_rows(folders), environments, title=title))
