"""Finding and calling the user's `package.module:function` that makes a model or a workload."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from syncline.errors import ModelError, SynclineError, unknown_name
from syncline.workloads.own_data import is_map_style
from syncline.workloads.workload import InputSpec, Workload

_SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PACKAGE = Path(__file__).parents[1]


def find_function(text: str) -> Callable[[], Any]:
    """The function that `package.module:function` names, checked to need no arguments."""
    if not _SPEC.fullmatch(text) or text.partition(":")[0].endswith(".py"):
        raise ModelError(
            f"'{text}' is neither a built-in model nor of the form package.module:function.\n"
            f"{_repaired(text)}"
        )
    module_name, _, path = text.partition(":")
    function: Any = _import(module_name, text)
    for name in path.split("."):
        if not hasattr(function, name):
            raise _no_function(function, name)
        function = getattr(function, name)
    _check_function(function, text)
    return function


def make_workload(function: Callable[[], Any], text: str, device: torch.device) -> Workload:
    """Call the user's function; what it makes is on the CPU, or on `meta` when that is asked for."""
    try:
        with torch.device(device if device.type == "meta" else "cpu"):
            made = function()
    except SynclineError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"{text} raised {_words(error)}\n{_place(error)}") from error
    if isinstance(made, nn.Module):
        return Workload(model=made)
    if not isinstance(made, Workload):
        shown = (
            f"the class {made.__name__}"
            if isinstance(made, type)
            else f"a value of type {type(made).__name__}"
        )
        hint = "\nReturn an instance, not the class." if isinstance(made, type) else ""
        hint = "\nIs a return statement missing?" if made is None else hint
        raise ModelError(f"{text} returned {shown}; it must return an nn.Module or a Workload.{hint}")
    _check_workload(made, text)
    return made


def _import(module_name: str, text: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ModelError(
                f"There is no module '{error.name}', which {text} asks for. It was looked for in {folder} "
                f"and among the installed packages.\n{_nearby(folder)}"
            ) from None
        raise _import_error(module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(module_name, error) from error


def _import_error(module_name: str, error: BaseException) -> ModelError:
    return ModelError(f"The module '{module_name}' cannot be imported: {_words(error)}\n{_place(error)}")


def _check_function(function: Any, text: str) -> None:
    if isinstance(function, nn.Module):
        raise ModelError(
            f"{text} is a model, not a function that makes one.\nGive the name of a function without "
            "arguments that returns it, so that its weights can be made anew from the seed."
        )
    if not callable(function):
        raise ModelError(f"{text} is of type {type(function).__name__}, not a function that can be called.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise ModelError(
            f"{text} needs arguments ({', '.join(needed)}), but is called without any.\n"
            "Give them defaults, or write a function of no arguments that passes them."
        )


def _check_workload(workload: Workload, text: str) -> None:
    if not isinstance(workload.model, nn.Module):
        raise _wrong_field(text, "model", workload.model, "an nn.Module")
    if workload.loss is not None and not callable(workload.loss):
        raise _wrong_field(text, "loss", workload.loss, "a function of the model's output and the targets")
    if isinstance(workload.optimizer, torch.optim.Optimizer) or not callable(workload.optimizer or len):
        wanted = (
            "a function of the parameters that makes one, such as lambda p: torch.optim.AdamW(p, lr=1e-3)"
        )
        raise _wrong_field(text, "optimizer", workload.optimizer, wanted)
    batches = workload.batches
    if batches is not None and not (
        isinstance(batches, Iterable) or callable(batches) or is_map_style(batches)
    ):
        wanted = "a data set, an iterable of whole global batches, or a function that makes one"
        raise _wrong_field(text, "batches", batches, wanted)
    if workload.evaluation is not None and not is_map_style(workload.evaluation):
        raise _wrong_field(text, "evaluation", workload.evaluation, "a map-style torch.utils.data.Dataset")
    if workload.input is not None and not isinstance(workload.input, InputSpec):
        raise _wrong_field(text, "input", workload.input, "an InputSpec")


def _wrong_field(text: str, field: str, value: object, wanted: str) -> ModelError:
    given = type(value).__name__
    return ModelError(f"In the Workload of {text}, {field} is of type {given}; it must be {wanted}.")


def _no_function(owner: object, name: str) -> ModelError:
    """Names that could have been meant are those of functions and classes that are defined there."""
    module = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", None)
    known = [
        key
        for key, value in getattr(owner, "__dict__", {}).items()
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module
    ]
    where = getattr(owner, "__file__", None) or getattr(owner, "__qualname__", type(owner).__name__)
    if not known:
        return ModelError(f"There is no function '{name}' in {where}, and no other either.")
    return ModelError(f"{unknown_name('function', name, known)}\nIt was looked for in {where}.")


def _repaired(text: str) -> str:
    module, _, function = text.partition(":")
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        return f"Write {dotted}:{function or 'function'}, from the folder that holds it."
    return "Write for example my_package.my_module:build, where build() returns an nn.Module or a Workload."


def _nearby(folder: str) -> str:
    names = sorted(path.stem for path in Path(folder).glob("*.py"))[:10]
    return f"Modules in that folder: {', '.join(names)}." if names else "That folder has no module."


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _place(error: BaseException) -> str:
    """File and line of the user's own code where it went wrong: the deepest that is not a library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"In {error.filename}, line {error.lineno}."
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    libraries = (str(_PACKAGE), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen ")
    own = [frame for frame in frames if not frame[0].startswith(libraries)]
    file, line = (own or frames)[-1]
    return f"In {file}, line {line}."
