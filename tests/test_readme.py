"""What the README promises: its commands run, in its order, and the two `make` commands exist."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import run_command

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(syncline|torchrun|python) ")
NOT_HERE = re.compile(r"(make|git clone|cd|\.) ")
"""What gets or installs Syncline: done already where tests run."""


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_every_file_that_the_readme_links_to_exists():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.timeout(600)
def test_commands_run(tmp_path, monkeypatch):
    blocks = FENCE.findall(README)
    lines = [line for block in blocks for line in block.splitlines()]
    assert sum(bool(COMMAND.match(line)) for line in lines) >= 3, "the README shows no commands"
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for block in blocks:
        script = "\n".join(line for line in block.splitlines() if not NOT_HERE.match(line))
        ended = run_command("bash", "-euxc", script, folder=tmp_path, timeout_s=300)
        assert ended.returncode == 0, f"{script}\n{ended.stdout}\n{ended.stderr}"


@pytest.mark.parametrize(("target", "does"), [("demo", "examples/demo.py"), ("test", "-m pytest")])
def test_make_targets(target, does):
    assert f"make {target}" in README
    shown = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert does in shown.stdout


def test_integration_runs_the_same_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text().splitlines()
