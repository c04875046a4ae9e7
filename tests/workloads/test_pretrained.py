"""Models of the transformers library, small but real."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from syncline.errors import ModelError
from syncline.workloads.calling import loss_function
from syncline.workloads.pretrained import is_pretrained, mask_tokens, pretrained_input
from syncline.workloads.workload import InputSpec, Workload

transformers: Any = pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")

SMALL_BERT = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


def gpt2(**options: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=256,
        n_positions=33,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def vit() -> Any:
    config = transformers.ViTConfig(
        image_size=16, patch_size=8, num_channels=1, num_labels=7, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config).eval()


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=260, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def bert(kind: str, **options: Any) -> Any:
    return getattr(transformers, kind)(transformers.BertConfig(**SMALL_BERT, **options)).eval()


def windows(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(256, (rows, length + 1), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def test_recognised_by_class() -> None:
    assert is_pretrained(vit())
    assert not is_pretrained(nn.Linear(1, 1))


def test_inputs_come_from_configurations() -> None:
    assert pretrained_input(gpt2()) == InputSpec(kind="tokens", shape=(32,), classes=256)
    assert pretrained_input(vit()) == InputSpec(kind="image", shape=(1, 16, 16), classes=7)
    assert pretrained_input(bert("BertForMaskedLM")) == InputSpec(kind="tokens", shape=(32,), classes=300)
    assert pretrained_input(t5()) == InputSpec(kind="token-pairs", shape=(128, 128), classes=260)
    assert pretrained_input(bert("BertForSequenceClassification")) is None


def test_a_causal_model_predicts_each_target_once() -> None:
    model, (inputs, targets) = gpt2(), windows(3, 32)
    loss = loss_function(Workload(model=model))(model, (inputs, targets))
    logits = model(input_ids=inputs).logits
    torch.testing.assert_close(loss, cross_entropy(logits.flatten(0, 1), targets.flatten()))


def test_a_causal_model_with_other_targets() -> None:
    model, (inputs, _) = gpt2(), windows(3, 32)
    with pytest.raises(ModelError, match="not its inputs one position later"):
        loss_function(Workload(model=model))(model, (inputs, inputs))
    with pytest.raises(ModelError, match="not its inputs one position later"):
        loss_function(Workload(model=model))(model, (inputs, inputs[:, 0]))


def test_mappings_are_passed_on() -> None:
    model, (inputs, targets) = gpt2(), windows(2, 16)
    compute = loss_function(Workload(model=model))
    own = model(input_ids=inputs, labels=inputs).loss
    torch.testing.assert_close(compute(model, {"input_ids": inputs}), own)
    torch.testing.assert_close(compute(model, {"input_ids": inputs, "labels": inputs}), own)
    other = vit()
    with pytest.raises(ModelError, match="keys pixel_values, and 'labels' is missing"):
        loss_function(Workload(model=other))(other, {"pixel_values": torch.zeros(2, 1, 16, 16)})
    by_name = loss_function(
        Workload(model=model, loss=lambda output, labels: output.logits.mean() + labels.sum())
    )
    assert by_name(model, {"input_ids": inputs, "labels": targets}).ndim == 0


def test_pictures_and_their_labels() -> None:
    model, images, labels = vit(), torch.randn(4, 1, 16, 16), torch.arange(4)
    loss = loss_function(Workload(model=model))(model, (images, labels))
    torch.testing.assert_close(loss, cross_entropy(model(pixel_values=images).logits, labels))


def test_pairs_of_sequences() -> None:
    model, (source, _), (decoder, targets) = t5(), windows(2, 12), windows(2, 6)
    loss = loss_function(Workload(model=model))(model, ((source, decoder), targets))
    logits = model(input_ids=source, decoder_input_ids=decoder).logits
    torch.testing.assert_close(loss, cross_entropy(logits.flatten(0, 1), targets.flatten()))


def test_a_masked_model_does_not_see_what_it_must_find() -> None:
    inputs, targets = windows(4, 20)
    masked = mask_tokens(inputs, 299)
    hidden = masked["labels"] != -100
    assert hidden.sum(dim=1).tolist() == [3, 3, 3, 3]
    assert torch.equal(masked["labels"][hidden], inputs[hidden])
    assert torch.equal(masked["input_ids"], torch.where(hidden, 299, inputs))
    assert torch.equal(mask_tokens(inputs[2:], 299)["labels"], masked["labels"][2:])
    model = bert("BertForMaskedLM")
    loss = loss_function(Workload(model=model))(model, (inputs, targets))
    logits = model(input_ids=masked["input_ids"]).logits
    torch.testing.assert_close(loss, cross_entropy(logits[hidden], inputs[hidden]))


def test_classification_of_sequences() -> None:
    model, (inputs, _) = bert("BertForSequenceClassification", num_labels=3), windows(3, 20)
    labels = torch.arange(3)
    loss = loss_function(Workload(model=model))(model, (inputs, labels))
    torch.testing.assert_close(loss, cross_entropy(model(input_ids=inputs).logits, labels))


def test_own_loss_gets_output_and_targets() -> None:
    model, (inputs, targets) = gpt2(), windows(2, 16)

    def own(output: Any, expected: torch.Tensor) -> torch.Tensor:
        return 2 * cross_entropy(output.logits.flatten(0, 1), expected.flatten())

    twice = loss_function(Workload(model=model, loss=own))(model, (inputs, targets))
    torch.testing.assert_close(twice, 2 * loss_function(Workload(model=model))(model, (inputs, targets)))


def test_mistakes() -> None:
    with pytest.raises(ModelError, match="GPT2Model has no loss of its own"):
        loss_function(Workload(model=gpt2().transformer))
    model = gpt2()
    with pytest.raises(
        ModelError, match=r"GPT2LMHeadModel cannot take the batch \(int64 \(2, 40\), int64 \(2, 40\)\)"
    ):
        loss_function(Workload(model=model))(model, windows(2, 40))
    picture = vit()
    with pytest.raises(ModelError, match="ViTForImageClassification cannot take the batch"):
        loss_function(Workload(model=picture))(picture, (torch.zeros(2, 1, 8, 8), torch.zeros(2).long()))
