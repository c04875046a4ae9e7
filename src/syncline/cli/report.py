"""`syncline report`."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncline.benchmark.comparison import Change, nothing_common
from syncline.benchmark.comparison import compare as compare_entries
from syncline.benchmark.csv_file import to_csv
from syncline.benchmark.entries import make_entries
from syncline.benchmark.output import write_output
from syncline.benchmark.report.page import REPORT_FILE
from syncline.benchmark.writing import merged_rows, write_report
from syncline.errors import ConfigError

FLAG = Parameter(negative="", show_default=False)
EXIT_WORSE = 3


def report(
    *folders: Path,
    csv: Path | None = None,
    compare: Path | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Rebuild the page of a benchmark, or of several together.

    Examples:

      syncline report bench/demo-001

      syncline report bench/survey-001 bench/daso-001 -o both.html

      syncline report bench/demo-001 --csv rows.csv

      syncline report bench/demo-002 --compare bench/demo-001

    Parameters
    ----------
    folders:
        Folders that `syncline bench` wrote. Of a cell that several have, the last counts; with another budget
        or other settings it is refused.
    csv:
        Also write the rows as a table for other programs.
    compare:
        The folder of an older benchmark: show what changed, and exit 3 when something got worse beyond noise.
    output:
        Where to write the page. Default: report.html in the folder, or here when there are several.
    json:
        Print rows and changes as one JSON document on stdout.
    """
    if not folders:
        raise ConfigError("Which benchmark? Name its folder, such as: syncline report bench/demo-001")
    changes = _changes(compare, folders) if compare is not None else []
    page = output or (folders[0] / REPORT_FILE if len(folders) == 1 else Path(REPORT_FILE))
    write_report(folders, page)
    rows = merged_rows(folders)
    if csv is not None:
        write_output(csv, to_csv(rows))
    if json:
        told = {
            "schema": 1,
            "report": str(page),
            "rows": [asdict(row) for row in rows],
            "changes": [_change_values(one) for one in changes],
        }
        print(json_module.dumps(told, indent=2))
    else:
        if compare is not None:
            _show_changes(changes, Console())
        print(page)
    return EXIT_WORSE if any(one.is_worse for one in changes) else 0


def show_comparison(old: Path, new: Path, console: Console) -> bool:
    """Show what changed between two folders; whether something got worse."""
    changes = _changes(old, [new])
    _show_changes(changes, console)
    return any(one.is_worse for one in changes)


def _changes(old: Path, new: tuple[Path, ...] | list[Path]) -> list[Change]:
    found = compare_entries(make_entries(merged_rows([old])), make_entries(merged_rows(new)))
    if not found:
        raise nothing_common(old, ", ".join(map(str, new)))
    return found


def _show_changes(changes: list[Change], console: Console) -> None:
    told = [one for one in changes if one.is_worse or one.is_better]
    if not told:
        console.print(f"Nothing changed beyond noise in {len(changes)} figures.")
        return
    table = Table("strategy", "where", "figure", "before", "now", "change", "noise", "")
    for one in told:
        relative = one.relative
        table.add_row(
            escape(one.name),
            escape(one.place),
            one.figure,
            "" if one.old is None else f"{one.old:.4g}",
            escape(one.note) if one.new is None else f"{one.new:.4g}",
            "" if relative is None else f"{relative:+.1%}",
            f"{one.tolerance:.1%}",
            "[red]worse" if one.is_worse else "[green]better",
        )
    console.print(table)


def _change_values(change: Change) -> dict[str, Any]:
    values: dict[str, Any] = asdict(change)
    return values | {
        "relative": change.relative,
        "worse": change.is_worse,
        "better": change.is_better,
    }
