"""`cluster.toml`: read with errors that name the file and the key, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cattrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, override

from syncline.cluster.topology import Cluster, Device, Level, Slowdown
from syncline.errors import ClusterError

_HEADER = """\
# A cluster: one kind of device, and levels of links from the inside out.
# flops_per_s: sustained float32 matrix products, a multiply-add is 2 FLOP.
# skew_s: how long devices wait for each other where a collective interrupts their computing; 0 when left out.
# bytes_per_s of a level: what one device can send through it while all devices do.
# latency_s of a level: time of one step of a collective, whatever its size.
# overlap of a level: the share of its traffic that can go on behind computing; 1 when left out.
# slowdown of a level: time of a collective over that of the textbook algorithm; 1 when left out.
"""


def load_cluster(path: Path) -> Cluster:
    """Reads a `cluster.toml`.

    Raises:
        ClusterError: The file cannot be read, or something in it is wrong; names the key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise ClusterError(f"Cannot read the cluster file {path}: {exc}.") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ClusterError(f"The cluster file {path} is not TOML: {exc}.") from exc
    if "schema" not in content:
        raise ClusterError(f"The cluster file {path} does not say its version. Add the line: schema = 1")
    if not isinstance(content.get("level", []), list):
        raise ClusterError(
            f"The cluster file {path} is wrong:\n- level: write each level as a [[level]] table"
        )
    content.setdefault("name", path.stem)
    try:
        return _converter().structure(content, Cluster)
    except (ClassValidationError, ClusterError) as exc:
        lines = cattrs.transform_error(exc, path="", format_exception=_explain)
        problems = "\n".join(f"- {line}" for line in map(_readable, lines))
        raise ClusterError(f"The cluster file {path} is wrong:\n{problems}") from None


def save_cluster(cluster: Cluster, path: Path) -> None:
    """Writes a `cluster.toml` that reads back equal; a reader never sees half of it.

    Raises:
        ClusterError: The file cannot be written.
    """
    text = format_cluster(cluster)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp makes files that only their owner can read; this one is for everyone.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as exc:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ClusterError(f"Cannot write the cluster file {path}: {exc}.") from exc


def format_cluster(cluster: Cluster) -> str:
    """The text of a `cluster.toml`."""
    tables: list[tuple[str, Any]] = [("", cluster), ("[device]", cluster.device)]
    for level in cluster.levels:
        tables.append(("[[level]]", level))
        if level.slowdown != Slowdown():
            tables.append(("[level.slowdown]", level.slowdown))
    return _HEADER + "\n".join("".join(_table(heading, table)) for heading, table in tables)


def _table(heading: str, values: Any) -> Iterator[str]:
    if heading:
        yield f"{heading}\n"
    fields = dataclasses.fields(values)
    for field in sorted(fields, key=lambda field: field.name != "schema"):
        value = getattr(values, field.name)
        usual = isinstance(values, Slowdown) and value == field.default
        if isinstance(value, str | int | float) and not usual:
            yield f"{field.name} = {_value(value)}\n"


def _value(value: str | int | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _converter() -> cattrs.Converter:
    """A converter that takes no text for a number and no key that it does not know."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(bool, _boolean)
    converter.register_structure_hook(int, _whole)
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(
        Cluster,
        make_dict_structure_fn(
            Cluster, converter, _cattrs_forbid_extra_keys=True, levels=override(rename="level")
        ),
    )
    return converter


def _text(value: Any, _: type) -> str:
    if not isinstance(value, str):
        raise TypeError(f"is {value!r}, but must be a text in quotes")
    return value


def _boolean(value: Any, _: type) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"is {value!r}, but must be true or false")
    return value


def _whole(value: Any, _: type) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise TypeError(f"is {value!r}, but must be a whole number")
    return int(value)


def _number(value: Any, _: type) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"is {value!r}, but must be a number")
    return float(value)


def _explain(exc: BaseException, kind: type | None) -> str:
    if isinstance(exc, ForbiddenExtraKeysError):
        unknown = ", ".join(f"'{name}'" for name in sorted(exc.extra_fields))
        return f"unknown key {unknown}; allowed: {', '.join(_keys(exc.cl))}"
    if isinstance(exc, KeyError):
        return "is missing"
    if isinstance(exc, ClusterError) or (isinstance(exc, TypeError) and str(exc).startswith("is ")):
        return str(exc)
    return f"has the wrong shape (must be {_SHAPES.get(kind, 'a list of [[level]] tables')})"


_SHAPES: dict[type | None, str] = {
    Cluster: "a table",
    Device: "a [device] table",
    Level: "a [[level]] table",
    Slowdown: "a [level.slowdown] table",
}


def _keys(kind: type) -> list[str]:
    return ["level" if field.name == "levels" else field.name for field in dataclasses.fields(kind)]


def _readable(line: str) -> str:
    """Turns `what is wrong @ .levels[0].size` of cattrs into `level[0].size: what is wrong`."""
    problem, _, place = line.rpartition(" @ ")
    place = place.removeprefix(".").replace("levels", "level", 1)
    return f"{place}: {problem}" if place else problem
