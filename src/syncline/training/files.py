"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace a file's contents at once."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file's contents at once."""
    write_text(path, json.dumps(value, indent=2) + "\n")
