"""Reading and writing a run's settings as TOML, with errors that name the file and the key."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from cattrs import ClassValidationError, Converter, transform_error
from cattrs.errors import ForbiddenExtraKeysError

from syncline.errors import ConfigError, SynclineError, unknown_name
from syncline.training.config import TrainConfig
from syncline.training.files import write_text

T = TypeVar("T")

_CONVERTER = Converter(forbid_extra_keys=True)


def _strict(kind: type) -> None:
    def check(value: Any, _: type) -> Any:
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
            raise ValueError(f"{value!r} is not {_NAMES[kind]}")
        return kind(value)

    _CONVERTER.register_structure_hook(kind, check)


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
for _kind in _NAMES:
    _strict(_kind)
for _kind in (int, float, str):
    _CONVERTER.register_structure_hook_func(
        lambda hint, kind=_kind: hint == kind | None,
        lambda value, _, kind=_kind: None if value is None else _CONVERTER.structure(value, kind),
    )
_ELEMENTS = _CONVERTER.copy()


def _read_list(value: Any, hint: Any) -> tuple[Any, ...]:
    """Lists are read by the rules above, once it is clear that there is one, and as long as it must be."""
    kinds = typing.get_args(hint)
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} is not a list")
    if Ellipsis not in kinds and len(value) != len(kinds):
        raise ValueError(f"{list(value)} is not a list of {len(kinds)}")
    return _ELEMENTS.structure(value, hint)


_CONVERTER.register_structure_hook_func(lambda hint: typing.get_origin(hint) is tuple, _read_list)


def read_settings(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML file, not yet checked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no file {path}.") from None
    except (IsADirectoryError, PermissionError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def build_config(settings: Mapping[str, Any], source: str) -> TrainConfig:
    """A checked run from keys and values; `source` names the file in errors."""
    return read_as(TrainConfig, settings, source)


def read_as(kind: type[T], settings: Mapping[str, Any], source: str) -> T:
    """A checked dataclass from keys and values, tables within it included."""
    try:
        return _CONVERTER.structure(dict(settings), kind)
    except ClassValidationError as error:
        known = _known_error(error)
        raise ConfigError(f"{source}: {known or _explain(error, kind)}") from None


def write_config(config: TrainConfig, path: Path) -> None:
    """Write a run's settings, all of them, so that the file says what was done."""
    write_text(path, to_toml(dataclasses.asdict(config)))


def to_toml(values: Mapping[str, Any]) -> str:
    """TOML of plain values and one level of tables; what is None is left out.

    Strings, numbers, booleans and lists are written alike in JSON and TOML.
    """
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items() if value is not None]
    for name, table in tables.items():
        lines += ["", f"[{name}]", to_toml(table).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _known_error(error: BaseException) -> str | None:
    """The message of our own check, when that is what failed."""
    if isinstance(error, SynclineError):
        return str(error)
    for inner in getattr(error, "exceptions", ()):
        message = _known_error(inner)
        if message:
            return message
    return None


def _explain(error: ClassValidationError, root: type) -> str:
    keys = _extra_keys(error, root)
    if keys:
        return keys
    told = (line.split(" @ $.") for line in transform_error(error, format_exception=_format))
    return "; ".join(f"{parts[-1]}: {parts[0]}" for parts in told)


def _format(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KeyError):
        return "is missing"
    if typing.get_origin(kind) is Literal:
        given = str(error).split(" not in literal")[0]
        return f"{given!r} is not one of {', '.join(map(str, typing.get_args(kind)))}"
    if isinstance(error, ValueError) and " is not " in str(error):
        return str(error)
    return "must be a table, with keys of its own"


def _extra_keys(error: BaseException, root: type) -> str | None:
    if isinstance(error, ForbiddenExtraKeysError):
        table = _table(error.cl, root)
        known = [table + entry.name for entry in dataclasses.fields(error.cl)]
        return unknown_name("key", table + min(error.extra_fields), known)
    for inner in getattr(error, "exceptions", ()):
        message = _extra_keys(inner, root)
        if message:
            return message
    return None


def _table(kind: type, root: type) -> str:
    """Where the keys of a class stand in the file, as the beginning of their names."""
    hints = typing.get_type_hints(root).items()
    names = [name for name, hint in hints if kind is hint or kind in typing.get_args(hint)]
    return f"{names[0]}." if names else ""
