"""Rules of ops that only move elements: dims are mapped through.

In a view that merges or splits dims each factor is an iteration dim of its own, so `(b, t, h·d)` seen as
`(b, t, h, d)` is `d0 d1 (d2 d3) -> d0 d1 d2 d3`: the merged dim can be cut where `d2` can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from syncline.graph.notation import Rule, Shape
from syncline.graph.rules.call import Call, dim_names

_LINEAR = ((0,),)


def reshape(call: Call) -> Rule:
    """Row-major order is kept: both shapes are refined into common factors, where there are any."""
    sides, sizes = _common_factors(call.shape(), call.outputs[0])
    left, right = (" ".join(dims) or "." for dims in sides)
    return Rule(f"{left} -> {right}", sizes=tuple(sizes.items()), linear_in=_LINEAR, local="shape")


def _common_factors(before: Shape, after: Shape) -> tuple[list[list[str]], dict[str, int]]:
    """Each side's dims in the notation, and the sizes of the factors.

    From the outermost dim inwards, the greatest common divisor of what is left of both is a factor. Where
    it is 1 though both go on, the dims up to the next common boundary have no common refinement.
    """
    sides: list[list[list[str]]] = [[[] for _ in before], [[] for _ in after]]
    sizes: dict[str, int] = {}
    if 0 in before:
        return _opaque(before, after, sides, sizes), sizes
    at, left = [0, 0], [1, 1]
    shapes = (before, after)
    while True:
        for side in (0, 1):
            while left[side] == 1 and at[side] < len(shapes[side]):
                left[side] = shapes[side][at[side]]
                at[side] += 1
        if left == [1, 1]:
            break
        factor = math.gcd(*left)
        if factor == 1:
            _skip_to_boundary(shapes, at, left, sides, sizes)
            continue
        name = f"d{len(sizes)}"
        sizes[name] = factor
        for side in (0, 1):
            sides[side][at[side] - 1].append(name)
            left[side] //= factor
    return [[_merged(names) for names in side] for side in sides], sizes


def _skip_to_boundary(
    shapes: tuple[Shape, Shape],
    at: list[int],
    left: list[int],
    sides: list[list[list[str]]],
    sizes: dict[str, int],
) -> None:
    """Marks whole the dims of both sides until as many elements are passed on one as on the other."""
    passed = [1, 1]
    while passed[0] != passed[1] or passed[0] == 1:
        side = 0 if passed[0] <= passed[1] else 1
        if left[side] == 1:
            left[side] = shapes[side][at[side]]
            at[side] += 1
        name = f"d{len(sizes)}"
        sizes[name] = left[side]
        sides[side][at[side] - 1].append(f"{name}!")
        passed[side] *= left[side]
        left[side] = 1


def _opaque(
    before: Shape, after: Shape, sides: list[list[list[str]]], sizes: dict[str, int]
) -> list[list[str]]:
    for side, shape in zip(sides, (before, after), strict=True):
        for names, extent in zip(side, shape, strict=True):
            name = f"d{len(sizes)}"
            sizes[name] = extent
            names.append(f"{name}!")
    return [[_merged(names) for names in side] for side in sides]


def _merged(names: Sequence[str]) -> str:
    if not names:
        return "1"
    return names[0] if len(names) == 1 else f"({' '.join(names)})"


def permute(call: Call) -> Rule:
    """Dims in another order."""
    names = dim_names(len(call.shape()))
    order = [names[dim] for dim in call.dims(len(names), "dims")]
    return Rule(f"{_tensor(names)} -> {_tensor(order)}", linear_in=_LINEAR)


def repeat(call: Call) -> Rule:
    """Each dim becomes (copies, dim); new dims come first."""
    shape, repeats = call.shape(), call.arguments["repeats"]
    names = dim_names(len(shape))
    new = len(repeats) - len(shape)
    copies = dim_names(len(repeats), "r")
    sizes = tuple(zip(copies, repeats, strict=True))
    copies = [f"{copy}!" for copy in copies]
    outs = copies[:new] + [f"({copy} {name})" for copy, name in zip(copies[new:], names, strict=True)]
    return Rule(f"{_tensor(names)} -> {_tensor(outs)}", sizes=sizes, linear_in=_LINEAR)


def repeat_interleave(call: Call) -> Rule:
    """The dim becomes (dim, copies): each element is repeated in place."""
    rank = len(call.shape())
    names = dim_names(rank)
    outs = list(names)
    if call.arguments["dim"] is None:
        return _moved_inside(call, set(range(rank)))
    dim = call.dim(rank)
    outs[dim] = f"({names[dim]} r!)"
    sizes = (("r", call.arguments["repeats"]),)
    return Rule(f"{_tensor(names)} -> {_tensor(outs)}", sizes=sizes, linear_in=_LINEAR)


def cat(call: Call) -> Rule:
    """Joined along a dim, which is therefore whole."""
    shapes = call.shapes("tensors")
    rank = len(call.outputs[0])
    dim, names = call.dim(rank), dim_names(rank)
    inputs = []
    for index, shape in enumerate(shapes):
        legacy_empty = shape == (0,) and rank != 1
        inputs.append(["z!"] if legacy_empty else [*names[:dim], f"c{index}!", *names[dim + 1 :]])
    outs = [*names[:dim], "c!", *names[dim + 1 :]]
    text = ", ".join(_tensor(one) for one in inputs)
    return Rule(f"{text} -> {_tensor(outs)}", linear_in=(tuple(range(len(shapes))),))


def stack(call: Call) -> Rule:
    """Joined along a new dim, which is whole."""
    count, rank = len(call.shapes("tensors")), len(call.outputs[0])
    dim, names = call.dim(rank), dim_names(rank - 1)
    outs = [*names[:dim], "s!", *names[dim:]]
    text = ", ".join([_tensor(names)] * count)
    return Rule(f"{text} -> {_tensor(outs)}", linear_in=(tuple(range(count)),))


def split(call: Call) -> Rule:
    """Cut along a dim. Parts of one size make it (part, rest), and the rest can be split in each part."""
    rank = len(call.shape())
    dim, names = call.dim(rank), dim_names(rank)
    extents = [shape[dim] for shape in call.outputs]
    equal = len(set(extents)) == 1
    before = [*names[:dim], f"(s! {names[dim]})" if equal else "w!", *names[dim + 1 :]]
    outs = [
        [*names[:dim], names[dim] if equal else f"w{index}!", *names[dim + 1 :]]
        for index in range(len(extents))
    ]
    sizes = (("s", len(extents)),) if equal else ()
    text = ", ".join(_tensor(one) for one in outs)
    return Rule(f"{_tensor(before)} -> {text}", sizes=sizes, linear_in=_LINEAR, local="split")


def unbind(call: Call) -> Rule:
    """Cut along a dim, which disappears."""
    rank = len(call.shape())
    dim, names = call.dim(rank), dim_names(rank)
    rest = _tensor(names[:dim] + names[dim + 1 :])
    before = [*names[:dim], "s!", *names[dim + 1 :]]
    return Rule(f"{_tensor(before)} -> {', '.join([rest] * len(call.outputs))}", linear_in=_LINEAR)


def select(call: Call) -> Rule:
    """One position of a dim, which disappears."""
    return unbind(call)


def slice_dim(call: Call) -> Rule:
    """A range of a dim, which is therefore whole; `slice` of all of it changes nothing and is dropped."""
    rank = len(call.shape())
    return _moved_inside(call, {call.dim(rank)})


def slice_scatter(call: Call) -> Rule:
    """A tensor with a range of one dim replaced."""
    rank = len(call.shape())
    dim, names = call.dim(rank), dim_names(rank)
    whole = [*names[:dim], "w!", *names[dim + 1 :]]
    part = [*names[:dim], "v!", *names[dim + 1 :]]
    return Rule(f"{_tensor(whole)}, {_tensor(part)} -> {_tensor(whole)}", linear_in=((0, 1),))


def select_scatter(call: Call) -> Rule:
    """A tensor with one position of a dim replaced."""
    rank = len(call.shape())
    dim, names = call.dim(rank), dim_names(rank)
    whole = [*names[:dim], "w!", *names[dim + 1 :]]
    part = _tensor(names[:dim] + names[dim + 1 :])
    return Rule(f"{_tensor(whole)}, {part} -> {_tensor(whole)}", linear_in=((0, 1),))


def pad(call: Call) -> Rule:
    """Padded dims are whole."""
    rank = len(call.shape())
    padding = call.arguments["pad" if "pad" in call.arguments else "padding"]
    touched = {rank - 1 - index // 2 for index, width in enumerate(padding) if width}
    return _moved_inside(call, touched, linear=not call.arguments.get("value"))


def along(call: Call) -> Rule:
    """Elements move or accumulate inside the dims named, which are whole: flip, roll, cumsum, diff."""
    rank = len(call.shape())
    named = "dims" if "dims" in call.arguments else "dim"
    return _moved_inside(call, set(call.dims(rank, named)))


def diff(call: Call) -> Rule:
    """Differences along a dim, which is whole, of a tensor with others put before and after it."""
    rank = len(call.shape())
    dim, names = call.dim(rank), dim_names(rank)
    tensors = [_tensor([*names[:dim], f"x{index}!", *names[dim + 1 :]]) for index in range(len(call.inputs))]
    return Rule(f"{', '.join(tensors)} -> {_tensor([*names[:dim], 'y!', *names[dim + 1 :]])}")


def unfold(call: Call) -> Rule:
    """Windows of a dim, which is whole; the positions inside a window are a new last dim."""
    rank = len(call.shape())
    dim, names = call.dim(rank, "dimension"), dim_names(rank)
    before = [*names[:dim], "x!", *names[dim + 1 :]]
    after = [*names[:dim], "y!", *names[dim + 1 :], "w!"]
    return Rule(f"{_tensor(before)} -> {_tensor(after)}", linear_in=_LINEAR)


def all_whole(call: Call) -> Rule:
    """Ops that make small grids and diagonals, not worth splitting."""
    shapes = [shape for shape in call.inputs if shape is not None]
    tensors = [
        _tensor([f"d{number}_{dim}!" for dim in range(len(shape))])
        for number, shape in enumerate((*shapes, *call.outputs))
    ]
    return Rule(f"{', '.join(tensors[: len(shapes)])} -> {', '.join(tensors[len(shapes) :])}")


def last_two(call: Call) -> Rule:
    """The matrix in the last two dims is whole: tril and triu."""
    rank = len(call.shape())
    return _moved_inside(call, {rank - 1, rank - 2})


def _moved_inside(call: Call, touched: set[int], *, linear: bool = True) -> Rule:
    """One input; the touched dims are whole, and may change size."""
    before = dim_names(len(call.shape()))
    after = dim_names(len(call.outputs[0]))
    ins = [f"x{dim}!" if dim in touched else name for dim, name in enumerate(before)]
    outs = [f"y{dim}!" if dim in touched else name for dim, name in enumerate(after)]
    if len(before) != len(after):
        ins, outs = [f"x{dim}!" for dim in range(len(before))], [f"y{dim}!" for dim in range(len(after))]
    return Rule(f"{_tensor(ins)} -> {_tensor(outs)}", linear_in=_LINEAR if linear else ())


def _tensor(names: Sequence[str]) -> str:
    return " ".join(names) or "."
