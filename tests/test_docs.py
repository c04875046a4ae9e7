"""The documentation says what the code does: settings, figures, links and code."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline.training.config import TrainConfig
from syncline.training.summary import Summary

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([\w.]+)` \| (.+?) \| (.+) \|$", re.MULTILINE)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def settings(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that a file of settings may have, with its default."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        tables = (hints[field.name], *typing.get_args(hints[field.name]))
        table = next((part for part in tables if dataclasses.is_dataclass(part)), None)
        if isinstance(table, type):
            yield from settings(table, f"{field.name}.")
        else:
            yield f"{prefix}{field.name}", field.default


def shown(default: Any) -> str:
    if default is dataclasses.MISSING:
        return "required"
    return "none" if default is None else f"`{json.dumps(default)}`"


def anchors(page: Path) -> set[str]:
    """What a link to a heading of a page can name."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_setting_is_in_the_table_with_its_default():
    text = (ROOT / "docs" / "first-run.md").read_text(encoding="utf-8")
    told = {key: default for key, default, _ in ROW.findall(text)}
    wanted = {key: shown(default) for key, default in settings(TrainConfig)}
    assert {key: told.get(key) for key in wanted} == wanted


def test_every_key_of_the_summary_is_explained():
    text = (ROOT / "docs" / "first-run.md").read_text(encoding="utf-8")
    rows = {
        key for row in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)
    }
    assert {field.name for field in dataclasses.fields(Summary)} <= rows


@every_page
def test_links_resolve(page: Path):
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        pointed = (page.parent / file).resolve() if file else page
        assert pointed.exists(), f"{page.name} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(pointed), f"{page.name} links to {target}: no such heading"


@every_page
def test_python_in_the_documentation_compiles(page: Path):
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(code, page.name, "exec")
