"""What is made of measured figures: estimates, curves, scaling, sentences, verdicts, comparisons."""

import csv
import dataclasses
import io

import pytest
from measured_rows import failed_row, make_row
from rich.console import Console

from syncline.benchmark.comparison import compare
from syncline.benchmark.csv_file import to_csv
from syncline.benchmark.curves import Course
from syncline.benchmark.entries import contests, make_entries
from syncline.benchmark.hindrance import what_hinders
from syncline.benchmark.report.points import front
from syncline.benchmark.report.table import HEADINGS, table_rows
from syncline.benchmark.scaling import scale
from syncline.benchmark.steady import estimate, group_means
from syncline.benchmark.taxonomy import taxonomy
from syncline.benchmark.verdict import judge
from syncline.cli.bench_view import show_contests
from syncline.strategies.registry import STRATEGIES, parse_strategy


def entry_of(row, *others):
    return make_entries([row, *others])[0]


def test_a_step_in_four_counts_where_the_median_would_leave_it_out():
    steps = [0.1, 0.1, 0.1, 0.5] * 4
    found = estimate(group_means(steps, parse_strategy("daso:sync-every=4,node-size=1")))
    assert found is not None
    assert found.value == pytest.approx(0.2)
    assert found.spread == pytest.approx(0.0)


def test_groups_are_whole_periods():
    assert len(group_means([1.0] * 23, parse_strategy("local-sgd:sync-every=8"))) == 2
    assert len(group_means([1.0] * 23, parse_strategy("data"))) == 5
    assert group_means([1.0, 3.0], parse_strategy("data")) == [2.0]


def test_intervals_show_noise_and_are_the_same_each_time():
    noisy = [1.0, 2.0, 1.5, 1.2, 1.8]
    found = estimate(noisy)
    assert found is not None
    assert found.interval is not None
    low, high = found.interval
    assert low < found.value == 1.5 < high
    assert estimate(noisy) == found
    assert estimate([]) is None


def test_one_or_two_groups_have_no_interval_and_are_trusted_to_a_tenth():
    one = estimate([2.0])
    assert one is not None
    assert one.interval is None
    assert one.show_spread() == "?"
    assert one.bounds == pytest.approx((1.8, 2.2))
    assert one.noise == pytest.approx(0.1)


def test_inspected_steps_do_not_count_as_time():
    course = Course(
        samples=[8 * (step + 1) for step in range(12)],
        losses=[5.0 - 0.1 * step for step in range(12)],
        step_s=[9.0, 9.0, 9.0, 1.0, 1.0, 7.0, 7.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        inspected=[step in (5, 6) for step in range(12)],
    )
    assert course.steady_step_s() == [1.0] * 7
    assert course.times_s(1.0)[-1] == pytest.approx(27 + 9)
    assert course.reached(4.55) == 9
    assert course.reached(1.0) is None
    assert course.curve(1.0)[0] == [8.0, 9.0, 5.0]


def test_seeds_are_taken_together():
    entry = entry_of(make_row(step_s=0.1, loss=3.0), make_row(step_s=0.3, seed=1, loss=3.2))
    assert entry.step is not None
    assert entry.step.value == pytest.approx(0.2, rel=0.05)
    low, high = entry.step.bounds
    assert low < 0.11 < 0.29 < high
    assert entry.loss == pytest.approx(3.1)


def test_a_target_counts_when_every_seed_reaches_it():
    reached, missed = make_row(time_to_target_s=2.0), make_row(seed=1)
    both = entry_of(reached, make_row(seed=1, time_to_target_s=4.0))
    assert both.median_of_all(lambda row: row.time_to_target_s) == 3.0
    assert entry_of(reached, missed).median_of_all(lambda row: row.time_to_target_s) is None


def test_scaling_is_by_device():
    single = make_row("single", step_s=0.2, devices=1)
    data = make_row("data", step_s=0.125, devices=2)
    (scaled,) = scale(make_entries([single, data]))
    assert scaled.speedup == pytest.approx(1.6)
    assert scaled.efficiency == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("exposed_comm_s", "Communication that nothing hides takes 50% of a step (50 ms); 1.0 MB are sent"),
        ("bubble_s", "Ranks wait 50% of a step (50 ms) while another one computes"),
        ("overhead_s", "Overhead between ops takes 50% of a step (50 ms)"),
        ("data_s", "Fetching batches takes 50% of a step (50 ms)"),
        ("compute_s", "Almost nothing: 100% of a step is computing"),
    ],
)
def test_the_largest_cause_is_named_with_its_figures(cause, words):
    parts = dict.fromkeys(("compute_s", "exposed_comm_s", "bubble_s", "overhead_s", "data_s"), 0.0)
    parts["compute_s"] = 0.05
    parts[cause] += 0.05
    entry = entry_of(make_row(breakdown=parts))
    assert words in what_hinders(entry, [entry])


