"""Folders of benchmarks: what is kept in them, how they are taken up, merged and compared, and mistakes."""

import dataclasses
import json

import pytest
from measured_rows import failed_row, make_environment, make_row

from syncline.benchmark import protocol, running
from syncline.benchmark.environment import ENVIRONMENT_FILE, read_environments, write_environment
from syncline.benchmark.folder import open_folder
from syncline.benchmark.row import RESULTS_FILE, append_row, read_rows
from syncline.benchmark.suite import Budget, Suite
from syncline.benchmark.suite_file import suite_text
from syncline.benchmark.writing import merged_rows
from syncline.cli.app import run
from syncline.errors import ConfigError

SUITE = """
models = ["gpt2-tiny"]
strategies = ["single", "data"]

[budget]
steps = 40
"""


@pytest.fixture
def workfolder(tmp_path, monkeypatch):
    """Where commands run; a training ends at once, as if Ctrl-C was pressed."""

    def start_training(config, folder):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "start_training", start_training)
    monkeypatch.setattr(protocol, "look_around", make_environment)
    (tmp_path / "mine.toml").write_text(SUITE)
    return tmp_path


@pytest.fixture
def shown(capsys, monkeypatch):
    """What was shown since, as one line of words."""
    monkeypatch.setenv("COLUMNS", "200")

    def read():
        told = capsys.readouterr()
        return " ".join((told.out + told.err).replace("│", " ").split())

    return read


def keep(folder, *rows):
    folder.mkdir(exist_ok=True)
    for row in rows:
        append_row(row, folder)
    return folder


def test_resume_needs_to_know_where_and_names_the_newest_folder(workfolder, shown):
    assert run(["bench", "mine.toml", "--resume"]) == 2
    assert "There is none of this suite below bench" in shown()
    assert run(["bench", "mine.toml", "--only", "data"]) == 130
    go_on = "syncline bench mine.toml --only data --resume -o bench/mine-001"
    assert f"stopped; go on with: {go_on}" in shown()
    assert run(["bench", "mine.toml", "--only", "data", "--resume"]) == 2
    assert f"The newest of this suite is bench/mine-001: {go_on}" in shown()
    assert [path.name for path in (workfolder / "bench").iterdir()] == ["mine-001"]
    assert run(go_on.split()[1:]) == 130
    assert len(read_environments(workfolder / "bench" / "mine-001")) == 2


def test_every_start_is_kept_and_one_of_the_old_form_is_read(tmp_path):
    assert read_environments(tmp_path) == []
    first, second = (make_environment(commit=commit) for commit in ("first", "second"))
    (tmp_path / ENVIRONMENT_FILE).write_text(json.dumps(dataclasses.asdict(first)))
    assert read_environments(tmp_path) == [first]
    write_environment(second, tmp_path)
    assert read_environments(tmp_path) == [first, second]


def test_a_row_that_a_crash_left_half_written_is_dropped(tmp_path):
    suite = Suite(name="small", models=("mlp",), strategies=("data",), budget=Budget(steps=24))
    open_folder(suite, tmp_path, resume=False)
    whole, half = make_row("data"), make_row("zero1")
    keep(tmp_path, whole, half)
    path = tmp_path / RESULTS_FILE
    path.write_bytes(path.read_bytes()[:-40])
    assert read_rows(tmp_path) == [whole]
    assert open_folder(suite, tmp_path, resume=True) == [whole]
    append_row(half, tmp_path)
    assert read_rows(tmp_path) == [whole, half]


def test_a_comparison_that_cannot_be_made_is_refused_before_the_run(workfolder, shown):
    assert run(["bench", "mine.toml", "--compare", "nowhere"]) == 2
    assert "no benchmark in it" in shown()
    old = keep(workfolder / "old", make_row("data", batch=32), failed_row("data"))
    assert run(["bench", "mine.toml", "--compare", str(old)]) == 2
    assert "has figures of no cell of the suite 'mine'" in shown()
    assert not (workfolder / "bench").exists()
    keep(old, make_row("data", cell="measured"))
    assert run(["bench", "mine.toml", "--compare", str(old)]) == 130


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-o", "."), ". is a folder, not a file to write"),
        (("-o", "mine.toml/report.html"), "mine.toml/report.html cannot be written"),
        (("--csv", "mine.toml/rows.csv"), "mine.toml/rows.csv cannot be written"),
        (("--csv", "old"), "old is a folder"),
    ],
)
def test_what_cannot_be_written_is_explained(workfolder, shown, flags, words):
    keep(workfolder / "old", make_row("data"))
    assert run(["report", "old", *flags]) == 2
    assert words in shown()
    assert not list(workfolder.rglob("*.partial"))


def test_folders_for_what_is_written_are_made(workfolder):
    keep(workfolder / "old", make_row("data"))
    assert run(["report", "old", "-o", "new/page.html", "--csv", "other/new/rows.csv"]) == 0
    assert (workfolder / "new" / "page.html").exists()
    assert (workfolder / "other" / "new" / "rows.csv").exists()


def test_results_that_are_no_text_are_explained(workfolder, shown):
    (workfolder / RESULTS_FILE).write_bytes(b"\xff\xfe\n")
    assert run(["report", "."]) == 2
    assert "results.jsonl cannot be read: 'utf-8' codec" in shown()


def test_cells_on_other_terms_are_not_merged(tmp_path):
    first, again, longer = (tmp_path / name for name in ("first", "again", "longer"))
    for folder, steps, loss in ((first, 40, 3.0), (again, 40, 2.9), (longer, 80, 2.0)):
        keep(folder, make_row("data", loss=loss))
        suite = Suite(name="small", models=("mlp",), strategies=("data",), budget=Budget(steps=steps))
        (folder / "suite.toml").write_text(suite_text(suite))
    assert [row.eval_loss for row in merged_rows([first, again])] == [2.9]
    with pytest.raises(ConfigError, match=r"another budget.*\n.*report of each"):
        merged_rows([first, longer])


def test_without_suites_measured_rows_tell_their_terms(tmp_path):
    first = keep(tmp_path / "first", make_row("data"))
    assert len(merged_rows([first, keep(tmp_path / "failed", failed_row("data"))])) == 1
    for name, change in (("data", {"data": "synthetic"}), ("samples", {"samples": 320})):
        with pytest.raises(ConfigError, match="other data"):
            merged_rows([first, keep(tmp_path / name, make_row("data", **change))])
