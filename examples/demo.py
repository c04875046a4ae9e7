"""Trains a small language model with every strategy and sets them side by side: `make demo`.

It is `syncline bench` without a suite; arguments such as `--only data,sharded` are passed on. Exits 1 when a
strategy did not train.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from syncline.benchmark.row import brief, read_rows
from syncline.benchmark.running import RUNS_FOLDER
from syncline.cli.app import run

FOLDER = Path(".demo")


def main() -> int:
    """Compare, and leave the report in `.demo`; an earlier one is replaced."""
    print("Training gpt2-tiny with every strategy, a line each; about two minutes.", file=sys.stderr)
    with _earlier_put_away():
        code = run(["bench", "-o", str(FOLDER), *sys.argv[1:]])
        if code == 0 and FOLDER.exists():
            code = _tell_failures()
    return code


@contextmanager
def _earlier_put_away() -> Iterator[None]:
    """Within, there is no earlier demo; it comes back when no new one has begun, as after a wrong flag."""
    with tempfile.TemporaryDirectory() as away:
        earlier = Path(away) / FOLDER
        if FOLDER.exists():
            shutil.move(FOLDER, earlier)
        try:
            yield
        finally:
            if earlier.exists() and not FOLDER.exists():
                shutil.move(earlier, FOLDER)


def _tell_failures() -> int:
    """Say which strategies did not train and where their logs are; the exit code."""
    failed = [row for row in read_rows(FOLDER) if row.status != "ok"]
    for row in failed:
        logs = " ".join(map(str, sorted((FOLDER / RUNS_FOLDER).glob(f"{row.cell}*"))))
        print(f"{row.label} {row.status}: {brief(row.reason)}\nIts logs: {logs}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
