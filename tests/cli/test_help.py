"""What the command line says of itself and of this machine, and that it says so at once."""

import json
import os
import subprocess
import sys
import time

import pytest

from syncline.cli.app import run
from syncline.strategies.registry import STRATEGIES

HELP_WITHOUT_TORCH = """
import sys
from syncline.cli.app import run
code = run(["--help"])
heavy = [name for name in ("torch", "numpy", "transformers") if name in sys.modules]
sys.exit(f"exit code {code}, imported {heavy}" if code or heavy else 0)
"""


def test_help_does_not_import_torch():
    ended = subprocess.run(
        [sys.executable, "-c", HELP_WITHOUT_TORCH], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert all(verb in ended.stdout for verb in ("train", "doctor", "export", "probe"))


def test_help_is_quick():
    """The time is shown, not judged: it depends on who else uses the machine."""
    started = time.perf_counter()
    ended = subprocess.run([sys.executable, "-m", "syncline", "--help"], capture_output=True, timeout=60)
    print(f"syncline --help took {time.perf_counter() - started:.2f} s")
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (
            "train",
            [
                "--strategy",
                "--ranks",
                "--emulate",
                "--resume",
                "--max-restarts",
                "--plan",
                "--config",
                "torchrun",
            ],
        ),
        ("export", ["RUN", "--output", "load_state_dict"]),
        ("bench", ["SUITE", "--only", "--ranks", "--resume", "--config", "--compare", "--output", "--json"]),
        ("report", ["FOLDERS", "--csv", "--compare", "--output", "--json"]),
        ("doctor", ["--json"]),
    ],
)
def test_each_verb_has_a_page(verb, words, capsys, workplace):
    assert run([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in words), shown


def test_train_has_few_flags(capsys, workplace):
    run(["train", "--help"])
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ --")]
    few = [line for line in shown if "--json" not in line and "--max-restarts" not in line]
    assert 5 <= len(few) <= 10


def test_doctor_as_json(capsys, workplace):
    assert run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert told["cores"] == len(os.sched_getaffinity(0))
    assert "gloo" in told["backends"]
    assert [item["name"] for item in told["strategies"]] == list(STRATEGIES)
    assert all(item["available"] for item in told["strategies"])


def test_doctor_as_a_table(capsys, workplace):
    assert run(["doctor"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    for word in ("torch", "cores", "gloo", "[tracking]", "--emulate", *STRATEGIES):
        assert word in shown.out


def test_doctor_says_why_something_cannot_run(capsys, workplace, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["doctor"]) == 0
    assert "pip install 'syncline[tracking]'" in capsys.readouterr().out
