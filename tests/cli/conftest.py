"""What the tests of the command line share."""

import sys

import pytest


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty current folder; modules that a test imports from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
