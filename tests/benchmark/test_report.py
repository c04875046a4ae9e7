"""The page, in a real browser: no errors, all figures drawn, the table sorts, a phone shows it."""

import json
import re
import shutil
import subprocess

import pytest
from measured_rows import make_environment, make_row

from syncline.benchmark.entries import make_entries
from syncline.benchmark.report.bars import causes
from syncline.benchmark.report.lines import loss_by_samples
from syncline.benchmark.report.page import report_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to look at the page with")

LISTEN = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
for (const kind of ["error", "warn"]) console[kind] = (...told) => problems.push(told.join(" "));
</script>"""
LOOK = """<script>
addEventListener("load", () => setTimeout(() => {
  const table = document.querySelector("table.sortable");
  const names = () => [...table.tBodies[0].rows].map((row) => row.querySelector(".name").textContent);
  const buttons = [...table.tHead.querySelectorAll("button")];
  const click = (text) => buttons.find((one) => one.textContent === text).click();
  const seen = {start: names()};
  click("strategy"); seen.byName = names();
  click("loss"); seen.byLoss = names();
  click("loss"); seen.byLossDown = names();
  const plots = [...document.querySelectorAll("figure .plotly-graph-div")];
  seen.figures = plots.map((plot) => [plot.id, plot.querySelectorAll(".trace, .points path, .point").length]);
  seen.width = document.documentElement.scrollWidth;
  seen.window = innerWidth;
  seen.problems = problems;
  seen.fetched = performance.getEntriesByType("resource").map((one) => one.name);
  parent.postMessage(JSON.stringify(seen), "*");
}, 1500));
</script>"""
# Chromium's own window is never narrower than 500 pixels; a frame can be as narrow as a phone.
FRAME = """<body><script>addEventListener("message", (event) => {
  const told = document.createElement("pre");
  told.id = "seen";
  told.textContent = event.data;
  document.body.append(told);
})</script><iframe src="report.html" style="width: WIDTHpx; height: 800px; border: 0"></iframe></body>"""
FIGURES = (
    "speed",
    "causes",
    "memory",
    "traffic",
    "loss-samples",
    "loss-time",
    "pareto",
    "predicted",
    "timeline",
)


@pytest.fixture
def page(rows):
    wider = [make_row("data", step_s=0.07, world_size=4, cell="wider"), make_row("<b>odd</b>", step_s=0.3)]
    return report_page([*rows, *wider], [make_environment()], title="a comparison")


def look(page, folder, *, width):
    """What a browser finds in the page, shown so wide."""
    shown = page.replace("<head>", f"<head>{LISTEN}").replace("</body>", f"{LOOK}</body>")
    (folder / "report.html").write_text(shown)
    path = folder / "frame.html"
    path.write_text(FRAME.replace("WIDTH", str(width)))
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom")
    profile = (f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND")
    size = ("--window-size=1400,900", "--virtual-time-budget=20000")
    ended = subprocess.run(
        [str(CHROMIUM), *flags, *profile, *size, path.as_uri()], capture_output=True, text=True, timeout=150
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', ended.stdout, re.DOTALL)
    assert found, ended.stderr[-2000:]
    return json.loads(found[1])


@needs_chromium
@pytest.mark.timeout(200)
def test_in_a_browser(page, tmp_path):
    seen = look(page, tmp_path, width=1200)
    assert seen["problems"] == []
    assert seen["fetched"] == []
    drawn = dict(seen["figures"])
    assert {f"{name}-0" for name in FIGURES} <= drawn.keys()
    assert "scaling-all" in drawn
    assert [name for name, marks in drawn.items() if not marks] == []
    assert seen["start"][:3] == ["local", "planned", "data"]
    assert seen["byName"] == sorted(seen["byName"])
    assert seen["byLoss"][-1] == seen["byLossDown"][-1] == "pipeline"
    assert (seen["byLoss"][-2], seen["byLossDown"][0]) == ("local", "local")


@needs_chromium
@pytest.mark.timeout(200)
def test_on_a_phone(page, tmp_path):
    seen = look(page, tmp_path, width=390)
    assert seen["problems"] == []
    assert seen["window"] == 390
    assert seen["width"] <= 390


def test_the_page_needs_nothing_else(page):
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"""(?:src|href)=["'](?!data:)[^"']+""", outside) == []
    assert "use planned: 2.00 × data parallel, same loss" in outside
    assert outside.index("use planned") < outside.index("<table")


def test_what_is_inexact_is_marked_everywhere(page):
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert re.search(r'<tr class="inexact">\s*<th[^>]*><span class="tag inexact">≈ inexact</span>', outside)
    assert not re.search(r'<tr class="exact">\s*<th[^>]*><span class="tag inexact">', outside)
    # Plotly's own data: bars and lines are named with the mark.
    assert '"≈ local"' in page or '"\\u2248 local"' in page


def shown_cells(page, heading):
    """A column of the first table, by strategy."""
    table = page[page.index("<table") : page.index("</table>")]
    place = re.findall(r"<button[^>]*>(.*?)</button>", table).index(heading)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr")[2:]]
    return {re.sub(r"<[^>]*>", "", cells[0]).split()[-1]: cells[place] for cells in rows}


def test_predicted_memory_and_samples_to_the_target_are_in_the_table(rows):
    reached = make_row("zero1", samples_to_target=480)
    page = report_page([*rows, reached], [make_environment()], title="a comparison")
    page = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    labels = ("single", "data", "planned", "sharded", "local", "zero1")
    expected = {**dict.fromkeys(labels, "50.0 MB"), "pipeline": "–"}
    assert shown_cells(page, "predicted memory") == expected
    samples = shown_cells(page, "samples to target")
    assert (samples["zero1"], samples["data"]) == ("480", "–")


def test_captions_say_that_one_seed_of_several_is_drawn(rows):
    told = "Of several seeds the first is drawn."
    assert told not in report_page(rows, [], title="one")
    second = make_row("data", seed=1, loss=2.0, curve=[[16.0, 0.1, 99.0]])
    entry = make_entries([second, rows[1]])[0]
    page = report_page([second, *rows], [], title="two")
    assert page.count(told) == 3
    drawn = loss_by_samples([entry])
    assert drawn is not None
    assert len(drawn["data"][0]["x"]) == 40


def test_the_legend_is_not_hatched_when_the_first_bar_is(rows):
    figure = causes(make_entries([row for row in rows if row.label == "local"]))
    assert figure is not None
    keys = [trace for trace in figure["data"] if trace.get("showlegend", True)]
    bars = [trace for trace in figure["data"] if not trace.get("showlegend", True)]
    assert [trace["name"] for trace in keys] == [trace["name"] for trace in bars]
    assert not any("pattern" in trace["marker"] for trace in keys)
    assert all(trace["marker"]["pattern"]["shape"] == ["/"] for trace in bars)


def test_names_are_escaped(page):
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<b>odd</b>" not in outside
    assert "&lt;b&gt;odd&lt;/b&gt;" in outside