def test_work_done_twice_and_learning_less_are_told(rows):
    entries = make_entries(rows)
    local = next(one for one in entries if one.label == "local")
    told = what_hinders(local, entries)
    assert "loss 3.400, exact training 3.000" in told
    twice = make_row("local", exact=False, breakdown={**rows[0].breakdown, "compute_s": 0.12})
    assert "2.0 times the computing" in what_hinders(entry_of(twice), make_entries([rows[0], twice]))
    failed = next(one for one in entries if one.label == "pipeline")
    assert "Rank 1 ended with exit code 1" in what_hinders(failed, entries)


def test_the_verdict_names_the_fastest_exact_strategy(rows):
    ((place, members),) = contests(make_entries(rows))
    verdict = judge(place, members)
    assert (
        verdict.headline
        == "gpt2-tiny, 2 ranks on this machine: use planned: 2.00 × data parallel, same loss."
    )
    told = " ".join(verdict.details)
    assert "local is 1.25 × as fast, with a loss of 3.400 against 3.000" in told
    assert "sharded takes the least memory: 41.0 MB" in told
    assert "pipeline failed: Rank 1 ended" in told


def weak_rows():
    """Weak scaling: the reference has half the batch, a shorter step, and less speed."""
    parts = {"compute_s": 0.03, "exposed_comm_s": 0.0, "bubble_s": 0.0, "overhead_s": 0.0, "data_s": 0.0}
    lean = {"peak_memory_bytes": [70_000_000], "samples": 320, "breakdown": parts}
    return [
        make_row("single", step_s=0.08, batch=8, scaling="weak", **lean),
        make_row("data", step_s=0.1, batch=16, scaling="weak", breakdown=parts | {"compute_s": 0.06}),
        make_row("local", step_s=0.09, batch=16, scaling="weak", exact=False, loss=3.4),
    ]


def test_strategies_are_compared_by_the_sample_not_by_the_step():
    entries = make_entries(weak_rows())
    _, data, local = entries
    ((place, members),) = contests(entries)
    verdict = judge(place, members)
    assert verdict.best is data
    assert "nothing exact is faster" in verdict.headline
    assert "single" not in " ".join(verdict.details)
    assert [one.label for one in front(entries)] == ["data"]
    rows = table_rows(members, scale(entries))
    assert [row.entry.label for row in rows] == ["local", "data", "single"]
    relative = [name for name, _ in HEADINGS].index("× data")
    assert [row.cells[relative].text for row in rows] == ["1.11", "1.00", "0.62"]
    assert [row.cells[1].value for row in rows] == pytest.approx([0.09, 0.1, 0.08])
    assert "times the computing" not in what_hinders(data, entries)
    assert "from the same samples: loss 3.400" in what_hinders(local, [data, local])


def test_the_terminal_lists_the_fastest_by_the_sample_first():
    console = Console(file=io.StringIO(), width=200)
    ((place, members),) = contests(make_entries(weak_rows()))
    with console.capture() as shown:
        show_contests([(judge(place, members), members)], console)
    assert [line.split()[0] for line in shown.get().splitlines()[1:4]] == ["≈", "data", "single"]


def test_a_narrow_terminal_cuts_no_figure():
    console = Console(file=io.StringIO(), width=64)
    rows = [make_row("data"), make_row("pipeline:schedule=zero-bubble,microbatches=16")]
    ((place, members),) = contests(make_entries(rows))
    with console.capture() as shown:
        show_contests([(judge(place, members), members)], console)
    assert "…" not in shown.get()
    assert shown.get().count("3.0000") == 2


def test_the_same_strategy_with_another_batch_has_another_name():
    rows = [make_row("data"), make_row("data", batch=32, step_s=0.15, cell="larger"), make_row("zero1")]
    weak = make_row("single", batch=8, scaling="weak", cell="weak")
    assert [one.name for one in make_entries([make_row("single"), weak])] == [
        "single (batch 16)",
        "single (batch 8)",
    ]
    entries = make_entries(rows)
    assert [one.name for one in entries] == ["data (batch 16)", "data (batch 32)", "zero1"]
    assert [one.short for one in entries] == ["data (batch 16)", "data (batch 32)", "zero1"]
    ((place, members),) = contests(entries)
    assert judge(place, members).best is entries[1]


def test_less_learning_is_not_from_the_same_samples_with_a_budget_in_seconds():
    rows = [make_row("data"), make_row("local", exact=False, loss=3.4, samples=900)]
    entries = make_entries(rows)
    told = what_hinders(entries[1], entries)
    assert "more loss, after 900 samples, not 640: loss 3.400, exact training 3.000" in told


