"""`plan.json`: written whole or not at all, read with errors that name the file and the key."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from syncline.errors import PlanningError
from syncline.planning.plan import Plan
from syncline.planning.strict import read_strictly

SCHEMA = 1
"""The version of `plan.json`."""
_WIDTH = 140


def save_plan(plan: Plan, path: Path) -> None:
    """Writes a `plan.json` that reads back equal; a reader never sees half of it.

    Raises:
        PlanningError: The file cannot be written.
    """
    write_whole(path, format_plan(plan))


def load_plan(path: Path) -> Plan:
    """Reads a `plan.json`. What it means for a model is checked by `check_plan`.

    Raises:
        PlanningError: The file cannot be read, or something in it is wrong; names the key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanningError(f"Cannot read the plan {path}: {error}.") from None
    except json.JSONDecodeError as error:
        raise PlanningError(f"The plan {path} is not JSON: {error}.") from None
    if not isinstance(content, dict) or "schema" not in content:
        raise PlanningError(f'The plan {path} does not say its version. Add the entry: "schema": {SCHEMA}')
    if content["schema"] != SCHEMA:
        raise PlanningError(
            f"The plan {path} has the schema {content['schema']!r}; this version of Syncline reads {SCHEMA}."
        )
    try:
        return read_strictly(Plan, content)
    except ValueError as error:
        raise PlanningError(f"The plan {path} is wrong:\n{error}") from None


def plan_values(plan: Plan) -> dict[str, Any]:
    """A plan as plain values, for JSON."""
    values = dataclasses.asdict(plan)
    return {"schema": values.pop("schema"), **values}


def format_plan(plan: Plan) -> str:
    """The text of a `plan.json`: what is short is on one line, so that an op is one line."""
    return _format(plan_values(plan), "") + "\n"


def write_whole(path: Path, text: str) -> None:
    """Replaces a file's contents at once.

    Raises:
        PlanningError: The file cannot be written.
    """
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp makes files that only their owner can read; this one is for everyone.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise PlanningError(f"Cannot write {path}: {error}.") from error


def _format(value: Any, indent: str) -> str:
    line = json.dumps(value)
    if len(line) + len(indent) <= _WIDTH or not isinstance(value, dict | list | tuple):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_format(item, deeper)}" for key, item in value.items()]
    else:
        parts = [_format(item, deeper) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(deeper + part for part in parts) + "\n" + indent + closing
