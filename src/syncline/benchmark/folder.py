"""The folder of a benchmark: making one, or taking up one that exists."""

from __future__ import annotations

import glob
import itertools
from pathlib import Path

from syncline.benchmark.output import write_output
from syncline.benchmark.row import RESULTS_FILE, Row, drop_half_row, read_rows
from syncline.benchmark.suite import Suite
from syncline.benchmark.suite_file import suite_text
from syncline.errors import RunFolderError

SUITE_FILE = "suite.toml"
PARENT = Path("bench")


def default_folder(suite: Suite, parent: Path = PARENT) -> Path:
    """The first unused name for this suite below `parent`."""
    names = (parent / f"{suite.name}-{number:03d}" for number in itertools.count(1))
    return next(path for path in names if not path.exists())


def newest_folder(suite: Suite, parent: Path = PARENT) -> Path | None:
    """The folder that this suite was last started in below `parent`."""
    started = parent.glob(f"{glob.escape(suite.name)}-[0-9]*/{SUITE_FILE}")
    return max((path.parent for path in started), key=lambda path: path.stat().st_mtime_ns, default=None)


def open_folder(suite: Suite, folder: Path, *, resume: bool) -> list[Row]:
    """Make the folder of a benchmark; the rows that are there already, when it is resumed.

    Raises:
        RunFolderError: There is something else in it, or another suite.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise RunFolderError(f"The benchmark's folder {folder} cannot be made: {error}") from None
    path = folder / SUITE_FILE
    if not occupied:
        write_output(path, suite_text(suite))
        return []
    if not resume:
        raise RunFolderError(
            f"The folder {folder} is not empty, and a benchmark never overwrites another.\n"
            "Add --resume to go on with the benchmark in it, or give another folder with -o."
        )
    if not path.exists() or path.read_text(encoding="utf-8") != suite_text(suite):
        raise RunFolderError(
            f"{folder} does not hold a benchmark of the suite '{suite.name}' as it is now: cells of "
            f"different suites cannot be compared.\n"
            f"Compare {path} with what you gave, or give another folder with -o."
        )
    if not (folder / RESULTS_FILE).exists():
        return []
    drop_half_row(folder)
    return read_rows(folder)
