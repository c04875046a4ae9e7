"""Text, and what is said when data does not fit."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from samples import fetch, size
from syncline.errors import ConfigError, DataError
from syncline.workloads.data.registry import SOURCES, data_names, load_data
from syncline.workloads.workload import InputSpec

TOKENS = InputSpec(kind="tokens", shape=(16,), classes=256)
PAIRS = InputSpec(kind="token-pairs", shape=(5, 3), classes=300)
IMAGE = InputSpec(kind="image", shape=(3, 8, 8), classes=10)
FEATURES = InputSpec(kind="features", shape=(64,), classes=10)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(number % 251 for number in range(1000)))
    return path


def test_stdlib_text_is_large_quick_and_split() -> None:
    load_data("stdlib-text", TOKENS, seed=0)
    started = time.process_time()
    data = load_data("stdlib-text", TOKENS, seed=0)
    assert time.process_time() - started < 1.0
    assert len(data.train) > 100_000
    assert size(data.evaluation) > 5_000
    inputs, targets = fetch(data.train, np.array([0, 7, 7]))
    assert inputs.shape == targets.shape == (3, 16)
    assert inputs.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(inputs[1], inputs[2])


def test_stdlib_text_without_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="has none"):
        load_data("stdlib-text", TOKENS, seed=0)


def test_text_windows_follow_each_other_and_splits_are_disjoint(text_file: Path) -> None:
    data = load_data(f"text:{text_file}", TOKENS, seed=0)
    raw = torch.tensor(list(text_file.read_bytes()))
    assert len(data.train) == (950 - 1) // 16
    assert size(data.evaluation) == (50 - 1) // 16
    everything = fetch(data.train, np.arange(len(data.train)))
    assert torch.equal(everything[0].flatten(), raw[: len(data.train) * 16])
    assert torch.equal(everything[1].flatten(), raw[1 : len(data.train) * 16 + 1])
    assert torch.equal(fetch(data.evaluation, np.array([0]))[0][0], raw[950:966])


def test_token_pairs_continue_the_source(text_file: Path) -> None:
    data = load_data(f"text:{text_file}", PAIRS, seed=0)
    raw = torch.tensor(list(text_file.read_bytes()))
    (source, decoder), targets = fetch(data.train, np.array([1]))
    assert torch.equal(source[0], raw[8:13])
    assert torch.equal(targets[0], raw[13:16])
    assert torch.equal(decoder[0], raw[12:15])


def test_a_folder_is_read_in_order_without_what_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b.txt").write_text("b" * 20)
    (tmp_path / "sub" / "a.txt").write_text("c" * 20)
    (tmp_path / "a.txt").write_text("a" * 20)
    (tmp_path / "picture.bin").write_bytes(b"\0\1\2" * 100)
    (tmp_path / ".git" / "hidden.txt").write_text("h" * 100)
    spec = InputSpec(kind="tokens", shape=(10,), classes=256)
    data = load_data(f"text:{tmp_path}", spec, seed=0)
    inputs, _ = fetch(data.train, np.arange(len(data.train)))
    assert bytes(inputs.flatten().tolist()) == b"a" * 20 + b"\n" + b"b" * 19 + b"b\n" + b"c" * 8


@pytest.mark.parametrize(
    ("spec", "input", "message"),
    [
        ("digit", FEATURES, r"no data set 'digit'. Did you mean 'digits'\?\nKnown: .*stdlib-text"),
        ("digits:here", FEATURES, "digits takes no path"),
        ("text", TOKENS, "Write text:PATH"),
        ("cifar10:", IMAGE, "Write cifar10:PATH"),
        ("text:/no/such/file", TOKENS, "no file or folder /no/such/file"),
        (
            "digits",
            TOKENS,
            r"gives images, but the model takes tokens.*\nData that fits: stdlib-text, text:PATH, syn",
        ),
        (
            "stdlib-text",
            IMAGE,
            r"gives text, but the model takes images.*\nData that fits: digits, fashion-mnist",
        ),
        (
            "stdlib-text",
            InputSpec(kind="tokens", shape=(4,), classes=100),
            "256, but the vocabulary of the model has 100",
        ),
        (
            "digits",
            InputSpec(kind="features", shape=(3072,), classes=10),
            r"64 features .* takes 3072.\n.*mlp:features=64",
        ),
        (
            "digits",
            InputSpec(kind="features", shape=(64,), classes=5),
            "10 classes .* the model tells 5 apart",
        ),
    ],
)
def test_mistakes(spec: str, input: InputSpec, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data(spec, input, seed=0)


def test_too_little_text(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_text("x" * 33)
    (tmp_path / "enough").write_text("x" * 34)
    with pytest.raises(DataError, match="has 0 bytes"):
        load_data(f"text:{tmp_path / 'empty'}", TOKENS, seed=0)
    with pytest.raises(DataError, match=r"has 33 bytes, but one sample of this model takes 17 .* 34 bytes"):
        load_data(f"text:{tmp_path / 'short'}", TOKENS, seed=0)
    data = load_data(f"text:{tmp_path / 'enough'}", TOKENS, seed=0)
    assert len(data.train) == size(data.evaluation) == 1
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="no readable text file"):
        load_data(f"text:{tmp_path / 'folder'}", TOKENS, seed=0)


def test_names_say_where_a_path_goes() -> None:
    assert data_names(TOKENS) == ["stdlib-text", "text:PATH", "synthetic"]
    assert "fashion-mnist[:PATH]" in data_names()
    assert len(data_names()) == len(SOURCES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "sound", "shape": (1,), "classes": 2}, "no kind of input 'sound'"),
        (
            {"kind": "image", "shape": (32, 32), "classes": 2},
            r"\[32, 32\] .*3 whole numbers.*channels, height",
        ),
        ({"kind": "tokens", "shape": (0,), "classes": 2}, "above 0"),
        ({"kind": "tokens", "shape": (4,), "classes": 0}, "classes is 0"),
    ],
)
def test_input_spec_mistakes(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        InputSpec(**fields)