def test_the_verdict_does_not_choose_within_noise_silently():
    rows = [make_row("data", step_s=0.1), make_row("zero1", step_s=0.1005)]
    ((place, members),) = contests(make_entries(rows))
    verdict = judge(place, members)
    assert "nothing exact is faster" in verdict.headline
    assert "Within noise of it is zero1." in verdict.details


def test_no_other_learning_rule_is_proposed_for_a_gain_within_noise():
    for step_s, proposed in ((0.0995, False), (0.09, True)):
        rows = [make_row("data", step_s=0.1), make_row("local", step_s=step_s, exact=False)]
        ((place, members),) = contests(make_entries(rows))
        told = " ".join(judge(place, members).details)
        assert ("If another learning rule will do" in told) is proposed


@pytest.mark.parametrize(
    ("samples", "words"), [(640, "after the same samples"), (900, "after 900 samples, not 640")]
)
def test_a_verdict_says_when_budgets_in_seconds_gave_other_samples(samples, words):
    rows = [make_row("data"), make_row("daso", step_s=0.05, exact=False, samples=samples)]
    ((place, members),) = contests(make_entries(rows))
    assert any(words in line for line in judge(place, members).details)


def test_the_front_is_of_what_nothing_exact_beats(rows):
    assert [one.label for one in front(make_entries(rows))] == ["planned", "sharded"]


@pytest.mark.parametrize(
    ("new", "worse"),
    [
        (make_row(step_s=0.105), []),
        (make_row(step_s=0.13), ["step_s"]),
        (make_row(step_s=0.05), []),
        (make_row(peak_memory_bytes=[70_000_000]), ["peak_memory_bytes"]),
        (make_row(sent_bytes={"node": 80_000_000}), ["sent_bytes"]),
        (make_row(loss=3.01), ["loss"]),
        (failed_row("data"), ["step_s"]),
    ],
    ids=["noise", "slower", "faster", "memory", "traffic", "loss", "failed"],
)
def test_what_counts_as_worse(new, worse):
    changes = compare(make_entries([make_row()]), make_entries([new]))
    assert [one.figure for one in changes if one.is_worse] == worse


def test_noise_is_wider_where_steps_differ_more():
    shaky = dataclasses.replace(make_row(), group_step_s=[0.07, 0.1, 0.13, 0.09, 0.11])
    changes = compare(make_entries([shaky]), make_entries([make_row(step_s=0.118)]))
    assert not any(one.is_worse for one in changes)
    changes = compare(make_entries([make_row()]), make_entries([make_row(step_s=0.118)]))
    assert any(one.is_worse for one in changes)


def test_one_seed_that_no_longer_runs_is_worse():
    seeds = [make_row(seed=seed) for seed in range(3)]
    old, broken = make_entries(seeds), [*seeds[:2], failed_row("data", seed=2, reason="")]
    (lost,) = [one for one in compare(old, make_entries(broken)) if one.is_worse]
    assert (lost.figure, lost.note) == ("step_s", "seed 2 failed: no reason was given")
    assert not any(one.is_worse for one in compare(make_entries(broken), old))
    assert not any(one.is_worse for one in compare(make_entries(broken), make_entries(broken)))


def test_only_what_both_have_is_compared():
    assert compare(make_entries([make_row("data")]), make_entries([make_row("zero1")])) == []


def test_rows_as_csv(rows):
    lines = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [line["label"] for line in lines] == [row.label for row in rows]
    assert float(lines[1]["sustained_step_s"]) == 0.1
    assert float(lines[1]["breakdown.exposed_comm_s"]) == 0.02
    assert lines[1]["peak_memory_bytes.1"] == "61000000"
    assert "curve" not in lines[0]


def test_every_strategy_has_its_place_among_the_kinds_of_parallelism():
    entries = make_entries([make_row(name, exact=kind.exact) for name, kind in STRATEGIES.items()])
    assert [row.name for row in taxonomy(entries)] == list(STRATEGIES)
    assert [row.name for row in taxonomy(entries) if row.kind.kind == "not classified"] == []


def test_options_that_change_the_guarantee_are_a_kind_of_their_own():
    labels = ("data", "data:bucket=8", "data:compress=powersgd")
    entries = make_entries([make_row(label, exact="compress" not in label) for label in labels])
    found = [(row.name, row.exact) for row in taxonomy(entries)]
    assert found == [("data", True), ("data:compress=powersgd", False)]


def test_frameworks_that_are_not_installed_are_one_line_of_the_verdict():
    peers = [failed_row(name, status="skipped", framework="ray") for name in ("ddp", "fsdp2")]
    broken = failed_row("ddp", framework="accelerate")
    ((place, members),) = contests(make_entries([make_row("data"), *peers, broken]))
    told = [line for line in judge(place, members).details if "skipped" in line or "failed" in line]
    assert told == [
        "accelerate: ddp failed: Rank 1 ended with exit code 1.",
        "2 of other frameworks were skipped; what holds each back says why.",
    ]
