"""Timings of this machine on disk, so that each op is timed once.

One file for each combination of what they depend on: machine, device, torch version, threads of a rank, and
how many ranks run at the same time, over which links.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What timings depend on."""

    machine: str
    device: str
    torch: str
    threads: int
    ranks: int
    """On this machine, all at once."""
    links: str
    """`local`, or the emulation."""

    @property
    def file_name(self) -> str:
        """The same for equal circumstances."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
        return f"timings-{digest}.json"


@dataclass(slots=True)
class Timings:
    """What is known under some circumstances, as plain values."""

    ops: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    """By optimizer."""
    rows: dict[str, Any] = field(default_factory=dict)
    """Of ops one after the other, by a digest of their keys."""


def read_timings(folder: Path, circumstances: Circumstances) -> Timings:
    """What is known already. A file that cannot be read counts as none, and is said to on stderr."""
    path = folder / circumstances.file_name
    if not path.exists():
        return Timings()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA or content["circumstances"] != asdict(circumstances):
            raise ValueError("it is of another version or machine")
        return Timings(**{one.name: dict(content[one.name]) for one in fields(Timings)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"measure: {path} cannot be used, so everything is timed again: {error}", file=sys.stderr)
        return Timings()


def write_timings(folder: Path, circumstances: Circumstances, timings: Timings) -> None:
    """Keep what is known; a reader never sees half of it. Where nothing can be written, it is not kept."""
    content = {"schema": SCHEMA, "circumstances": asdict(circumstances)} | asdict(timings)
    temporary: str | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".timings-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(temporary, folder / circumstances.file_name)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        print(f"measure: timings cannot be kept in {folder}: {error}", file=sys.stderr)
