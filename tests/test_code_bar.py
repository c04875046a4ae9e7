"""The bar that the code keeps: short files and functions, typed, with no drawers for odds and ends."""

import ast
import re
import statistics
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "syncline"
TEXTS = {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
MODULES = {name: ast.parse(text) for name, text in TEXTS.items()}
FILE_LINES, USUAL_FILE_LINES, FUNCTION_LINES = 400, 300, 60
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
READS_VARIABLES = re.compile(r"\bos\.(environ|getenv|putenv)\b|\bfrom os import .*\b(environ|getenv)\b")
MAY_READ_VARIABLES = ("cluster/rank.py", "launch/")
FORBIDDEN = re.compile(r"\bTODO\b(?! *\(?#\d+)|\b(FIXME|XXX|HACK)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions():
    for name, module in MODULES.items():
        for node in ast.walk(module):
            if isinstance(node, Function):
                yield f"{name}: {node.name}", node


def lines_with(pattern, names):
    return [
        f"{name}: {line.strip()}"
        for name in names
        for line in TEXTS[name].splitlines()
        if pattern.search(line)
    ]


def code_lines(node):
    """Without the docstring: that of a verb is its help page."""
    first = node.body[0]
    has_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    text = first.end_lineno - first.lineno + 1 if has_text else 0
    return node.end_lineno - node.lineno + 1 - text


def bare_arguments(node):
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [
        entry.arg for entry in named if entry and not entry.annotation and entry.arg not in ("self", "cls")
    ]


def test_there_is_code():
    assert len(TEXTS) > 80
    assert sum(1 for _ in functions()) > 500


def test_files_are_short():
    counts = {name: len(text.splitlines()) for name, text in TEXTS.items()}
    assert {name: count for name, count in counts.items() if count > FILE_LINES} == {}
    assert statistics.quantiles(counts.values(), n=10)[-1] <= USUAL_FILE_LINES


def test_functions_are_short():
    assert {name: code_lines(node) for name, node in functions() if code_lines(node) > FUNCTION_LINES} == {}


def test_modules_have_names_that_say_something():
    assert [name for name in TEXTS if DRAWERS & {*Path(name).with_suffix("").parts}] == []


def test_functions_are_annotated():
    assert [name for name, node in functions() if node.returns is None or bare_arguments(node)] == []


def test_modules_and_public_names_say_what_they_are():
    silent = [name for name, module in MODULES.items() if not ast.get_docstring(module)]
    for name, module in MODULES.items():
        named = [node for node in module.body if isinstance(node, Function | ast.ClassDef)]
        silent += [
            f"{name}: {node.name}"
            for node in named
            if not node.name.startswith("_") and not ast.get_docstring(node)
        ]
    assert silent == []


def test_no_loose_ends():
    assert lines_with(FORBIDDEN, TEXTS) == []


@pytest.mark.parametrize(("line", "loose"), [("# TODO later", True), ("# TODO(#12): later", False)])
def test_loose_ends_are_known_when_seen(line, loose):
    assert bool(FORBIDDEN.search(line)) is loose


def test_environment_variables_are_read_in_few_places():
    elsewhere = [name for name in TEXTS if not name.startswith(MAY_READ_VARIABLES)]
    assert lines_with(READS_VARIABLES, elsewhere) == []
    assert len(elsewhere) < len(TEXTS)
    assert lines_with(READS_VARIABLES, ["cluster/rank.py"])
