"""Real benchmarks: what they leave in their folder, how they go on, and that their figures can be trusted."""

import csv
import json
import shutil
import statistics
from pathlib import Path

import pytest
from timed_model import SLEEP_S

from command import SYNCLINE, run_command
from made_once import made_once
from syncline.benchmark.curves import read_course
from syncline.benchmark.environment import read_environments
from syncline.benchmark.row import read_rows
from syncline.benchmark.running import LEAST_STEPS
from syncline.cli.app import run
from syncline.training.measurements import WARM_UP_STEPS

pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
SUITE = """
models = ["timed_model:build"]
strategies = ["single", "data", "sharded:group=3", "daso:node-size=1"]
batch = 8
target_loss = 9.0

[budget]
steps = 24

[train]
data = "synthetic"

[train.evaluation]
batches = 1
"""
MODEL = "timed_model:build"


def bench(folder, *arguments, budget="steps = 24"):
    (folder / "suite.toml").write_text(SUITE.replace("steps = 24", budget))
    command = (*SYNCLINE, "bench", "suite.toml", *arguments)
    return run_command(*command, folder=folder, paths=(HERE,), timeout_s=240)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of a benchmark, and what its command showed."""

    def make(folder):
        ended = bench(folder, "-o", "out", "--json")
        assert ended.returncode == 0, ended.stderr
        return folder, ended

    return made_once(tmp_path_factory, "bench", make)


@pytest.fixture
def out(done, tmp_path):
    """A copy of the benchmark's folder."""
    return Path(shutil.copytree(done[0] / "out", tmp_path / "out"))


def test_every_cell_is_a_row_and_a_failed_one_has_its_reason(done):
    folder, ended = done
    told = json.loads(ended.stdout)
    rows = {row["label"]: row for row in told["rows"]}
    assert {label: row["status"] for label, row in rows.items()} == {
        "single": "ok",
        "data": "ok",
        "sharded:group=3": "failed",
        "daso:node-size=1": "ok",
    }
    assert "does not divide the 2 ranks" in rows["sharded:group=3"]["reason"]
    assert rows["single"]["eval_loss"] == pytest.approx(rows["data"]["eval_loss"], rel=1e-5)
    assert (folder / "out" / "report.html").exists()
    assert (folder / "out" / "runs" / rows["data"]["cell"] / "summary.json").exists()
    assert MODEL in told["verdicts"][0]["headline"]


