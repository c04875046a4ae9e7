import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syncline.errors import ModelError
from syncline.workloads.models.attention import rotary_embedding, rotate
from syncline.workloads.models.registry import BUILTIN_MODELS, ModelSpec, is_builtin, parse_model
from syncline.workloads.models.resnet import PadShortcut
from syncline.workloads.models.rnnlm import LSTM
from syncline.workloads.models.transformer import (
    DecoderBlock,
    EncoderBlock,
    Transformer,
    TransformerConfig,
)

NAMES = sorted(BUILTIN_MODELS)
CAUSAL = ["gpt2-tiny", "llama-7b", "llama-70b", "rnnlm"]

PUBLISHED = {
    # 3072·4096 + 7·4096² + 4096·10 weights, and the biases.
    "mlp": 130_097_162,
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "inception3": 23_834_568,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    # He et al. use shortcuts without parameters; with projections it is the 1,730,714 often quoted.
    "resnet110": 1_727_962,
    "resnet110:shortcut=project": 1_730_714,
    # Embedding and head of 100,000 × 2048, biases of the head, two layers of 4·2048·(2048 + 2048 + 2).
    "rnnlm": 476_841_632,
    # 50,000 × 512 shared, 6 encoder blocks of 3,152,384, 6 decoder blocks of 4,204,032.
    "transformer": 69_738_496,
    "transformer:tied=false": 69_738_496 + 2 * 50_000 * 512,
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "llama-7b": 6_738_415_616,
    "llama-70b": 68_976_648_192,
}


@pytest.fixture(autouse=True)
def _torch_cache_stays_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch sets this variable itself when it is missing, and that would count as left behind."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def tiny(name: str) -> ModelSpec:
    return parse_model(f"{name}:size=tiny")


def example(spec: ModelSpec, batch: int, device: str = "cpu") -> tuple[Tensor, ...]:
    given = spec.input
    if given.kind in ("features", "image"):
        return (torch.randn(batch, *given.shape, device=device),)
    return tuple(torch.randint(given.classes, (batch, length), device=device) for length in given.shape)


def targets(spec: ModelSpec, batch: int) -> Tensor:
    given = spec.input
    sequence = () if given.kind in ("features", "image") else (given.shape[-1],)
    return torch.randint(given.classes, (batch, *sequence))


def loss_of(model: nn.Module, inputs: tuple[Tensor, ...], wanted: Tensor) -> Tensor:
    return F.cross_entropy(model(*inputs).flatten(0, -2), wanted.flatten())


def export(spec: ModelSpec, batch: int) -> torch.export.ExportedProgram:
    return torch.export.export(spec.build("meta"), example(spec, batch, "meta"))


@pytest.mark.parametrize("text", PUBLISHED)
def test_parameter_counts_are_the_published_ones(text: str):
    assert count(parse_model(text).build("meta")) == PUBLISHED[text]


def test_full_sizes_take_what_the_papers_say():
    shapes = {name: parse_model(name).input.shape for name in NAMES}
    assert shapes["resnet50"] == shapes["vgg16"] == shapes["alexnet"] == (3, 224, 224)
    assert shapes["inception3"] == (3, 299, 299)
    assert shapes["resnet110"] == (3, 32, 32)
    assert shapes["transformer"] == (256, 256)
    assert shapes["gpt2-small"] == (1024,)
    assert parse_model("gpt2-tiny").input.classes == 256


@pytest.mark.parametrize("name", NAMES)
def test_the_default_size_runs_on_meta(name: str):
    spec = parse_model("llama-70b:layers=2" if name == "llama-70b" else name)
    output = spec.build("meta")(*example(spec, 2, "meta"))
    sequence = () if spec.input.kind in ("features", "image") else (spec.input.shape[-1],)
    assert output.shape == (2, *sequence, spec.input.classes)


@pytest.mark.parametrize("name", NAMES)
def test_tiny_models_learn_a_batch(name: str):
    torch.manual_seed(0)
    spec = tiny(name)
    model = spec.build()
    inputs, wanted = example(spec, 4), targets(spec, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, inputs, wanted)
        loss.backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_tiny_models_start_with_a_loss_near_chance(name: str):
    torch.manual_seed(1)
    spec = tiny(name)
    loss = loss_of(spec.build(), example(spec, 8), targets(spec, 8))
    assert loss.item() < 2 * torch.tensor(spec.input.classes).log().item()


