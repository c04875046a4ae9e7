"""Timings on disk: found again under the same circumstances only, and never trusted blindly."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from syncline.calibration.cache import Circumstances, Timings, read_timings, write_timings

HERE = Circumstances(machine="m", device="d", torch="2.13", threads=1, ranks=2, links="local")
KNOWN = Timings(ops={"aten.relu.default 1": {"forward_s": 1.0}}, machine={"state 2": {"figures": {}}})


def test_timings_are_read_as_they_were_written(tmp_path: Path):
    write_timings(tmp_path / "new" / "folder", HERE, KNOWN)
    assert read_timings(tmp_path / "new" / "folder", HERE) == KNOWN
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [HERE.file_name]


@pytest.mark.parametrize("change", [{"torch": "2.14"}, {"ranks": 4}, {"threads": 2}, {"links": "2x1@1gbit"}])
def test_other_circumstances_know_nothing(tmp_path: Path, change: dict[str, Any]):
    write_timings(tmp_path, HERE, KNOWN)
    assert read_timings(tmp_path, dataclasses.replace(HERE, **change)) == Timings()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "circumstances": {}}', "\x00\xff"]
)
def test_a_broken_file_is_ignored_with_a_note_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
):
    path = tmp_path / HERE.file_name
    path.write_text(text, encoding="latin-1")
    assert read_timings(tmp_path, HERE) == Timings()
    assert f"{path} cannot be used" in capsys.readouterr().err
    write_timings(tmp_path, HERE, KNOWN)
    assert read_timings(tmp_path, HERE) == KNOWN


def test_where_nothing_can_be_written_a_note_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("")
    write_timings(tmp_path / "file", HERE, KNOWN)
    assert "cannot be kept" in capsys.readouterr().err