def test_progress_is_a_line_for_each_cell_with_the_time_left(done):
    lines = [line for line in done[1].stderr.splitlines() if line.startswith("[")]
    assert [line[:5] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert all(line.endswith("left") for line in lines)
    assert "ms/step" in lines[0]
    # The loss that the table shows too.
    row = next(one for one in read_rows(done[0] / "out") if one.label == "single")
    assert f"loss {row.eval_loss:.4f}" in lines[0]
    assert "failed" in lines[2]


def test_rows_have_measured_figures(done):
    row = next(one for one in read_rows(done[0] / "out") if one.label == "data")
    assert row.breakdown is not None
    assert row.memory_by_kind is not None
    assert row.sustained_step_s is not None
    assert row.breakdown["compute_s"] > 0
    # The model sleeps between its ops: nothing runs, and nothing is waited for.
    assert row.breakdown["overhead_s"] > 0.03
    weights = 4 * (16 * 32 + 32 + 32 * 4 + 4)
    assert (row.memory_by_kind["weights"], row.memory_by_kind["gradients"]) == (weights, weights)
    assert row.memory_by_kind["activations"] > 0
    assert row.sent_bytes is not None
    assert sum(row.sent_bytes.values()) > row.steps * weights
    assert row.samples_to_target == 80
    assert row.device_s_to_target == pytest.approx((row.time_to_target_s or 0) * row.devices)
    assert [point[0] for point in row.curve] == [8.0 * step for step in range(1, 25)]
    assert sorted(line["rank"] for line in row.timeline) == [0, 1]


def test_the_same_suite_gives_the_same_losses(done, tmp_path):
    ended = bench(tmp_path, "--only", "single,data,daso", "-o", "again")
    assert ended.returncode == 0, ended.stderr
    assert "The report: again/report.html" in ended.stdout
    before = {row.label: row for row in read_rows(done[0] / "out")}
    again = read_rows(tmp_path / "again")
    assert [row.label for row in again] == ["single", "data", "daso:node-size=1"]
    for row in again:
        assert [point[2] for point in row.curve] == [point[2] for point in before[row.label].curve]
        assert row.eval_loss == before[row.label].eval_loss


def own_clock(folder, row):
    """When the model was called to train, by its own clock."""
    # The process that captures the model for predictions calls it too, but only once or twice.
    noted = [path.read_text().split() for path in folder.glob(f"calls-{row.world_size}-0-*.txt")]
    # Nothing in the notes tells runs on as many ranks apart but their order.
    return min([float(line) for line in lines] for lines in noted if len(lines) == row.steps)


@pytest.mark.parametrize("label", ["single", "data"])
def test_step_times_agree_with_another_clock(done, label):
    """Both clocks look at the very same steps: a machine that is busy with something else slows both."""
    (row,) = [row for row in read_rows(done[0] / "out") if row.label == label]
    course = read_course(done[0] / "out" / "runs" / row.cell)
    calls = own_clock(done[0], row)
    pairs = [
        (course.step_s[step], calls[step + 1] - calls[step])
        for step in range(WARM_UP_STEPS, row.steps - 1)
        if not course.inspected[step] and not course.inspected[step + 1]
    ]
    assert len(pairs) >= 10
    told, own = (sum(times) for times in zip(*pairs, strict=True))
    assert told == pytest.approx(own, rel=0.2)
    assert told > len(pairs) * SLEEP_S
    # What is shown is the usual time of those steps.
    assert min(course.steady_step_s()) <= (row.sustained_step_s or 0.0) <= max(course.steady_step_s())
    assert row.sustained_step_s == statistics.median(row.group_step_s)
    assert statistics.mean(row.group_step_s) == pytest.approx(statistics.mean(course.steady_step_s()[:12]))


def test_a_budget_in_seconds_gives_as_many_steps_as_fit(tmp_path):
    ended = bench(tmp_path, "--only", "single", "-o", "out", budget="seconds = 2")
    assert ended.returncode == 0, ended.stderr
    (row,) = read_rows(tmp_path / "out")
    # A call sleeps for 40 ms, and longer on a busy machine.
    assert LEAST_STEPS <= row.steps <= 2 / SLEEP_S
    assert row.samples == 8 * row.steps
    course = read_course(tmp_path / "out" / "runs" / row.cell)
    assert (len(course.losses), sum(course.inspected)) == (row.steps, 7)


def test_resume_runs_only_what_is_not_done(done, out, monkeypatch, capfd):
    monkeypatch.chdir(done[0])
    monkeypatch.syspath_prepend(str(HERE))
    assert run(["bench", "suite.toml", "-o", str(out), "--resume"]) == 0
    shown = capfd.readouterr()
    assert "3 of 4 cells are done already" in shown.err
    assert [row.label for row in read_rows(out)] == ["single", "data", "daso:node-size=1", "sharded:group=3"]
    assert len((out / "results.jsonl").read_text().splitlines()) == 5
    assert len({row.start for row in read_rows(out)}) == len(read_environments(out)) == 2
    assert run(["bench", "suite.toml", "-o", str(out)]) == 2
    assert "never overwrites another" in capfd.readouterr().err
    assert run(["bench", "suite.toml", "-o", str(out), "--resume", "--ranks", "4"]) == 2
    assert "cannot be compared" in capfd.readouterr().err


def change_rows(folder, change):
    path = folder / "results.jsonl"
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def slower(row):
    return row | {"group_step_s": [2 * seconds for seconds in row["group_step_s"]]}


def test_compare_exits_3_when_something_got_worse(done, out, capsys):
    old = str(done[0] / "out")
    assert run(["report", str(out), "--compare", old]) == 0
    assert "Nothing changed beyond noise" in capsys.readouterr().out
    change_rows(out, slower)
    assert run(["report", str(out), "--compare", old]) == 3
    assert "worse" in capsys.readouterr().out
    assert run(["report", old, "--compare", str(out), "-o", str(out / "better.html"), "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert any(one["better"] for one in changes)


def test_reports_merge_and_rows_are_exported(done, out, tmp_path, capsys):
    change_rows(out, lambda row: row | {"model": "another", "cell": "another-" + row["cell"]})
    page, table = tmp_path / "both.html", tmp_path / "rows.csv"
    assert run(["report", str(done[0] / "out"), str(out), "-o", str(page), "--csv", str(table)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert "another, 2 ranks on this machine" in page.read_text()
    with table.open(newline="") as file:
        assert len(list(csv.reader(file))) == 1 + 8


def test_mistakes_are_explained(workfolder, capsys):
    assert run(["report", "nowhere"]) == 2
    assert "no benchmark in it" in " ".join(capsys.readouterr().err.split())
    assert run(["report"]) == 2
    assert "Which benchmark?" in capsys.readouterr().err
    (workfolder / "results.jsonl").write_text('{"strategy": "data"}\n')
    assert run(["report", "."]) == 2
    assert "line 1" in capsys.readouterr().err
    assert run(["bench", "nowhere.toml"]) == 2
    assert "There is no file nowhere.toml" in capsys.readouterr().err


@pytest.fixture
def workfolder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path
