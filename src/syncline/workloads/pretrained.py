"""Models of the `transformers` library: recognised and called by their own convention, never imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from syncline.errors import ModelError
from syncline.workloads.workload import Batch, InputSpec

DEFAULT_LENGTH = 128
"""How many tokens a sequence has when nothing says otherwise."""

_MASKED_SHARE = 0.15
_IGNORED = -100


def is_pretrained(model: nn.Module) -> bool:
    """Whether this is a `transformers` model, known by its base class so that nothing is imported."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.partition(".")[0] == "transformers"
        for kind in type(model).__mro__
    )


def pretrained_input(model: nn.Module) -> InputSpec | None:
    """What a `transformers` model takes, from its configuration; None when that does not say.

    A causal model gets whole windows of one token more than it predicts from (see `PretrainedCall`), and
    all of them must have a position.
    """
    config: Any = model.config
    if _main_input(model) == "pixel_values":
        return _image_input(config)
    text: Any = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    if _main_input(model) != "input_ids" or not isinstance(vocabulary, int) or not _predicts_tokens(model):
        return None
    most = getattr(text, "max_position_embeddings", None) or DEFAULT_LENGTH + 1
    length = min(DEFAULT_LENGTH, most - _is_causal(model))
    if getattr(config, "is_encoder_decoder", False):
        return InputSpec(kind="token-pairs", shape=(length, length), classes=vocabulary)
    return InputSpec(kind="tokens", shape=(length,), classes=vocabulary)


def prepare_pretrained(model: nn.Module) -> None:
    """Turn off the cache for generating, which training fills for nothing."""
    config: Any = model.config
    if getattr(config, "use_cache", False):
        config.use_cache = False


class PretrainedCall:
    """`model(input_ids=..., labels=...)` or `pixel_values`, and the loss that the model computes itself.

    A batch that is a mapping is passed on as it is. For (inputs, targets):

    - A causal model shifts labels itself: the logits at position t are compared with label t + 1, and the
      last logits with nothing. Inputs x[0..T) with targets y[t] = x[t + 1] therefore become the whole
      window x[0..T] as ids and as labels: T predictions, the same mean as cross-entropy of (x, y).
    - A masked model would see the answers in such a window. It gets the inputs with 15% of the tokens of
      each row hidden, and has to find these.
    - An encoder-decoder gets its decoder's input, so it does not have to make it from the labels.
    - Any other model gets the targets as labels.

    With a loss of the user's own the model gets no labels, and the loss gets its output and the targets.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Tensor], Tensor] | None = None) -> None:
        self._name = type(model).__name__
        self._own_loss = loss
        self._main_input = _main_input(model)
        self._causal = _is_causal(model)
        self._mask_token = _mask_token(model) if _has_base(model, ("ForMaskedLM",)) else None
        if loss is None and "labels" not in inspect.signature(model.forward).parameters:
            raise ModelError(
                f"The model {self._name} has no loss of its own: its forward takes no labels.\n"
                "Use one with a head, such as GPT2LMHeadModel for GPT2Model, or give a loss: "
                "Workload(model=..., loss=...)."
            )

    def check(self, batch: Batch) -> None:
        """A causal model must be given targets that are the inputs one position later."""
        if isinstance(batch, Mapping):
            if "labels" not in batch and (self._own_loss is not None or not self._causal):
                raise ModelError(
                    f"The batch of {self._name} has the keys {', '.join(batch)}, and 'labels' is missing."
                )
            return
        inputs, targets = batch
        if not self._causal or self._own_loss is not None or not isinstance(inputs, Tensor):
            return
        if inputs.shape != targets.shape or not _follows(inputs, targets):
            raise ModelError(
                f"The model {self._name} predicts the next token, but the targets of the batch are not its "
                "inputs one position later.\nGive the batches as mappings with input_ids and labels, or give "
                "a loss: Workload(model=..., loss=...)."
            )

    def arguments(self, batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The keyword arguments of the model."""
        if isinstance(batch, Mapping):
            return (), self._mapping_arguments(batch)
        inputs, targets = batch
        if isinstance(inputs, tuple):
            named = {self._main_input: inputs[0], "decoder_input_ids": inputs[1]}
            return (), named if self._own_loss else {**named, "labels": targets}
        if self._own_loss is not None:
            return (), {self._main_input: inputs}
        if self._causal:
            window = torch.cat([inputs, targets[:, -1:]], dim=1)
            return (), {self._main_input: window, "labels": window}
        if self._mask_token is not None:
            return (), mask_tokens(inputs, self._mask_token)
        return (), {self._main_input: inputs, "labels": targets}

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """The model's own loss, or the user's."""
        if self._own_loss is None:
            return output.loss
        return self._own_loss(output, batch["labels"] if isinstance(batch, Mapping) else batch[1])

    def _mapping_arguments(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        if self._own_loss is not None:
            return {key: value for key, value in batch.items() if key != "labels"}
        return dict(batch) if "labels" in batch else {**batch, "labels": batch[self._main_input]}


def _follows(inputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are the inputs one position later; tensors without values, in a capture, may be."""
    has_values = type(inputs) is Tensor and not inputs.is_meta
    return not has_values or torch.equal(inputs[:, 1:], targets[:, :-1])


def mask_tokens(ids: Tensor, mask_token: int) -> dict[str, Tensor]:
    """Hide some tokens of each row, to be found again.

    Which ones depends on the row alone, so not on the rank or the step, and their number is the same in
    each row, so that the mean over ranks of means is the mean over all.
    """
    length = ids.shape[1]
    positions = torch.arange(1, length + 1, device=ids.device)
    row_keys = (ids * positions).sum(dim=1, keepdim=True)
    scores = ((row_keys + positions) * 2654435761) % 4294967291
    hidden = scores.topk(max(1, round(length * _MASKED_SHARE)), dim=1).indices
    labels = torch.full_like(ids, _IGNORED).scatter(1, hidden, ids.gather(1, hidden))
    return {"input_ids": ids.scatter(1, hidden, mask_token), "labels": labels}


def _main_input(model: nn.Module) -> str:
    return str(getattr(model, "main_input_name", "input_ids"))


def _has_base(model: nn.Module, endings: tuple[str, ...]) -> bool:
    return any(kind.__name__.endswith(endings) for kind in type(model).__mro__)


def _is_causal(model: nn.Module) -> bool:
    return _has_base(model, ("ForCausalLM", "LMHeadModel"))


def _predicts_tokens(model: nn.Module) -> bool:
    return _is_causal(model) or _has_base(model, ("ForMaskedLM", "ForConditionalGeneration"))


def _mask_token(model: nn.Module) -> int:
    """The tokenizer's business, as a rule; the last token of the vocabulary when the model has no say."""
    config: Any = model.config
    given = getattr(config, "mask_token_id", None)
    return given if isinstance(given, int) else config.get_text_config().vocab_size - 1


def _image_input(config: Any) -> InputSpec | None:
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    match size:
        case int():
            height = width = size
        case [int() as height, int() as width]:
            pass
        case _:
            return None
    return InputSpec(kind="image", shape=(channels, height, width), classes=config.num_labels)
