"""Reading data classes from plain values: nothing unknown, no text for a number; errors say where."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import cattrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError

from syncline.errors import SynclineError

T = TypeVar("T")


def read_strictly(kind: type[T], values: Any) -> T:
    """An object of a data class from plain values.

    Raises:
        ValueError: Something is wrong; the message has a line for each problem: where, what, what is allowed.
    """
    try:
        return _CONVERTER.structure(values, kind)
    except (ClassValidationError, ForbiddenExtraKeysError, TypeError, SynclineError) as error:
        lines = cattrs.transform_error(error, path="", format_exception=_explain)
        raise ValueError("\n".join(f"- {_placed(line)}" for line in lines)) from None


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind, name in ((str, "a text"), (bool, "true or false"), (int, "a whole number")):
        converter.register_structure_hook(kind, _only(kind, name))
    converter.register_structure_hook(float, _number)
    # A class hook, since the one for texts would take enums of texts too.
    converter.register_structure_hook(StrEnum, _member)
    converter.register_structure_hook_func(lambda hint: hint in (float | None, str | None), _maybe)
    converter.register_structure_hook_func(lambda hint: hint == tuple[str, ...], _texts)
    return converter


def _only(kind: type, name: str) -> Callable[[Any, type], Any]:
    def check(value: Any, _: type) -> Any:
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise TypeError(f"is {value!r}, but must be {name}")
        return value

    return check


def _number(value: Any, _: type) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"is {value!r}, but must be a number")
    return float(value)


def _maybe(value: Any, hint: Any) -> Any:
    if value is None:
        return None
    kind = float if hint == float | None else str
    return _CONVERTER.structure(value, kind)


def _member(value: Any, kind: Any) -> Any:
    allowed = [member.value for member in kind]
    if value not in allowed:
        raise TypeError(f"is {value!r}, but must be one of: {', '.join(allowed)}")
    return kind(value)


def _texts(value: Any, _: type) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"is {value!r}, but must be a list of texts")
    return tuple(value)


def _explain(error: BaseException, kind: type | None) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        unknown = ", ".join(f"'{name}'" for name in sorted(error.extra_fields))
        allowed = ", ".join(field.name for field in dataclasses.fields(error.cl))
        return f"unknown key {unknown}; allowed: {allowed}"
    if isinstance(error, KeyError):
        return "is missing"
    if isinstance(error, SynclineError) or str(error).startswith("is "):
        return str(error)
    shape = (
        "a table" if kind is not None and (dataclasses.is_dataclass(kind) or kind is Mapping) else "a list"
    )
    return f"has the wrong shape; must be {shape} with entries of its own"


def _placed(line: str) -> str:
    """`what is wrong @ .levels[0].size` of cattrs as `levels[0].size: what is wrong`."""
    problem, at, place = line.rpartition(" @ ")
    place = place.removeprefix(".")
    return f"{place}: {problem}" if at and place else problem or line


_CONVERTER = _converter()
