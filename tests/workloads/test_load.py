"""Finding what the user names, and a message for each way in which that goes wrong."""

from __future__ import annotations

import importlib.util
import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from samples import fetch, size
from syncline.errors import ConfigError, DataError, ModelError
from syncline.training.config import InputConfig
from syncline.workloads.load import load_workload

PRELUDE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from syncline.workloads.workload import InputSpec, Workload

def data_set(count):
    return TensorDataset(torch.randn(count, 3), torch.arange(count) % 2)
"""

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into the current folder and forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)

    def write_module(code: str, name: str = "mine") -> str:
        (tmp_path / f"{name}.py").write_text(PRELUDE + textwrap.dedent(code))
        return name

    yield write_module
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", "").startswith(str(tmp_path)):  # type: ignore[union-attr]
            del sys.modules[name]


def test_a_built_in_model_with_its_default_data() -> None:
    loaded = load_workload("gpt2-tiny", seed=1)
    assert loaded.data is not None
    assert loaded.data.name == "stdlib-text"
    model = loaded.build_model()
    loss = loaded.compute_loss(model, fetch(loaded.data.train, [0, 1]))
    loss.backward()
    assert loaded.optimizer is None
    assert loaded.evaluation is loaded.data.evaluation


def test_weights_depend_on_the_seed_only_and_randomness_outside_goes_on() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    states = np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    first, again = load_workload("mlp:size=tiny", seed=5), load_workload("mlp:size=tiny", seed=5)
    other = load_workload("mlp:size=tiny", seed=6)
    weights = [loaded.build_model().state_dict() for loaded in (first, first, again, other)]
    key = next(iter(weights[0]))
    assert all(torch.equal(weights[0][name], copy[name]) for copy in weights[1:3] for name in copy)
    assert not torch.equal(weights[0][key], weights[3][key])
    assert torch.equal(torch.rand(2), expected)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states  # type: ignore[index]


def test_data_of_another_shape_and_model_on_meta() -> None:
    table = InputConfig(kind="tokens", shape=(8,), classes=256)
    loaded = load_workload("gpt2-tiny", data="synthetic", input=table)
    assert loaded.data is not None
    assert fetch(loaded.data.train, [0])[0].shape == (1, 8)
    assert next(load_workload("llama-70b").build_model("meta").parameters()).is_meta


def test_a_function_that_returns_a_model(write: Write) -> None:
    write("""
        def build():
            return nn.Linear(3, 2)
    """)
    table = InputConfig(kind="features", shape=(3,), classes=2)
    loaded = load_workload("mine:build", seed=4, input=table)
    assert loaded.data is not None
    assert loaded.data.name == "synthetic"
    one, two = loaded.build_model(), loaded.build_model()
    assert one is not two
    assert torch.equal(one.weight, two.weight)  # type: ignore[arg-type]
    assert loaded.compute_loss(one, fetch(loaded.data.train, range(4))).requires_grad
    assert load_workload("mine:build", input=table, device="meta").build_model("meta").weight.is_meta


def test_a_workload_with_everything(write: Write) -> None:
    write("""
        def build():
            return Workload(
                model=nn.Linear(3, 2),
                loss=lambda output, targets: output.square().mean(),
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                batches=data_set(20),
                evaluation=data_set(6),
            )
    """)
    loaded = load_workload("mine:build")
    assert loaded.input is None
    assert loaded.batches is None
    assert loaded.data is not None
    assert (len(loaded.data.train), size(loaded.evaluation)) == (20, 6)
    inputs, targets = fetch(loaded.data.train, [1, 3])
    assert inputs.shape == (2, 3)
    assert targets.tolist() == [1, 1]
    model = loaded.build_model()
    assert loaded.compute_loss(model, (inputs, targets)).allclose(model(inputs).square().mean())
    assert loaded.optimizer is not None


def test_a_workload_with_batches_of_its_own_and_data_that_replaces_them(write: Write) -> None:
    write("""
        class Net(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Linear(3, 2))

        def build():
            batches = [(torch.randn(4, 3), torch.zeros(4).long())]
            return Workload(
                model=Net(), batches=batches, evaluation=data_set(6),
                input=InputSpec(kind="features", shape=(3,), classes=2),
            )
    """)
    own = load_workload("mine:build")
    assert own.data is None
    assert isinstance(own.batches, list)
    assert size(own.evaluation) == 6
    replaced = load_workload("mine:build", data="synthetic")
    assert replaced.batches is None
    assert replaced.data is not None
    assert replaced.data.name == "synthetic"
    assert isinstance(load_workload("mine:Net", input=own.input).build_model(), nn.Sequential)


@pytest.mark.parametrize(
    ("code", "text", "message"),
    [
        ("", "nothing:build", r"no module 'nothing', which nothing:build asks for.*in that folder: mine"),
        ("", "mine.sub:build", r"no module 'mine.sub'"),
        ("import absent", "mine:build", r"'mine' cannot be imported: ModuleNotFound.*mine.py, line 9"),
        ("x = 1 / 0", "mine:build", r"cannot be imported: ZeroDivisionError.*mine.py, line 9"),
        ("def build(:", "mine:build", r"cannot be imported: SyntaxError.*mine.py, line 9"),
        ("raise SystemExit(3)", "mine:build", r"cannot be imported: SystemExit"),
        (
            "def build(): ...",
            "mine:biuld",
            r"'biuld'. Did you mean 'build'\?.*: build, data_set.*in .*mine.py",
        ),
        ("build = 3", "mine:build", r"mine:build is of type int, not a function"),
        ("build = nn.Linear(1, 1)", "mine:build", "is a model, not a function that makes one"),
        ("def build(width, *, depth, bias=True): ...", "mine:build", r"needs arguments \(width, depth\)"),
        ("def build(): ...", "mine:build", r"returned a value of type NoneType; .*return statement"),
        ("def build(): return nn.Linear", "mine:build", r"returned the class Linear; .*an instance"),
        ("def build():\n    return 1 / 0", "mine:build", r"build raised ZeroDivisionError.*mine.py, line 10"),
        ("def build(): raise SystemExit('no')", "mine:build", "build raised SystemExit: no"),
        ("", "mine.py:build", "Write mine:build"),
        ("", "folder/mine.py:build", r"Write folder\.mine:build"),
        ("", "gpt2-tiny:build", "neither a built-in model nor"),
        ("", "gpt2-tinny", r"Did you mean 'gpt2-tiny'\?.*package.module:function"),
    ],
)
def test_mistakes(write: Write, code: str, text: str, message: str) -> None:
    write(code)
    with pytest.raises(ModelError, match=f"(?s){message}"):
        load_workload(text, data="synthetic", input=InputConfig(kind="features", shape=(3,), classes=2))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("model=3", "model is of type int; it must be an nn.Module"),
        ("loss=3", "loss is of type int; it must be a function"),
        ("batches=3", "batches is of type int; it must be a data set"),
        ("evaluation=[1]", "evaluation is of type list; it must be a map-style"),
        ("input=(3,)", "input is of type tuple; it must be an InputSpec"),
        (
            "optimizer=torch.optim.SGD(model.parameters(), lr=1)",
            "optimizer is of type SGD; it must be a func",
        ),
    ],
)
def test_mistakes_in_a_workload(write: Write, field: str, message: str) -> None:
    write(f"""
        def build():
            model = nn.Linear(1, 1)
            return Workload(**{{"model": model, **dict({field})}})
    """)
    with pytest.raises(ModelError, match=message):
        load_workload("mine:build")


def test_a_module_that_breaks_deep_inside_names_the_users_line(write: Write) -> None:
    write("import other\ndef build(): return other.make()")
    write("def make():\n    return nn.Linear('wide', 1)", name="other")
    with pytest.raises(ModelError, match=r"other\.py, line 10") as caught:
        load_workload("mine:build")
    assert isinstance(caught.value.__cause__, TypeError)


def test_methods_of_classes_can_be_named(write: Write) -> None:
    write("""
        class Models:
            @staticmethod
            def small():
                return nn.Linear(3, 2)
    """)
    table = InputConfig(kind="features", shape=(3,), classes=2)
    assert isinstance(load_workload("mine:Models.small", input=table).build_model(), nn.Linear)
    with pytest.raises(ModelError, match=r"'smal'. Did you mean 'small'\?\nKnown: small.\n.*in Models"):
        load_workload("mine:Models.smal", input=table)


def test_nothing_says_what_the_model_takes(write: Write) -> None:
    write("def build(): return nn.Linear(3, 2)")
    with pytest.raises(ConfigError, match=r"(?s)There is no data, but nothing says .*\[input\]\nkind = "):
        load_workload("mine:build")
    with pytest.raises(ConfigError, match="The data 'digits' takes its shape from the model"):
        load_workload("mine:build", data="digits")


def test_data_that_does_not_fit_is_refused_before_it_is_read() -> None:
    with pytest.raises(DataError, match="gives images, but the model takes tokens"):
        load_workload("gpt2-tiny", data="digits")
    with pytest.raises(DataError, match="no data set 'cifar'"):
        load_workload("resnet18:size=tiny", data="cifar:/nowhere")
    with pytest.raises(DataError, match="no file or folder /nowhere"):
        load_workload("resnet18:size=tiny", data="cifar10:/nowhere")


def test_errors_that_explain_themselves_are_passed_on(write: Write) -> None:
    write("""
        def build():
            return Workload(model=nn.Linear(3, 2), input=InputSpec(kind="image", shape=(3,), classes=2))
    """)
    with pytest.raises(ConfigError, match="does not fit the kind 'image'"):
        load_workload("mine:build")


needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the extra 'transformers' is not installed"
)

GPT2 = """
from transformers import GPT2Config, GPT2LMHeadModel

def build():
    sizes = dict(n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes))
"""


@needs_transformers
@pytest.mark.parametrize(("vocabulary", "data"), [(300, "stdlib-text"), (100, "synthetic")])
def test_a_transformers_model_needs_nothing_else(write: Write, vocabulary: int, data: str) -> None:
    write(GPT2.replace("VOCABULARY", str(vocabulary)))
    loaded = load_workload("mine:build")
    assert loaded.data is not None
    assert loaded.data.name == data
    model: Any = loaded.build_model()
    assert not model.config.use_cache
    inputs, targets = fetch(loaded.data.train, [0, 1])
    assert inputs.shape == (2, 63)
    assert loaded.compute_loss(model, (inputs, targets)).item() == pytest.approx(np.log(vocabulary), rel=0.1)
