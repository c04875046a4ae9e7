"""What people do, in the paper's setting: data parallelism, and an expert's way for each kind of model.

Each gives every layer a configuration, which need not be one that the search may choose: the cutoff does not
bind it. A dim takes as many parts as both its size and the devices are divisible by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncline.planning.pase.layer import Layer, LayerKind
from syncline.planning.pase.layer_graph import LayerGraph
from syncline.planning.pase.products import BATCH, LAYERS
from syncline.planning.pase.terms import CrossEntropy

Strategy = list[NDArray[np.int64]]
"""A configuration for each layer, as an array of one row."""


@dataclass(frozen=True, slots=True)
class Expert:
    """A published strategy."""

    name: str
    strategy: Callable[[LayerGraph, int], Strategy]


def data_parallel(graph: LayerGraph, devices: int) -> Strategy:
    """Every layer is split in the batch, over all devices."""
    return [_cut(layer, {layer.batch: devices}) for layer in graph.layers]


def expert_for(graph: LayerGraph) -> Expert | None:
    """The expert's strategy that the paper compares with for this kind of model, if there is one."""
    for kind, expert in _EXPERTS.items():
        if graph.has(kind):
            return expert
    return None


def _cut(layer: Layer, wanted: dict[int | None, int]) -> NDArray[np.int64]:
    """A configuration with these parts, as far as the dims allow; None stands for a dim that is not there."""
    parts = [
        math.gcd(wanted.get(index, 1), dim.size) if dim.splittable else 1
        for index, dim in enumerate(layer.nest.dims)
    ]
    return np.array([parts], dtype=np.int64)


def _one_weird_trick(graph: LayerGraph, devices: int) -> Strategy:
    """Krizhevsky (2014): linear layers are split in their outputs, all else in the batch.

    The loss after them is split in the classes.
    """
    return [_cut(layer, {_output_dim(layer): devices}) for layer in graph.layers]


def _output_dim(layer: Layer) -> int | None:
    product = layer.nest.product
    if layer.nest.kind is LayerKind.LINEAR and product and product.n:
        return product.n[0]
    return layer.batch if layer.nest.kind is not LayerKind.LOSS else _classes(layer)


def _classes(layer: Layer) -> int | None:
    """The classes of a loss, if it has any."""
    found = [term.classes for term in layer.nest.terms if isinstance(term, CrossEntropy) and term.classes]
    return found[0][0] if found else None


def _layers_and_data(graph: LayerGraph, devices: int) -> Strategy:
    """As in GNMT (Wu et al., 2016): each recurrent layer on devices of its own, all else in the batch."""
    strategy = []
    for layer in graph.layers:
        wanted: dict[int | None, int] = {layer.batch: devices}
        if layer.nest.kind is LayerKind.RECURRENT:
            layers = math.gcd(devices, layer.nest.dims[LAYERS].size)
            wanted = {LAYERS: layers, BATCH: devices // layers}
        strategy.append(_cut(layer, wanted))
    return strategy


def _batch_and_model(graph: LayerGraph, devices: int) -> Strategy:
    """Mesh-TensorFlow's (Shazeer et al., 2018): a mesh of batch x model.

    Over its model axis heads, hidden units and the vocabulary are split, and the width of the model is not.
    """
    model = _model_parts(devices)
    strategy = []
    for index, layer in enumerate(graph.layers):
        wanted: dict[int | None, int] = {_model_dim(graph, index): model}
        wanted[layer.batch] = devices // model
        strategy.append(_cut(layer, wanted))
    return strategy


def _model_parts(devices: int) -> int:
    """The model axis of the meshes that the paper measured: 4x1, 2x4, 4x4, 4x8, 8x8 for 4 to 64 devices."""
    if devices <= 4:
        return 1
    return math.gcd(devices, 2 ** math.ceil(math.log2(devices) / 2))


def _model_dim(graph: LayerGraph, index: int) -> int | None:
    """The dim of a layer that the model axis splits."""
    layer = graph.layers[index]
    product = layer.nest.product
    if layer.nest.kind is LayerKind.LOSS:
        return _classes(layer)
    if layer.nest.kind is LayerKind.ATTENTION:
        return next((dim for dim in product.batch if dim != layer.batch), None) if product else None
    if layer.nest.kind is LayerKind.EMBEDDING:
        return product.k[0] if product and product.k else None
    if layer.nest.kind is not LayerKind.LINEAR or product is None:
        return None
    return _wider_dim(graph, index)


def _wider_dim(graph: LayerGraph, index: int) -> int | None:
    """Of a linear layer the larger of N and K; if they are equal, N before an attention and K after it."""
    product, dims = graph.layers[index].nest.product, graph.layers[index].nest.dims
    if product is None or not product.n or not product.k:
        return None
    n, k = product.n[-1], product.k[-1]
    if dims[n].size != dims[k].size:
        return n if dims[n].size > dims[k].size else k
    kinds = [layer.nest.kind for layer in graph.layers]
    if any(edge.source == index and kinds[edge.target] is LayerKind.ATTENTION for edge in graph.edges):
        return n
    if any(edge.target == index and kinds[edge.source] is LayerKind.ATTENTION for edge in graph.edges):
        return k
    return None


_EXPERTS = {
    LayerKind.ATTENTION: Expert("batch x model mesh", _batch_and_model),
    LayerKind.RECURRENT: Expert("layers and batch", _layers_and_data),
    LayerKind.CONVOLUTION: Expert("one weird trick", _one_weird_trick),
}
