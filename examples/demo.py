"""Trains a small language model with every strategy and sets them side by side: `make demo`.

It is `syncline bench` without a suite; arguments such as `--only data,sharded` are passed on.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from syncline.cli.app import run

FOLDER = Path(".demo")


def main() -> int:
    """Compare, and leave the report in `.demo`; an earlier one is replaced."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    print("Training gpt2-tiny with every strategy, a line each; about three minutes.", file=sys.stderr)
    return run(["bench", "-o", str(FOLDER), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