@pytest.mark.parametrize("name", NAMES)
def test_tiny_models_run_under_bf16_autocast(name: str):
    spec = tiny(name)
    with torch.autocast("cpu", torch.bfloat16):
        output = spec.build()(*example(spec, 2))
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_tiny_models_export_on_meta(name: str):
    program = export(tiny(name), 4)
    assert all(node.op != "get_attr" for node in program.graph.nodes)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights(name: str):
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(tiny(name).build().state_dict())
    first, second, other = states
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", NAMES)
def test_only_batch_norm_has_buffers(name: str):
    model = tiny(name).build("meta")
    owned = {
        id(buffer)
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d)
        for buffer in module.buffers()
    }
    assert {id(buffer) for buffer in model.buffers()} == owned


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet110", "inception3"])
def test_group_norm_makes_samples_independent(name: str):
    spec = parse_model(f"{name}:size=tiny,norm=group")
    model = spec.build()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert not list(model.buffers())
    (images,) = example(spec, 4)
    torch.testing.assert_close(model(images)[:1], model(images[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_language_models_do_not_see_the_future(name: str):
    spec = tiny(name)
    model = spec.build().eval()
    (tokens,) = example(spec, 2)
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % spec.input.classes
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_the_decoder_sees_all_of_the_source_and_none_of_the_future():
    spec = tiny("transformer")
    model = spec.build().eval()
    source, given = example(spec, 2)
    base = model(source, given)
    later = given.clone()
    later[:, 10:] = (later[:, 10:] + 1) % 256
    torch.testing.assert_close(base[:, :10], model(source, later)[:, :10])
    source[:, -1] = (source[:, -1] + 1) % 256
    assert not torch.allclose(base[:, 0], model(source, given)[:, 0])


def test_transformer_blocks_have_the_parameters_of_the_formula():
    config = TransformerConfig()
    width, hidden = config.width, config.hidden
    attention = 4 * (width * width + width)
    feed = 2 * width * hidden + hidden + width
    assert count(EncoderBlock(config)) == attention + feed + 2 * 2 * width
    assert count(DecoderBlock(config)) == 2 * attention + feed + 3 * 2 * width
    assert count(EncoderBlock(config)) == count(nn.TransformerEncoderLayer(512, 8, 2048))
    assert count(DecoderBlock(config)) == count(nn.TransformerDecoderLayer(512, 8, 2048))


def test_the_encoder_block_computes_what_torch_computes():
    config = tiny("transformer").config
    ours = EncoderBlock(config)
    theirs = nn.TransformerEncoderLayer(config.width, config.heads, config.hidden, 0.0, batch_first=True)
    attention = ours.attention
    joined = {
        "weight": torch.cat([attention.query.weight, attention.key.weight, attention.value.weight]),
        "bias": torch.cat([attention.query.bias, attention.key.bias, attention.value.bias]),
    }
    theirs.self_attn.in_proj_weight.data.copy_(joined["weight"])
    theirs.self_attn.in_proj_bias.data.copy_(joined["bias"])
    theirs.self_attn.out_proj.load_state_dict(attention.out.state_dict())
    theirs.linear1.load_state_dict(ours.feed.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed.down.state_dict())
    x = torch.randn(2, 5, config.width)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_tied_embeddings_are_one_parameter():
    config = tiny("transformer").config
    tied, own = Transformer(config), Transformer(dataclasses.replace(config, tied=False))
    assert count(own) - count(tied) == 2 * config.vocab * config.width


def test_the_lstm_layer_computes_what_torch_computes():
    ours, theirs = LSTM(16), nn.LSTM(16, 16, batch_first=True)
    weights = (ours.input_weight, ours.hidden_weight, ours.input_bias, ours.hidden_bias)
    for parameter, weight in zip(theirs.parameters(), weights, strict=True):
        parameter.data.copy_(weight)
    x = torch.randn(3, 7, 16)
    torch.testing.assert_close(ours(x), theirs(x)[0])


def test_rotary_products_depend_on_the_distance_only():
    rotary = rotary_embedding(12, 8, 10000.0, torch.empty(0))
    query, key = (torch.randn(8).expand(1, 1, 12, 8) for _ in range(2))
    products = rotate(query, rotary)[0, 0] @ rotate(key, rotary)[0, 0].T
    torch.testing.assert_close(products[3, 1], products[9, 7])
    torch.testing.assert_close(products.diagonal(), (query * key).sum(-1)[0, 0])


def test_the_pad_shortcut_subsamples_and_widens():
    x = torch.randn(2, 3, 6, 6)
    y = PadShortcut(3, 8, 2)(x)
    assert y.shape == (2, 8, 3, 3)
    assert torch.equal(y[:, :3], x[:, :, ::2, ::2])
    assert not y[:, 3:].any()


def test_dropout_is_as_published_and_off_in_tiny_sizes():
    assert parse_model("gpt2-small").config.dropout == 0.1
    assert parse_model("alexnet").config.dropout == 0.5
    for name in NAMES:
        assert getattr(tiny(name).config, "dropout", 0.0) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_every_name_parses_and_says_what_it_takes(name: str):
    model = BUILTIN_MODELS[name]
    spec = parse_model(name)
    assert spec.name == name
    assert spec.size == model.default_size
    assert spec.default_data in ("stdlib-text", "synthetic")
    assert (spec.default_data == "stdlib-text") == spec.input.kind.startswith("token")
    assert "tiny" in model.sizes
    assert model.summary


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "inception3", "resnet18", "resnet50", "resnet110"])
def test_tiny_images_are_small(name: str):
    assert tiny(name).input.shape == (3, 32, 32)
    assert tiny(name).input.classes == 10


def test_options_change_the_configuration():
    spec = parse_model("resnet18:size=cifar,norm=group,classes=100")
    assert spec.config.norm == "group"
    assert spec.config.width == 64
    assert spec.input.shape == (3, 32, 32)
    assert spec.input.classes == 100
    llama = parse_model("llama-70b: layers=2, kv-heads=16 ")
    assert (llama.config.layers, llama.config.kv_heads, llama.config.width) == (2, 16, 8192)
    assert llama.config == parse_model("llama-70b:layers=2,kv_heads=16").config


@pytest.mark.parametrize(
    "text",
    ["mlp", "gpt2-small:seq=128", "llama-7b:size=tiny,kv-heads=2", "transformer:tied=false", "gpt2-tiny"],
)
def test_the_text_of_a_spec_means_the_same_spec(text: str):
    assert parse_model(text).text == text
    assert parse_model(parse_model(text).text) == parse_model(text)


@pytest.mark.parametrize(
    ("text", "builtin"),
    [
        ("mlp", True),
        ("mlp:size=tiny", True),
        ("mlp:tiny", True),
        ("mlp:build", False),
        ("my.module:build", False),
        ("resnet19", False),
    ],
)
def test_builtin_names_are_told_from_own_modules(text: str, builtin: bool):
    assert is_builtin(text) is builtin


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnet19", ["no built-in model 'resnet19'", "Did you mean 'resnet1", "gpt2-tiny", "vgg16"]),
        ("resnet18:size=huge", ["no size of model 'resnet18' 'huge'", "cifar, full, tiny"]),
        ("resnet18:size=tiny,size=full", ["given twice"]),
        ("resnet18:tiny", ["resnet18:size=tiny"]),
        ("resnet18:norm=layer", ["'norm' of model 'resnet18' of size 'full' is 'layer'", "batch or group"]),
        ("resnet18:widht=8", ["Did you mean 'width'?", "width=64 (a whole number)", "Sizes", "cifar, full"]),
        ("resnet18:width=0", ["width is 0, it must be at least 1"]),
        ("resnet110:depth=100", ["depth is 100, it must be 6n + 2"]),
        ("gpt2-small:heads=7", ["width is 768, which is not a multiple of heads (7)"]),
        ("gpt2-small:seq=2048", ["seq is 2048", "1024 positions"]),
        ("gpt2-small:dropout=1.0", ["dropout is 1.0"]),
        ("llama-70b:kv-heads=7", ["heads is 64, which is not a multiple of kv_heads (7)"]),
        ("llama-7b:size=tiny,heads=64", ["rotary embeddings need it even"]),
        ("alexnet:size=tiny,image=8", ["image is 8 pixels"]),
        ("vgg16:image=16", ["image is 16 pixels, it must be at least 32"]),
        ("inception3:image=32", ["image is 32 pixels, the stem 'imagenet' needs 75"]),
        ("inception3:narrow=3", ["takes 1, 2, 4, 8 or 16"]),
        ("mlp:layers", ["not of the form key=value"]),
    ],
)
def test_mistakes_are_explained(text: str, expected: list[str]):
    with pytest.raises(ModelError) as caught:
        parse_model(text)
    for part in expected:
        assert part in str(caught.value)


def test_the_smallest_images_work():
    for text in ("inception3:image=75,narrow=16", "inception3:size=tiny,image=16", "vgg16:size=tiny"):
        spec = parse_model(text)
        assert spec.build("meta").eval()(*example(spec, 2, "meta")).shape == (2, spec.input.classes)
