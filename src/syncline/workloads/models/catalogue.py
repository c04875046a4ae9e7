"""The built-in models: their names, sizes and defaults.

A name without a size means the published model. Tiny sizes train on a CPU in milliseconds a step; they
have no dropout, so that every exact strategy gives the same numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from syncline.workloads.models import alexnet, gpt2, inception, llama, mlp, resnet, rnnlm, transformer, vgg
from syncline.workloads.workload import InputSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A model that can be named, with its sizes."""

    name: str
    summary: str
    sizes: Mapping[str, Any]
    """The configuration (a dataclass of the model's own kind) of each size; `tiny` is always there."""
    default_size: str
    build: Callable[[Any], nn.Module]
    """Makes the model from a configuration, with fresh weights."""
    input: Callable[[Any], InputSpec]
    """What the model of a configuration takes."""
    default_data: Literal["stdlib-text", "synthetic"]


_SMALL_IMAGES: dict[str, Any] = {"image": 32, "stem": "cifar", "classes": 10}
_TINY_GPT2 = gpt2.GPT2Config(layers=4, width=64, heads=4, vocab=256, positions=128, seq=64, dropout=0.0)
_TINY_LLAMA = llama.LlamaConfig(layers=2, width=64, heads=4, kv_heads=4, hidden=176, vocab=256, seq=64)


def _mlp() -> BuiltinModel:
    return BuiltinModel(
        name="mlp",
        summary="multilayer perceptron, 8 hidden layers of 4096",
        sizes={
            "tiny": mlp.MLPConfig(layers=3, width=64, features=64),
            "small": mlp.MLPConfig(layers=8, width=256),
            "full": mlp.MLPConfig(),
        },
        default_size="full",
        build=mlp.MLP,
        input=mlp.input_spec,
        default_data="synthetic",
    )


def _alexnet() -> BuiltinModel:
    return BuiltinModel(
        name="alexnet",
        summary="AlexNet with one tower, for ImageNet",
        sizes={
            "tiny": alexnet.AlexNetConfig(width=8, hidden=64, dropout=0.0, **_SMALL_IMAGES),
            "full": alexnet.AlexNetConfig(),
        },
        default_size="full",
        build=alexnet.AlexNet,
        input=alexnet.input_spec,
        default_data="synthetic",
    )


def _vgg16() -> BuiltinModel:
    return BuiltinModel(
        name="vgg16",
        summary="VGG with 16 layers, for ImageNet",
        sizes={
            "tiny": vgg.VGGConfig(width=8, hidden=64, image=32, classes=10, dropout=0.0),
            "full": vgg.VGGConfig(),
        },
        default_size="full",
        build=vgg.VGG,
        input=vgg.input_spec,
        default_data="synthetic",
    )


def _inception3() -> BuiltinModel:
    return BuiltinModel(
        name="inception3",
        summary="Inception v3 without its auxiliary head, for ImageNet",
        sizes={
            "tiny": inception.InceptionConfig(narrow=16, dropout=0.0, **_SMALL_IMAGES),
            "full": inception.InceptionConfig(),
        },
        default_size="full",
        build=inception.Inception,
        input=inception.input_spec,
        default_data="synthetic",
    )


def _resnet(depth: Literal[18, 50]) -> BuiltinModel:
    return BuiltinModel(
        name=f"resnet{depth}",
        summary=f"residual network with {depth} layers, for ImageNet",
        sizes={
            "tiny": resnet.ResNetConfig(depth=depth, width=8, **_SMALL_IMAGES),
            "cifar": resnet.ResNetConfig(depth=depth, **_SMALL_IMAGES),
            "full": resnet.ResNetConfig(depth=depth),
        },
        default_size="full",
        build=resnet.build_resnet,
        input=resnet.input_spec,
        default_data="synthetic",
    )


def _resnet110() -> BuiltinModel:
    return BuiltinModel(
        name="resnet110",
        summary="residual network with 110 layers, for CIFAR-10",
        sizes={"tiny": resnet.CifarResNetConfig(depth=14, width=8), "full": resnet.CifarResNetConfig()},
        default_size="full",
        build=resnet.build_cifar_resnet,
        input=resnet.input_spec,
        default_data="synthetic",
    )


def _rnnlm() -> BuiltinModel:
    return BuiltinModel(
        name="rnnlm",
        summary="language model, 2 LSTM layers of 2048, vocabulary of 100,000",
        sizes={
            "tiny": rnnlm.RNNLMConfig(width=64, vocab=256, seq=32),
            "full": rnnlm.RNNLMConfig(),
        },
        default_size="full",
        build=rnnlm.RNNLM,
        input=rnnlm.input_spec,
        default_data="stdlib-text",
    )


def _transformer() -> BuiltinModel:
    return BuiltinModel(
        name="transformer",
        summary="encoder-decoder transformer, base size",
        sizes={
            "tiny": transformer.TransformerConfig(
                layers=2, width=64, heads=4, hidden=256, vocab=256, seq=32, dropout=0.0
            ),
            "full": transformer.TransformerConfig(),
        },
        default_size="full",
        build=transformer.Transformer,
        input=transformer.input_spec,
        default_data="stdlib-text",
    )


def _gpt2(name: str, summary: str, full: gpt2.GPT2Config | None) -> BuiltinModel:
    return BuiltinModel(
        name=name,
        summary=summary,
        sizes={"tiny": _TINY_GPT2} if full is None else {"tiny": _TINY_GPT2, "full": full},
        default_size="tiny" if full is None else "full",
        build=gpt2.GPT2,
        input=gpt2.input_spec,
        default_data="stdlib-text",
    )


def _llama(name: str, summary: str, tiny: llama.LlamaConfig, full: llama.LlamaConfig) -> BuiltinModel:
    return BuiltinModel(
        name=name,
        summary=summary,
        sizes={"tiny": tiny, "full": full},
        default_size="full",
        build=llama.Llama,
        input=llama.input_spec,
        default_data="stdlib-text",
    )


_MODELS = (
    _mlp(),
    _alexnet(),
    _vgg16(),
    _inception3(),
    _resnet(18),
    _resnet(50),
    _resnet110(),
    _rnnlm(),
    _transformer(),
    _gpt2("gpt2-tiny", "GPT-2 with 4 layers, on bytes, for a CPU", None),
    _gpt2("gpt2-small", "GPT-2 with 124 million parameters", gpt2.GPT2Config()),
    _gpt2(
        "gpt2-medium",
        "GPT-2 with 355 million parameters",
        gpt2.GPT2Config(layers=24, width=1024, heads=16),
    ),
    _llama("llama-7b", "Llama 2 with 6.7 billion parameters", _TINY_LLAMA, llama.LlamaConfig()),
    _llama(
        "llama-70b",
        "Llama 2 with 69 billion parameters and grouped key-value heads",
        dataclasses.replace(_TINY_LLAMA, kv_heads=2),
        llama.LlamaConfig(layers=80, width=8192, heads=64, kv_heads=8, hidden=28672),
    ),
)

BUILTIN_MODELS: dict[str, BuiltinModel] = {model.name: model for model in _MODELS}
