"""Finding the blocks of a model: its repeated layers, the units that are sharded and recomputed."""

from __future__ import annotations

from collections import Counter
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost sibling modules of one class that repeat in a list and hold parameters.

    In a transformer these are its layers, in a ResNet its residual blocks, in a plain stack of linear
    layers the linear layers. A model without repetition has none.
    """
    if isinstance(model, nn.ModuleList | nn.Sequential):
        children = [child for child in model if any(True for _ in child.parameters())]
        repeated = {kind for kind, count in Counter(map(type, children)).items() if count > 1}
        own = [child for child in children if type(child) in repeated]
        rest = [child for child in model if type(child) not in repeated]
    else:
        own, rest = [], list(model.children())
    return own + [block for child in rest for block in find_blocks(child)]


def recompute_blocks(model: nn.Module) -> None:
    """Let each block recompute its activations in backward instead of keeping them."""
    for block in find_blocks(model) or [model]:
        # An attribute on the instance leaves the names of parameters, and so checkpoints, as they are.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
