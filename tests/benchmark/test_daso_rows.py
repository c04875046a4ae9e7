"""The benchmark of training across slow links: what stands in it for what cannot run here."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SETTING = {
    "model": "m",
    "batch": 8,
    "steps": 40,
    "clip_norm": None,
    "adamw_rate": None,
    "cluster": "2x1@1gbit",
}


@pytest.fixture(autouse=True)
def _benchmarks_path(monkeypatch):
    """The folder of benchmarks is no package: its modules are imported by their bare names."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(BENCHMARKS)):
            del sys.modules[name]


def test_torchft_runs_where_it_is_installed_on_one_rank_a_node(monkeypatch):
    from daso import contenders
    from daso_torchft import TORCHFT, skip_reason

    assert tuple(contenders("2x1@100mbit")[-2:]) == TORCHFT
    assert all(skip_reason(name, "2x2@1gbit") is None for name in contenders("2x2@1gbit")[:-2])
    for name in TORCHFT:
        assert "one rank a node" in (skip_reason(name, "2x2@1gbit") or "")
        monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
        assert skip_reason(name, "2x1@1gbit") == "torchft is not installed"
        monkeypatch.setattr(importlib.util, "find_spec", lambda package: object())
        assert skip_reason(name, "2x1@1gbit") is None


def test_what_was_skipped_is_a_row_unless_it_has_figures_of_another_time():
    from daso_rows import line_of, skipped_rows

    cells = [
        SETTING | {"strategy": name, "seed": seed, "reason": "torchft is not installed"}
        for name in ("torchft:diloco", "torchft:local-sgd")
        for seed in range(3)
    ]
    (row,) = skipped_rows(cells, [SETTING | {"strategy": "torchft:diloco", "seeds": 3}])
    assert (row["strategy"], row["seeds"]) == ("torchft:local-sgd", 0)
    assert line_of(row).endswith("skipped: torchft is not installed")


def test_a_record_keeps_what_was_measured_elsewhere(tmp_path):
    import daso_record
    from daso_settings import TASKS

    (cluster, (task, other, *_)) = next(iter(TASKS.items()))
    names = ("model", "batch", "steps", "clip_norm", "adamw_rate")
    setting, another = ({name: getattr(one, name) for name in names} for one in (task, other))
    origin = {"date": "2020-01-01", "commit": "old", "machine": {"cpu": "slow"}}
    pace = {"model": other.model, "batch": other.batch, "cluster": cluster}
    path = tmp_path / "record.json"
    rows = [
        one | {"cluster": cluster, "strategy": strategy, "total_s": 1.0}
        for one, strategy in ((setting, "data"), (another, "data"), (setting | {"steps": 7}, "data"))
    ]
    path.write_text(json.dumps(origin | {"rows": rows, "exposure": [], "pace": [pace]}))
    now = {"date": "2021-01-01", "commit": "new", "cpu": "fast"}
    figures = {"rows": [rows[0] | {"total_s": 2.0, "measured": now}], "exposure": [], "pace": []}
    joined = daso_record.join_records(path, figures)
    # What was measured anew replaces its setting, and what is no task any more goes.
    found = {(row["model"], row["total_s"], row["measured"]["commit"]) for row in joined["rows"]}
    assert found == {(task.model, 2.0, "new"), (other.model, 1.0, "old")}
    assert [each["measured"]["cpu"] for each in joined["pace"]] == ["slow"]


def test_a_row_is_of_the_time_of_its_latest_training():
    from daso_rows import rows_of

    cells = [
        SETTING
        | {"strategy": "data", "seed": seed, "status": "failed", "reason": "out of memory"}
        | {"measured": {"date": date, "commit": commit, "cpu": "c"}}
        for seed, date, commit in ((0, "2021-01-02", "new"), (1, "2021-01-01", "old"))
    ]
    (row,) = rows_of(cells)
    assert (row["seeds"], row["measured"]["commit"]) == (2, "new")


def test_the_page_has_the_tables_of_the_record():
    from daso_table import KINDS, PAGE, RECORD, table_of

    rows = json.loads(RECORD.read_text())["rows"]
    for kind in KINDS:
        assert table_of(rows, kind) in PAGE.read_text(), "run benchmarks/daso_table.py"


def test_a_seed_that_misses_its_target_counts_as_never_there():
    from daso_rows import rows_of

    def cell(strategy, seed, fall_s):
        """Losses that fall by one in so many seconds, over a hundred steps of a second."""
        losses = [100 - step / fall_s for step in range(100)]
        told = {"losses": losses, "time_s": list(range(100)), "status": "ok", "seed": seed}
        told |= {"median_step_s": 1.0, "network_bytes": 1, "eval_loss": losses[-1], "strategy": strategy}
        return SETTING | told | {"measured": {"date": "2026-01-01"}}

    base = [cell("data", seed, 2.0) for seed in range(3)]
    often = [cell("daso", seed, fall_s) for seed, fall_s in enumerate((1.0, 1.0, 4.0))]
    seldom = [cell("local-sgd", seed, fall_s) for seed, fall_s in enumerate((1.0, 4.0, 4.0))]
    rows = {row["strategy"]: row for row in rows_of([*base, *often, *seldom])}
    assert {name: row["reached"] for name, row in rows.items()} == {"data": 3, "daso": 2, "local-sgd": 1}
    assert rows["data"]["less_time"] == 0
    assert rows["daso"]["less_time"] == pytest.approx(0.45, abs=0.05)
    assert rows["local-sgd"]["less_time"] is None
    assert rows["local-sgd"]["time_to_target_s"] is None


def test_a_table_tells_what_was_not_reached_not_run_or_run_seldom():
    from daso_table import table_of, with_tables

    base = SETTING | {"model": "gpt2-tiny:width=256,seq=32", "strategy": "data"}
    base |= {"seeds": 3, "reached": 3, "less_time": 0.0, "total_s": 41.7, "eval_loss": 2.5}
    good = base | {"strategy": "daso", "less_time": 0.404, "total_ratio": 0.5, "eval_loss_ratio": 0.9996}
    missed = good | {
        "strategy": "local-sgd",
        "less_time": None,
        "seeds": 1,
        "reached": 0,
        "eval_loss_ratio": 1.0132,
    }
    seldom = good | {"strategy": "diloco:sync-every=16", "reached": 2, "eval_loss_ratio": 1.01}
    slower = good | {"strategy": "data:compress=fp16", "less_time": -0.18, "eval_loss_ratio": 0.99}
    skipped = base | {"strategy": "torchft:diloco", "skipped": "torchft is not installed"}
    rows = [base, good, missed, seldom, slower, skipped]
    table = table_of(rows, "gpt2")
    for line in (
        "| `data` |  |  | 42 s, 2.500 |",
        "| `daso` |  |  | 40 %, 0.0 % |",
        "| `local-sgd` |  |  | – (0.50), +1.3 % (1 seed) |",
        "| `diloco:sync-every=16` |  |  | 40 %, +1.0 % (2 of 3 seeds) |",
        "| `data:compress=fp16` |  |  | −18 %, −1.0 % |",
        "| `torchft:diloco` |  |  |  |",
    ):
        assert f"\n{line}" in table
    own = "| strategy | waits |\n| --- | --- |\n| `daso` | no |\n"
    page = f"{own}\n{{}}\nbetween\n\n{table_of([], 'resnet18')}\nafter\n"
    # One with fewer columns, as it was before a setting came along.
    before = "| strategy | 2×1, 100 Mbit/s, 0.9 MB |\n| --- | --- |\n| `daso` | 49 %, 0.0 % |\n"
    assert with_tables(page.format(before), rows) == page.format(table)
