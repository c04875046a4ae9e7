"""Rules of ops that read or write at positions given by a tensor."""

from __future__ import annotations

from syncline.graph.notation import NotationError, Rule
from syncline.graph.opgraph import Tensor
from syncline.graph.rules.call import Call, dim_names


def embedding(call: Call) -> Rule:
    """v d, ... -> ... d: a shard of the vocabulary gives zeros for the rows that it has not."""
    if call.arguments["scale_grad_by_freq"]:  # How often a row is looked up must be counted as a whole.
        positions = " ".join(f"i{place}!" for place in range(len(call.shape("indices")))) or "."
        return Rule(f"v! d, {positions} -> {positions if positions != '.' else ''} d", linear_in=((0,),))
    return Rule("v d, ... -> ... d", linear_in=((0,),), local="lookup")


def index_select(call: Call) -> Rule:
    """Rows of one dim, which is whole; the positions asked for are free."""
    rank = len(call.shape())
    dim, names = call.dim(rank), dim_names(rank)
    before = " ".join("v!" if index == dim else name for index, name in enumerate(names))
    after = " ".join("i" if index == dim else name for index, name in enumerate(names))
    return Rule(f"{before}, i -> {after}", linear_in=((0,),))


def gather(call: Call) -> Rule:
    """One element for each position of `index`; other dims are free where index and self agree."""
    before, index = call.shape(), call.shape("index" if "index" in call.arguments else "indices")
    if call.arguments["dim"] is None or len(before) != len(index):
        raise NotationError("gather of a flattened or broadcast tensor")
    dim = call.dim(len(before))
    ins, outs = [], []
    for place, (extent, wanted) in enumerate(zip(before, index, strict=True)):
        aligned = extent == wanted and place != dim
        ins.append(f"d{place}" if aligned else f"x{place}!")
        outs.append(f"d{place}" if aligned else (f"i{place}" if place == dim else f"i{place}!"))
    outs_text = " ".join(outs) or "."
    return Rule(f"{' '.join(ins) or '.'}, {outs_text} -> {outs_text}", linear_in=((0,),))


def scatter(call: Call) -> Rule:
    """self with elements of src (or a number) put or added at `index`; the dim is whole."""
    before, index = call.shape(), call.shape("index")
    dim = call.dim(len(before))
    src = call.arguments.get("src")
    source = src.shape if isinstance(src, Tensor) else index
    data, positions, values = [], [], []
    for place, extent in enumerate(before):
        aligned = extent == index[place] == source[place] and place != dim
        data.append(f"d{place}" if aligned else f"x{place}!")
        positions.append(f"d{place}" if aligned else f"i{place}!")
        values.append(f"d{place}" if aligned else f"s{place}!")
    texts = [" ".join(data) or ".", " ".join(positions) or "."]
    if isinstance(src, Tensor):
        texts.append(" ".join(values) or ".")
    return Rule(f"{', '.join(texts)} -> {texts[0]}")


def index(call: Call) -> Rule:
    """Advanced indexing: indexed dims are whole, the others free, and so are the positions asked for."""
    before, indices = call.shape(), call.arguments["indices"]
    if any(one is not None and not _is_positions(one) for one in indices):
        raise NotationError("indexing by a mask has no fixed shape")
    names = dim_names(len(before))
    indexed = [place for place, one in enumerate(indices) if one is not None]
    ins = [f"x{place}!" if place in indexed else name for place, name in enumerate(names)]
    count = len(call.outputs[0]) - (len(before) - len(indexed))
    wanted = [f"i{place}" for place in range(count)]
    rest = [name for place, name in enumerate(names) if place not in indexed]
    adjacent = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    start = indexed[0] if adjacent else 0
    outs = rest[:start] + wanted + rest[start:]
    texts = [" ".join(ins)]
    for one in indices:
        shape = one.shape if one is not None else ()
        texts.append(" ".join(wanted[count - len(shape) :]) or ".")
    return Rule(f"{', '.join(texts)} -> {' '.join(outs) or '.'}", linear_in=((0,),))


def index_put(call: Call) -> Rule:
    """Writing at indexed positions: everything but dims that are not indexed is whole."""
    before, indices = call.shape(), call.arguments["indices"]
    names = dim_names(len(before))
    indexed = [place for place, one in enumerate(indices) if one is not None]
    data = [f"x{place}!" if place in indexed else f"{name}!" for place, name in enumerate(names)]
    texts = [" ".join(data)]
    for number, one in enumerate(indices):
        shape = one.shape if one is not None else ()
        texts.append(" ".join(f"i{number}_{place}!" for place in range(len(shape))) or ".")
    values = call.shape("values")
    texts.append(" ".join(f"v{place}!" for place in range(len(values))) or ".")
    return Rule(f"{', '.join(texts)} -> {texts[0]}")


def _is_positions(value: object) -> bool:
    return isinstance(value, Tensor) and not value.dtype.is_floating_point and value.dtype.itemsize > 1
