"""The rule of pointwise ops: every dim is free, and tensors broadcast, aligned at the right."""

from __future__ import annotations

from syncline.graph.notation import Rule, Shape
from syncline.graph.rules.call import Call


def pointwise(call: Call) -> Rule:
    """Each element of the outputs from the elements at the same place in the inputs."""
    return _broadcast(call)


def additive(call: Call) -> Rule:
    """add and sub of tensors: linear in both together; a number that is added spoils that."""
    tensors = tuple(range(len(call.inputs)))
    return _broadcast(call, linear_in=(tensors,) if len(tensors) == 2 else ())


def multiplicative(call: Call) -> Rule:
    """mul: linear in each tensor by itself."""
    return _broadcast(call, linear_in=tuple((index,) for index in range(len(call.inputs))))


def scaled(call: Call) -> Rule:
    """Linear in the first tensor alone: div, neg, conversions, masked_fill with zero."""
    return _broadcast(call, linear_in=((0,),))


def masked_fill(call: Call) -> Rule:
    """Linear when it fills with zero."""
    return _broadcast(call, linear_in=((0,),) if call.arguments.get("value") == 0 else ())


def random_pointwise(call: Call) -> Rule:
    """Dropout and noise of a tensor's shape."""
    return _broadcast(call, random=True)


def feature_dropout(call: Call) -> Rule:
    """Drops whole channels: one random number for each sample and channel."""
    rank = len(call.shape("input"))
    names = " ".join(["b", "c", *(f"x{index}!" for index in range(rank - 2))][:rank])
    return Rule(f"{names} -> {names}", random=True)


def prelu(call: Call) -> Rule:
    """The weight has the channel dim, or one element for all."""
    rank = len(call.shape())
    names = ["b", "c", *(f"x{index}" for index in range(rank - 2))][:rank]
    weight = call.shape("weight")
    slope = ("c" if weight != (1,) and rank > 1 else "1") if weight else "."
    return Rule(f"{' '.join(names) or '.'}, {slope} -> {' '.join(names) or '.'}")


def glu(call: Call) -> Rule:
    """The first half of a dim gated by the second: (half, rest) -> rest."""
    rank = len(call.shape())
    dim = call.dim(rank)
    names = [f"d{index}" for index in range(rank)]
    before = [f"(s! {name})" if index == dim else name for index, name in enumerate(names)]
    return Rule(f"{' '.join(before)} -> {' '.join(names)}", sizes=(("s", 2),))


def factory(call: Call) -> Rule:
    """A tensor from its shape alone."""
    return Rule("-> ...", local="shape", random=call.name.startswith("rand"))


def _broadcast(call: Call, *, linear_in: tuple[tuple[int, ...], ...] = (), random: bool = False) -> Rule:
    tensors = ", ".join(["..."] * len(call.inputs))
    outputs = ", ".join(["..."] * len(call.outputs))
    return Rule(f"{tensors} -> {outputs}", linear_in=linear_in, random=random)


def fits_pointwise(inputs: tuple[Shape | None, ...], outputs: tuple[Shape, ...]) -> bool:
    """Whether outputs have the shape that the inputs broadcast to, as a pointwise op's must."""
    shapes = [shape for shape in inputs if shape is not None]
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    widest = tuple(max(extents) for extents in zip(*padded, strict=True))
    return bool(shapes) and all(shape == widest for shape in outputs)
