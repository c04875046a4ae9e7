"""Labelled images, changed to the size and the channels that a model takes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from syncline.errors import DataError
from syncline.workloads.workload import Batch, Data, InputSpec

_IMAGES_FOR_STATISTICS = 2000


class ImageSamples:
    """Images of 8 bits (samples, channels, height, width), converted when they are asked for.

    Sizes change on 8-bit values and the rest is done element by element, so that a sample does not depend
    on the others of its batch.
    """

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, input: InputSpec, mean: Tensor, std: Tensor
    ) -> None:
        self._images = images
        self._labels = labels.astype(np.int64)
        self._input = input
        self._mean = mean
        self._std = std

    def __len__(self) -> int:
        """How many images there are."""
        return len(self._labels)

    def rows(self, indices: np.ndarray) -> Batch:
        """The images of these numbers and their labels."""
        images = torch.from_numpy(self._images[indices])
        if self._input.kind == "image":
            images = _resize(images, self._input.shape[1:])
        normal = (images.float() - self._mean) / self._std
        labels = torch.from_numpy(self._labels[indices])
        if self._input.kind == "features":
            return normal.flatten(1), labels
        return _change_channels(normal, self._input.shape[0]), labels


def image_data(
    name: str,
    input: InputSpec,
    *,
    train: tuple[np.ndarray, np.ndarray],
    evaluation: tuple[np.ndarray, np.ndarray],
) -> Data:
    """Data from images of 8 bits (samples, channels, height, width) with labels, checked against a model."""
    images, labels = train
    _check_shape(name, images.shape[1:], input)
    _check_labels(name, max(int(labels.max()), int(evaluation[1].max())), input)
    mean, std = _statistics(images)
    return Data(
        name=name,
        train=ImageSamples(images, labels, input, mean, std),
        evaluation=ImageSamples(*evaluation, input, mean, std),
    )


def _check_shape(name: str, shape: tuple[int, ...], input: InputSpec) -> None:
    given = math.prod(shape)
    if input.kind == "features" and input.shape[0] != given:
        raise DataError(
            f"Data '{name}' gives {given} features (images of {' x '.join(map(str, shape))}), the model "
            f"takes {input.shape[0]}.\nUse a model that takes {given}, such as mlp:features={given}."
        )
    if input.kind == "image" and input.shape[0] != shape[0] and 1 not in (input.shape[0], shape[0]):
        raise DataError(
            f"Data '{name}' gives images of {shape[0]} channels, the model takes {input.shape[0]}: only "
            "from or to one channel can they be converted."
        )


def _check_labels(name: str, highest: int, input: InputSpec) -> None:
    if highest >= input.classes:
        raise DataError(
            f"Data '{name}' has {highest + 1} classes (labels 0 to {highest}), the model tells "
            f"{input.classes} apart.\nUse a model of {highest + 1} classes or more."
        )


def _statistics(images: np.ndarray) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, from images spread over all."""
    spread = images[:: max(1, len(images) // _IMAGES_FOR_STATISTICS)].astype(np.float64)
    mean, std = spread.mean(axis=(0, 2, 3)), spread.std(axis=(0, 2, 3))
    shaped = (torch.from_numpy(value).float()[:, None, None] for value in (mean, np.maximum(std, 1.0)))
    return next(shaped), next(shaped)


def _resize(images: Tensor, size: tuple[int, ...]) -> Tensor:
    if images.shape[2:] == size:
        return images
    return interpolate(images, size=size, mode="bilinear", antialias=True)


def _change_channels(images: Tensor, channels: int) -> Tensor:
    if images.shape[1] == channels:
        return images
    if channels == 1:
        return images.mean(dim=1, keepdim=True)
    return images.expand(-1, channels, -1, -1).contiguous()
