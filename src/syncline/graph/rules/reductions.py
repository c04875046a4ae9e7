"""Rules of reductions, norms, softmax and losses: dims that are summed, normalised or averaged over."""

from __future__ import annotations

from syncline.graph.notation import ExchangeNote, NotationError, Rule
from syncline.graph.rules.call import Call, dim_names

_MEAN = 1
"""The value of the argument `reduction` of losses: 0 is none, 2 is sum."""


def total(call: Call) -> Rule:
    """A sum over dims: they can be split, and leave partial sums."""
    return _reduced(call, "", linear=True)


def average(call: Call) -> Rule:
    """A mean over dims: a sum whose summands each shard scales by its share of the elements."""
    return _reduced(call, "", linear=True, local="mean")


def whole(call: Call) -> Rule:
    """A reduction that is no sum (max, product, variance, norm): its dims are whole."""
    return _reduced(call, "!")


def _reduced(call: Call, mark: str, *, linear: bool = False, local: str | None = None) -> Rule:
    rank = len(call.shape())
    over = set(call.dims(rank))
    keep = call.arguments.get("keepdim", False)
    names = dim_names(rank)
    ins = [f"{name}{mark}" if dim in over else name for dim, name in enumerate(names)]
    outs = ["1" if dim in over else name for dim, name in enumerate(names) if keep or dim not in over]
    result = ", ".join([" ".join(outs) or "."] * len(call.outputs))
    linear_in = ((0,),) if linear else ()
    return Rule(f"{' '.join(ins) or '.'} -> {result}", linear_in=linear_in, local=local)


def sorted_along(call: Call) -> Rule:
    """sort, argsort, topk: one dim is whole, and may get shorter."""
    rank = len(call.shape())
    dim, names = call.dim(rank), dim_names(rank)
    ins = " ".join("x!" if index == dim else name for index, name in enumerate(names)) or "."
    outs = " ".join("y!" if index == dim else name for index, name in enumerate(names)) or "."
    return Rule(f"{ins} -> {', '.join([outs] * len(call.outputs))}")


def similarity(call: Call) -> Rule:
    """Of two tensors along a dim, which is whole and disappears."""
    rank = len(call.shape("x1"))
    if len(call.shape("x2")) != rank:
        raise NotationError("similarity of tensors that broadcast over new dims")
    dim, names = call.dim(rank), dim_names(rank)
    data = " ".join(f"{name}!" if index == dim else name for index, name in enumerate(names))
    result = " ".join(names[:dim] + names[dim + 1 :]) or "."
    return Rule(f"{data}, {data} -> {result}")


def weight_norm(call: Call) -> Rule:
    """v scaled to the length g, for each position of one dim; the other dims are whole."""
    rank = len(call.shape("v"))
    dim, names = call.dim(rank), dim_names(rank)
    data = " ".join(name if index == dim else f"{name}!" for index, name in enumerate(names))
    return Rule(f"{data}, {data} -> {data}")


def softmax(call: Call) -> Rule:
    """Shards of the normalised dim exchange maxima and sums forward, one sum backward."""
    rank = len(call.shape())
    dim, names = call.dim(rank), dim_names(rank)
    rows = " ".join(name for index, name in enumerate(names) if index != dim)
    text = " ".join("k~" if index == dim else name for index, name in enumerate(names)) or "."
    note = ExchangeNote("k", "all_reduce", f"2 {rows}", f"1 {rows}", forward_rounds="2")
    return Rule(f"{text} -> {text}", exchanges=(note,))


