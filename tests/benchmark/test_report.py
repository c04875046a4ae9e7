"""The page, in a real browser: no errors, all figures drawn, the table sorts, a phone shows it."""

import json
import re
import shutil
import subprocess

import pytest
from measured_rows import make_row

from syncline.benchmark.environment import Environment
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


def environment():
    return Environment(
        date="2026-01-01T00:00:00+00:00",
        commit="0123456789ab",
        syncline="0.1.0",
        python="3.11.7",
        torch="2.13.0",
        numpy="2.0.0",
        system="Linux",
        device="a CPU",
        device_kind="cpu",
        device_count=2,
        cores=2,
        memory_bytes=8_000_000_000,
        load=0.1,
        matmul_flops_per_s=1e11,
    )


@pytest.fixture
def page(rows):
    wider = [make_row("data", step_s=0.07, world_size=4, cell="wider"), make_row("<b>odd</b>", step_s=0.3)]
    return report_page([*rows, *wider], [environment()], title="a comparison")


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


def test_names_are_escaped(page):
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<b>odd</b>" not in outside
    assert "&lt;b&gt;odd&lt;/b&gt;" in outside
