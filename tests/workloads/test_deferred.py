"""Weights that are made part by part equal those of an ordinary build, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from syncline.workloads.deferred.building import LARGE, build_deferred
from syncline.workloads.deferred.values import CHUNK
from syncline.workloads.deferred.weights import Box
from syncline.workloads.load import load_workload
from syncline.workloads.randomness import seeded

SEED = 3
SMALL = 1 << 10


class Initialised(nn.Module):
    """A weight made by some initialiser, between others that show what it drew."""

    def __init__(self, initialise: Callable[[Tensor], object], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.rand(5))
        self.weight = nn.Parameter(torch.empty(shape))
        with torch.no_grad():
            initialise(self.weight)
        self.after = nn.Parameter(torch.randn(21))


def build(make: Callable[[], nn.Module], large: int = LARGE):
    return build_deferred(make, lambda model: model, seed=SEED, large=large)


def assert_same(make: Callable[[], nn.Module], large: int = LARGE) -> set[str]:
    """Build in both ways and compare; which weights were deferred."""
    with seeded(SEED):
        plain = make()
    built = build(make, large)
    given, wanted = dict(built.made.named_parameters()), dict(plain.named_parameters())
    assert given.keys() == wanted.keys()
    for name, parameter in wanted.items():
        made = built.weights[name].make() if name in built.weights else given[name]
        assert given[name].is_meta == (name in built.weights)
        assert type(given[name]) is nn.Parameter
        assert given[name].requires_grad == parameter.requires_grad
        assert (made.dtype, made.shape) == (parameter.dtype, parameter.shape)
        assert torch.equal(made, parameter), name
    for name, buffer in plain.named_buffers():
        assert torch.equal(built.made.get_buffer(name), buffer)
    return {*built.weights}


def patch_rows(weight: Tensor) -> None:
    weight.normal_()
    weight[5].fill_(0)
    weight[7:9] = 2.0
    weight[20:25].uniform_()


def compute(weight: Tensor) -> None:
    weight.uniform_()
    weight.mul_(2).sub_(1).erfinv_().mul_(0.3).add_(torch.tensor(0.1)).clamp_(-0.5, 0.5)


def replace_data(weight: Tensor) -> None:
    weight.data.normal_(0, 0.02)
    weight.data = torch.randn(weight.shape) * 0.1


INITIALISERS = {
    "uniform": nn.init.uniform_,
    "normal": nn.init.normal_,
    "truncated": nn.init.trunc_normal_,
    "truncated at once": lambda weight: nn.init.trunc_normal_(weight, std=0.02),
    "kaiming uniform": nn.init.kaiming_uniform_,
    "kaiming normal": nn.init.kaiming_normal_,
    "xavier uniform": nn.init.xavier_uniform_,
    "xavier normal": nn.init.xavier_normal_,
    "constant": lambda weight: nn.init.constant_(weight, 3.0),
    "own generator": lambda weight: nn.init.normal_(weight, generator=torch.Generator().manual_seed(1)),
    "rows": patch_rows,
    "arithmetic": compute,
    "data": replace_data,
    "seen otherwise": lambda weight: nn.init.kaiming_uniform_(weight.view(-1, 7, 11)),
}


@pytest.mark.parametrize("name", INITIALISERS)
def test_numbers_are_those_of_an_ordinary_build(name):
    assert assert_same(lambda: Initialised(INITIALISERS[name], (101, 77)), SMALL) == {"weight"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("draw", [nn.init.normal_, nn.init.uniform_])
@pytest.mark.parametrize("more", [0, 1, 15, 16, 17, 500])
def test_chunks_are_drawn_like_the_whole(draw, more, dtype):
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(draw(torch.empty(CHUNK + more, dtype=dtype)))
            self.after = nn.Parameter(torch.randn(21))

    assert assert_same(Cast, SMALL) == {"weight"}


@pytest.mark.parametrize(
    "initialise",
    [
        nn.init.orthogonal_,
        nn.init.eye_,
        lambda weight: nn.init.kaiming_uniform_(weight.t()),
        lambda weight: nn.init.trunc_normal_(weight, a=1.5, b=2.0),
    ],
    ids=["orthogonal", "eye", "transposed", "many rounds"],
)
def test_what_is_not_elementwise_is_made_whole_and_said(initialise, caplog):
    assert assert_same(lambda: Initialised(initialise, (101, 77)), SMALL) == set()
    assert "Every rank builds all of weight" in caplog.text


def cast() -> nn.Module:
    return Initialised(nn.init.normal_, (101, 77)).double()


def shared_memory() -> nn.Module:
    model = Initialised(nn.init.normal_, (101, 77))
    model.twin = nn.Parameter(model.weight.data)
    return model


HELD: list[Tensor] = []


def held_outside() -> nn.Module:
    HELD[:] = [torch.randn(101, 77)]
    return nn.Linear(60, 70)


@pytest.mark.parametrize("make", [cast, shared_memory, held_outside])
def test_what_cannot_be_deferred_is_built_as_ever(make, caplog):
    assert assert_same(make, SMALL) == set()
    assert "Every rank builds all weights" in caplog.text
    assert [type(tensor) for tensor in HELD] in ([], [Tensor])
    HELD.clear()


def test_modules_of_torch_keep_their_weights_and_ties():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(50, 64, padding_idx=3)
            self.head = nn.Linear(64, 50, bias=False)
            self.head.weight = self.tokens.weight
            self.lstm = nn.LSTM(40, 64)
            layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.register_buffer("table", torch.ones(80, 80) * 2)
            self.tokens.weight.requires_grad_(False)

    deferred = assert_same(Model, SMALL)
    assert {"tokens.weight", "lstm.weight_ih_l0", "encoder.layers.1.linear1.weight"} <= deferred
    built = build(Model, SMALL).made
    assert built.get_submodule("head").weight is built.get_parameter("tokens.weight")
    assert built.get_buffer("table").device.type == "cpu"


LARGE_MODELS = [
    "mlp:layers=2,width=1024",
    "alexnet:width=16,hidden=1200",
    "resnet18",
    "rnnlm:vocab=2000,width=512",
    "transformer:layers=1,vocab=4096",
    "gpt2-small:layers=1,vocab=2000,positions=64,seq=64",
    "llama-7b:layers=1,width=512,heads=4,kv-heads=2,hidden=2100,vocab=2100",
]


@pytest.mark.parametrize("text", LARGE_MODELS)
def test_builtin_models_have_the_same_weights(text):
    workload = load_workload(text, seed=SEED)
    plain, built = workload.build_model(), workload.build_deferred()
    large = {name for name, one in plain.named_parameters() if one.numel() >= LARGE}
    assert {*built.weights} == large != set()
    for name, parameter in plain.named_parameters():
        made = built.weights[name].make() if name in large else built.made.get_parameter(name)
        assert torch.equal(made, parameter), name


BOXES = [
    Box((90, 130), (0, 0), (90, 130)),
    Box((90, 130), (30, 0), (30, 130)),
    Box((90, 130), (0, 65), (90, 65)),
    Box((90, 130), (88, 1), (2, 3)),
    Box((3, 30, 130), (0, 10, 0), (3, 10, 130)),
    Box((3, 30, 2, 65), (1, 29, 1, 7), (2, 1, 1, 8)),
    Box((90, 130), (90, 0), (0, 130)),
]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("chunk", [16, 1 << 10, CHUNK])
def test_a_part_is_cut_from_the_same_numbers(box, chunk, monkeypatch):
    for module in ("values", "weights"):
        monkeypatch.setattr(f"syncline.workloads.deferred.{module}.CHUNK", chunk)
    weight = build(lambda: Initialised(patch_rows, (90, 130)), SMALL).weights["weight"]
    with seeded(SEED):
        wanted = Initialised(patch_rows, (90, 130)).weight.detach().view(box.seen)
    for dim in range(wanted.ndim):
        wanted = wanted.narrow(dim, box.starts[dim], box.sizes[dim])
    assert torch.equal(weight.make(box), wanted)


def test_a_box_of_another_size_is_refused():
    weight = build(lambda: Initialised(nn.init.normal_, (90, 130)), SMALL).weights["weight"]
    with pytest.raises(ValueError, match=r"\(90, 130\).*\(90, 131\)"):
        weight.make(Box.whole((90, 131)))


MEMORY = """
import torch
from torch import nn
from syncline.cluster.memory import MemoryMeter
from syncline.workloads.deferred.building import build_deferred
from syncline.workloads.deferred.weights import Box

