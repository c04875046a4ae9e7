"""Models of `transformers`, as they are, train by plans as on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from strategies.random_plans import random_plan
from syncline.graph.capture import capture_training
from syncline.planning.plan import Plan
from syncline.strategies.parallelize import parallelize
from syncline.workloads.batch import in_fixed_order, slice_rows
from syncline.workloads.calling import loss_function
from syncline.workloads.workload import Workload

pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")

MODELS = ["gpt2", "llama", "bert", "vit"]
BATCH = 8
STEPS = 3


def small_model(name: str) -> nn.Module:
    import transformers as hf

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4}
    if name == "gpt2":
        still: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(
                n_layer=1, n_embd=32, n_head=4, vocab_size=64, n_positions=32, use_cache=False, **still
            )
        )
    if name == "llama":
        return hf.LlamaForCausalLM(
            hf.LlamaConfig(num_key_value_heads=2, vocab_size=64, use_cache=False, **sizes)
        )
    if name == "bert":
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=64, **sizes, **still))
    if name == "vit":
        return hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=8, **sizes))
    return hf.ResNetForImageClassification(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
    )


def batch_of(name: str, step: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(step)
    tokens = torch.randint(64, (BATCH, 8), generator=random)
    classes = torch.randint(2, (BATCH,), generator=random)
    if name in ("gpt2", "llama"):
        return {"input_ids": tokens, "labels": tokens}
    if name == "bert":
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": classes}
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16, generator=random), "labels": classes}


def train_by(name: str, *strategies: str | Plan) -> list[list[float]]:
    """The losses under each strategy, and the last evaluated one."""
    return [_train(name, strategy) for strategy in strategies]


def _train(name: str, strategy: str | Plan) -> list[float]:
    model = small_model(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    step = parallelize(model, optimizer, strategy=strategy, example_batch=batch_of(name, 0))
    losses = []
    for number in range(STEPS + 1):
        own = slice_rows(batch_of(name, number), step.rows(BATCH))
        loss = step.evaluate(own) if number == STEPS else step(own)
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    return losses


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*MODELS, pytest.param("resnet", marks=pytest.mark.thorough)])
def test_a_model_of_transformers_trains_by_plans(name, run_ranks):
    model = small_model(name).train()
    loss = loss_function(Workload(model=model))
    graph = capture_training(model, loss, in_fixed_order(batch_of(name, 0)))
    plan = random_plan(graph, nodes=1, per_node=2, seed=7)
    (wanted,) = run_ranks(train_by, 1, name, "single")[0]
    assert len(set(wanted)) == STEPS + 1
    for planned, at_random in run_ranks(train_by, 2, name, "planned", plan):
        assert planned == pytest.approx(wanted, rel=1e-5)
        assert at_random == pytest.approx(wanted, rel=1e-5)
