"""Options written as `key=value,key=value`, turned into a typed and checked dataclass.

Models and strategies both take their options in this form. This module knows the notation, the types a
field may have and how to explain a mistake; what the options mean is up to the dataclass.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from syncline.errors import SynclineError

T = TypeVar("T")

_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse_options(
    kind: type[T], text: str, *, what: str, error: type[SynclineError], base: T | None = None
) -> T:
    """Makes a `kind` from options such as `group=2,reshard-after-forward=false`.

    A field may be int, float, bool, str, a Literal, or a union of these and None. Dashes and underscores
    in keys are the same. A ValueError from the dataclass's own checks becomes `error` too.

    Args:
        kind: The dataclass of the options.
        text: The options; may be empty.
        what: What the options belong to, for messages: `strategy 'sharded'`.
        error: The exception to raise for a mistake.
        base: Where the values not given come from; the defaults of `kind` when None.
    """
    values: dict[str, Any] = {}
    known = _known_fields(kind)
    for key, given in _split(text, what, error):
        name = key.replace("-", "_")
        if name not in known:
            raise error(_unknown_option(key, what, kind, base))
        if name in values:
            raise error(f"The option '{key}' of {what} is given twice. Give it once.")
        try:
            values[name] = convert(known[name], given)
        except ValueError:
            raise error(_bad_value(name, given, known[name], what, kind, base)) from None
    return _build(kind, values, what, error, base)


def describe_options(kind: type[T], base: T | None = None) -> list[str]:
    """One line for each option: its key, its default (from `base` when given) and what it takes."""
    fields = {field.name: field for field in dataclasses.fields(_dataclass(kind))}
    lines = []
    for name, hint in _known_fields(kind).items():
        default = _default(fields[name], base)
        required = default is dataclasses.MISSING
        shown = _key(name) + ("" if required else f"={show_value(default)}")
        lines.append(f"{shown} ({'required, ' if required else ''}{describe_type(hint)})")
    return lines


def convert(hint: Any, text: str) -> Any:
    """The value that `text` means for a field of this type; ValueError when it means none."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        try:
            return _convert_one(option, text)
        except ValueError:
            continue
    raise ValueError(f"'{text}' is not {describe_type(hint)}")


def describe_type(hint: Any) -> str:
    """What a field of this type takes, in words: `a whole number or auto`."""
    if _is_union(hint):
        return _join_or([describe_type(option) for option in typing.get_args(hint)])
    if typing.get_origin(hint) is Literal:
        return _join_or([str(choice) for choice in typing.get_args(hint)])
    return _words(hint)


def show_value(value: Any) -> str:
    """A value as it is written in options."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(value)


def _split(text: str, what: str, error: type[SynclineError]) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split(",") if text.strip() else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise error(
                f"'{part.strip()}' in the options '{text}' of {what} is not of the form key=value.\n"
                "Write options as key=value, separated by commas."
            )
        pairs.append((key, value))
    return pairs


def _build(
    kind: type[T], values: Mapping[str, Any], what: str, error: type[SynclineError], base: T | None
) -> T:
    if base is None:
        fields = dataclasses.fields(_dataclass(kind))
        missing = [
            _key(field.name)
            for field in fields
            if field.init and field.name not in values and _default(field, None) is dataclasses.MISSING
        ]
        if missing:
            lines = _known_lines(kind, base)
            raise error(f"{what[:1].upper()}{what[1:]} needs the option '{missing[0]}'.\n{lines}")
    try:
        return kind(**values) if base is None else dataclasses.replace(typing.cast(Any, base), **values)
    except ValueError as exc:
        raise error(f"The options of {what} cannot work together: {exc}") from exc


def _unknown_option(key: str, what: str, kind: type[T], base: T | None) -> str:
    names = [_key(name) for name in _known_fields(kind)]
    if not names:
        return f"There is no option '{key}': {what} takes no options."
    near = difflib.get_close_matches(_key(key), names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"There is no option '{key}' of {what}.{hint}\n{_known_lines(kind, base)}"


def _bad_value(name: str, given: str, hint: Any, what: str, kind: type[T], base: T | None) -> str:
    return (
        f"The option '{_key(name)}' of {what} is '{given}', but it takes {describe_type(hint)}.\n"
        f"{_known_lines(kind, base)}"
    )


def _known_lines(kind: type[T], base: T | None) -> str:
    return "Known options, with their defaults: " + "; ".join(describe_options(kind, base)) + "."


def _known_fields(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _dataclass(kind: type[T]) -> Any:
    return kind


def _default(field: dataclasses.Field[Any], base: Any) -> Any:
    if base is not None:
        return getattr(base, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _convert_one(hint: Any, text: str) -> Any:
    if typing.get_origin(hint) is Literal:
        return _choice(typing.get_args(hint), text)
    converters: dict[Any, Callable[[str], Any]] = {
        int: int,
        float: _finite,
        bool: _boolean,
        str: str,
        types.NoneType: _none,
    }
    if hint not in converters:
        raise TypeError(f"options cannot have the type {hint}")
    return converters[hint](text)


def _choice(choices: tuple[Any, ...], text: str) -> Any:
    for choice in choices:
        if text == str(choice):
            return choice
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLS:
        raise ValueError(text)
    return _BOOLS[text.lower()]


def _none(text: str) -> None:
    if text.lower() != "none":
        raise ValueError(text)


def _words(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return "none" if hint is types.NoneType else words.get(hint, str(hint))


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _join_or(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _key(name: str) -> str:
    return name.replace("_", "-")