def layer_norm(call: Call) -> Rule:
    """Layer and RMS norm. Shards of a normalised dim exchange moments, forward and backward."""
    shape = call.shape("input")
    count = len(call.arguments["normalized_shape"])
    rows = [f"d{index}" for index in range(len(shape) - count)]
    normed = [f"k{index}" for index in range(count)]
    moments = "1" if call.name == "rms_norm" else "2"
    volume = f"{moments} {' '.join(rows)}"
    notes = tuple(ExchangeNote(name, "all_reduce", volume, volume) for name in normed)
    weights = " ".join(f"{name}~" for name in normed)
    data = " ".join([*rows, weights])
    affine = ", ".join([weights] * (1 if call.name == "rms_norm" else 2))
    return Rule(f"{data}, {affine} -> {data}", exchanges=notes)


def group_norm(call: Call) -> Rule:
    """Samples and groups are free; inside a group channels and positions are whole."""
    rank = len(call.shape("input"))
    positions = " ".join(f"x{index}!" for index in range(rank - 2))
    data = f"b (g c!) {positions}"
    sizes = (("g", call.arguments["num_groups"]),)
    return Rule(f"{data}, (g c), (g c) -> {data}", sizes=sizes, local="groups")


def batch_norm(call: Call) -> Rule:
    """Channels are free. Shards of the batch exchange moments while training; else all dims are free."""
    shape = call.shape("input")
    positions = len(shape) - 2
    training = call.arguments["training"]
    batch, mark = ("b~", "!") if training else ("b", "")
    data = " ".join([batch, "c", *(f"x{index}{mark}" for index in range(positions))])
    notes = (ExchangeNote("b", "all_reduce", "2 c", "2 c"),) if training else ()
    return Rule(f"{data}, c, c, c, c -> {data}", exchanges=notes)


def instance_norm(call: Call) -> Rule:
    """Samples and channels are free, positions whole; running statistics tie the samples together."""
    rank = len(call.shape("input"))
    tied = call.arguments["running_mean"] is not None
    positions = " ".join(f"x{index}!" for index in range(rank - 2))
    data = f"{'b!' if tied else 'b'} c {positions}"
    return Rule(f"{data}, c, c, c, c -> {data}")


def elementwise_loss(call: Call) -> Rule:
    """mse, l1, smooth l1, huber, bce, kl: pointwise, then a sum, a mean or nothing over all elements."""
    tensors = ", ".join(["..."] * len(call.inputs))
    reduction = call.arguments["reduction"]
    if reduction == 0:
        return Rule(f"{tensors} -> ...")
    return Rule(f"{tensors} -> .", local="mean" if reduction == _MEAN else None)


def cross_entropy(call: Call) -> Rule:
    """log_softmax and nll_loss in one. Shards of the classes exchange maxima, sums and the target's logit.

    The mean is over the targets that are not ignored, which the shards of a batch have to count together.
    """
    smoothed = call.arguments["label_smoothing"] > 0
    weighted = call.arguments["weight"] is not None
    return _class_loss(call, str(3 + smoothed + weighted), rounds="2")


def nll_loss(call: Call) -> Rule:
    """Picks the target's log-probability: shards of the classes exchange what one of them has."""
    return _class_loss(call, "1", rounds="1")


def _class_loss(call: Call, volume: str, *, rounds: str) -> Rule:
    logits, target = call.shape(), call.shape("target")
    positions = [f"p{index}" for index in range(len(logits) - 2)]
    batch = ["b"] if len(logits) > 1 else []
    rows = " ".join([*batch, *positions])
    dense = logits == target and len(logits) > 0 and call.arguments["target"].dtype.is_floating_point
    classes = "c!" if dense else "c~"
    data = " ".join([*batch, classes, *positions])
    targets = data if dense else rows or "."
    result = rows if call.arguments["reduction"] == 0 and rows else "."
    note = ExchangeNote("c", "all_reduce", f"{volume} {rows}", "0", rounds, "0")
    outputs = ", ".join([result, "."][: len(call.outputs)])
    averaged = call.arguments["reduction"] == _MEAN
    local = ("mean" if dense else "mean_valid") if averaged else None
    notes = () if dense else (note,)
    return Rule(f"{data}, {targets}, c -> {outputs}", exchanges=notes, local=local)
