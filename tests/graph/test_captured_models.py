"""Whole models: built-in ones and those of `transformers` are captured, and agree with torch's own counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from graph.interpreter import check_equivalent
from syncline.graph import OpGraph, capture_training
from syncline.workloads.calling import ComputeLoss, PlainCall
from syncline.workloads.models.registry import BUILTIN_MODELS, ModelSpec, parse_model

Loss = Callable[[nn.Module, Any], Tensor]
NAMES = sorted(name for name, model in BUILTIN_MODELS.items() if "tiny" in model.sizes)
HUGGING_FACE = ("gpt2", "llama", "bert", "vit", "resnet")


def batch_for(spec: ModelSpec, samples: int = 4, device: str = "cpu") -> Any:
    given = spec.input
    if given.kind in ("tokens", "token-pairs"):
        first, *second = (
            torch.zeros(samples, length, dtype=torch.long, device=device) for length in given.shape
        )
        targets = (second or [first])[-1]
        return ((first, *second) if second else first), targets.clone()
    targets = torch.zeros(samples, dtype=torch.long, device=device)
    return torch.randn(samples, *given.shape, device=device), targets


def check_counts(graph: OpGraph, model: nn.Module, compute_loss: Loss, batch: Any) -> None:
    """FLOPs within 1 % of torch's own count over forward and backward; parameters exactly."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        compute_loss(model, batch).backward()
    counted = counter.get_total_flops()
    assert abs(graph.forward_flops + graph.backward_flops - counted) <= 0.01 * counted
    assert graph.parameter_count == sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_model_is_captured(name: str) -> None:
    torch.manual_seed(0)
    spec = parse_model(f"{name}:size=tiny")
    model, compute_loss = spec.build(), ComputeLoss(PlainCall(), name)
    batch = batch_for(spec)
    graph = capture_training(model, compute_loss, batch)
    assert graph.unruled == ()
    inputs, targets = batch
    flat = [*(inputs if isinstance(inputs, tuple) else [inputs]), targets]
    check_equivalent(graph, model, flat, lambda: (compute_loss(model, batch),))


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_model_counts_as_torch_does(name: str) -> None:
    spec = parse_model(f"{name}:size=tiny")
    model, compute_loss = spec.build(device="meta"), ComputeLoss(PlainCall(), name)
    batch = batch_for(spec, device="meta")
    graph = capture_training(model, compute_loss, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_counts(graph, model, compute_loss, batch)


def hugging_face(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small model of `transformers` with random weights, and a batch for it."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    import transformers as hf

    tokens, classes = torch.randint(64, (2, 16)), torch.randint(2, (2,))
    images = torch.randn(2, 3, 32, 32)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4}
    if name == "gpt2":
        config = hf.GPT2Config(n_layer=3, n_embd=32, n_head=4, vocab_size=64, n_positions=32, use_cache=False)
        return hf.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}
    if name == "llama":
        config = hf.LlamaConfig(num_key_value_heads=2, vocab_size=64, use_cache=False, **sizes)
        return hf.LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}
    if name == "bert":
        mask = torch.ones_like(tokens)
        config = hf.BertConfig(vocab_size=64, **sizes)
        batch = {"input_ids": tokens, "attention_mask": mask, "labels": classes}
        return hf.BertForSequenceClassification(config), batch
    if name == "vit":
        config = hf.ViTConfig(image_size=32, patch_size=8, **sizes)
        return hf.ViTForImageClassification(config), {"pixel_values": images, "labels": classes}
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic")
    return hf.ResNetForImageClassification(config), {"pixel_values": images, "labels": classes}


def own_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch).loss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_model_of_transformers_is_captured(name: str) -> None:
    torch.manual_seed(0)
    model, batch = hugging_face(name)
    model.train()
    graph = capture_training(model, own_loss, batch)
    assert graph.unruled == ()
    check_equivalent(graph, model, list(batch.values()), lambda: (own_loss(model, batch),))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_model_of_transformers_counts_as_torch_does(name: str) -> None:
    model, batch = hugging_face(name)
    model.train()
    check_counts(capture_training(model, own_loss, batch), model, own_loss, batch)