torch.randn(1 << 21)
small = build_deferred(lambda: nn.Linear(1100, 1100), lambda model: model, seed=0)
small.weights["weight"].make()
meter = MemoryMeter(torch.device("cpu"))
meter.reset_peak()
built = build_deferred(lambda: nn.Linear(5000, 10000), lambda model: model, seed=0)
part = built.weights["weight"].make(Box.whole((10000, 5000)).narrow(1, 1250, 1250))
print(part.nbytes, meter.peak_bytes())
"""


def test_no_rank_holds_a_whole_large_weight():
    done = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True)
    part, peak = map(int, done.stdout.split())
    assert part == 50_000_000
    assert part <= peak + 5_000_000 <= part + 30_000_000


def test_own_functions_are_deferred_in_their_first_call(tmp_path, monkeypatch):
    code = (
        "from torch import nn\nCALLS = []\n\n\ndef build():\n    CALLS.append(1)\n"
        "    return nn.Sequential(nn.Linear(1024, 1100), nn.Linear(1100, 10))\n"
    )
    (tmp_path / "deferred_own.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec: dict = {"seed": SEED, "input": type("I", (), {"kind": "features", "shape": (1024,), "classes": 10})}
    built = load_workload("deferred_own:build", deferring=True, **spec).build_deferred()
    assert len(sys.modules["deferred_own"].CALLS) == 1
    assert {*built.weights} == {"0.weight"}
    plain = load_workload("deferred_own:build", **spec).build_model()
    assert torch.equal(built.weights["0.weight"].make(), plain.get_parameter("0.weight"))
    again = load_workload("deferred_own:build", deferring=True, **spec).build_model()
    assert torch.equal(again.get_parameter("0.weight"), plain.get_parameter("0.weight"))
