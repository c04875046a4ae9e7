"""`inspection/rank-N.json` in a run's folder: what each rank did in the steps that were taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.errors import RunFolderError
from syncline.training.inspection.kinds import MemoryKinds
from syncline.training.inspection.spans import Spans
from syncline.training.inspection.trace import StepTrace

INSPECTION_FOLDER = "inspection"
_DIGITS = 6
"""Microseconds: finer than any clock here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInspection:
    """What one rank did."""

    rank: int
    steps: list[StepTrace]
    memory: MemoryKinds


def to_text(rank: int, steps: Sequence[StepTrace], memory: Mapping[str, int]) -> str:
    """The file's contents; spans count from the beginning of their step."""
    entries = []
    for one in steps:
        entry: dict[str, Any] = {"step": one.step, "start_s": one.start_s, "end_s": one.end_s}
        for kind in ("compute", "data", "communication"):
            entry[kind] = _rounded(getattr(one, kind), -one.start_s)
        entries.append(entry)
    return json.dumps({"schema": 1, "rank": rank, "steps": entries, "memory": dict(memory)}) + "\n"


def read_inspections(folder: Path) -> list[RankInspection]:
    """Those of all ranks of a run, in order; none when the run was not inspected."""
    found = [_read(path) for path in (folder / INSPECTION_FOLDER).glob("rank-*.json")]
    return sorted(found, key=lambda one: one.rank)


def _read(path: Path) -> RankInspection:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        steps = []
        for entry in values["steps"]:
            kinds = {
                kind: [(start + entry["start_s"], end + entry["start_s"]) for start, end in entry[kind]]
                for kind in ("compute", "data", "communication")
            }
            steps.append(StepTrace(**(entry | kinds)))
        return RankInspection(rank=values["rank"], steps=steps, memory=MemoryKinds(**values["memory"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None


def _rounded(spans: Spans, shift: float) -> list[list[float]]:
    return [[round(start + shift, _DIGITS), round(end + shift, _DIGITS)] for start, end in spans]
