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


@pytest.mark.parametrize(
    ("programs", "code", "told"),
    [
        ({"id": "echo 0", "chromium": "", "ip": "", "tc": "", "make": "echo made $1"}, 0, "made test"),
        ({"id": "echo 1000", "ip": "", "tc": "", "make": "echo made $1"}, 1, "There is no chromium"),
        ({"id": "echo 0", "ip": "", "tc": "", "apt-get": "echo got $*"}, 1, "got install -qqy chromium"),
    ],
    ids=["complete", "incomplete", "installing"],
)
def test_integration_leaves_no_test_out_for_want_of_a_program(tmp_path, programs, code, told):
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    ended = subprocess.run(
        [tmp_path / "bash", ROOT / ".ci" / "run"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert told in ended.stdout + ended.stderr
