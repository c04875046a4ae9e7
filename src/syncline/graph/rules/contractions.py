"""Rules of matrix products, convolutions and attention, whose notation depends on ranks or groups."""

from __future__ import annotations

from syncline.graph.notation import Contraction, Rule, Shape
from syncline.graph.rules.call import Call, dim_names

_PRODUCT = (Contraction(((0,), (1,))),)
_BILINEAR = ((0,), (1,))


def matmul(call: Call) -> Rule:
    """Vectors, matrices and batches of matrices; batch dims broadcast."""
    left, right = len(call.shape("self")), len(call.shape("other"))
    rows = "m " if left > 1 else ""
    columns = " n" if right > 1 else ""
    batched = max(left, right) > 2
    lead = "... " if batched else ""
    first = f"{lead if left > 2 else ''}{rows}k"
    second = f"{lead if right > 2 else ''}k{columns}"
    result = f"{lead}{rows}{columns}".strip() or "."
    return Rule(f"{first}, {second} -> {result}", contractions=_PRODUCT, linear_in=_BILINEAR)


def add_product(call: Call) -> Rule:
    """addmm and baddbmm: beta·self + alpha·(a @ b); self broadcasts and is added once."""
    rank = len(call.outputs[0])
    names = ["b", "m", "n"][-rank:]
    lead = "b " if rank == 3 else ""
    added = " ".join(names[rank - len(call.shape()) :]) or "."
    text = f"+{added}, {lead}m k, {lead}k n -> {lead}m n"
    return Rule(text, contractions=(Contraction(((1,), (2,))),), linear_in=((0, 1), (0, 2)))


def linear_chunks(call: Call) -> Rule:
    """linear, cut into equal chunks: the outputs of each are n, all together (s n)."""
    outputs = ", ".join(["... n"] * len(call.outputs))
    return Rule(
        f"... k, (s! n) k, +(s n) -> {outputs}",
        contractions=_PRODUCT,
        sizes=(("s", len(call.outputs)),),
        linear_in=((0, 2), (1, 2)),
    )


def addmm_chunks(call: Call) -> Rule:
    """addmm, cut into equal chunks: the outputs of each are n, all together (s n)."""
    outputs = ", ".join(["m n"] * len(call.outputs))
    return Rule(
        f"+(s! n), m k, k (s n) -> {outputs}",
        contractions=(Contraction(((1,), (2,))),),
        sizes=(("s", len(call.outputs)),),
        linear_in=((0, 1), (0, 2)),
    )


def einsum(call: Call) -> Rule:
    """The equation itself; a repeated subscript within one tensor (a diagonal) is whole."""
    equation = call.arguments["equation"].replace(" ", "").replace(".", "")
    left, arrow, right = equation.partition("->")
    if "..." in call.arguments["equation"]:
        return _einsum_with_ellipsis(call)
    if not arrow:
        letters = [letter for letter in left if letter != ","]
        right = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    tensors = [*left.split(","), right]
    whole = {letter for subscripts in tensors for letter in subscripts if subscripts.count(letter) > 1}
    texts = [" ".join(_subscript(letter, whole) for letter in subscripts) or "." for subscripts in tensors]
    count = len(tensors) - 1
    factors = tuple((index,) for index in range(count))
    return Rule(
        f"{', '.join(texts[:-1])} -> {texts[-1]}",
        contractions=(Contraction(factors),) if count > 1 else (),
        linear_in=factors,
    )


def _einsum_with_ellipsis(call: Call) -> Rule:
    equation = call.arguments["equation"].replace(" ", "")
    left, arrow, right = equation.partition("->")
    if not arrow:
        letters = [letter for letter in left if letter.isalpha()]
        right = "..." + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    texts = []
    for subscripts in (*left.split(","), right):
        head, dots, tail = subscripts.partition("...")
        parts = [_subscript(one, set()) for one in head] + ["..."] * bool(dots)
        texts.append(" ".join(parts + [_subscript(one, set()) for one in tail]) or ".")
    factors = tuple((index,) for index in range(len(texts) - 1))
    contractions = (Contraction(factors),) if len(factors) > 1 else ()
    return Rule(f"{', '.join(texts[:-1])} -> {texts[-1]}", contractions=contractions, linear_in=factors)


def _subscript(letter: str, whole: set[str]) -> str:
    """Capital subscripts need a name of their own in the notation."""
    name = letter if letter.islower() else f"{letter.lower()}_"
    return f"{name}!" if letter in whole else name


def convolution(call: Call) -> Rule:
    """b (g c) i…, (g n) c k… -> b (g n) o…: groups, and in each group all inputs to all outputs.

    Output positions are whole, because neighbours would need each other's border, unless the kernel is
    one point and covers every position.
    """
    weight, before, after = call.shape("weight"), call.shape("input"), call.outputs[0]
    spatial = len(weight) - 2
    batch = "b " if len(before) == spatial + 2 else ""
    positions = [f"o{index}" for index in range(spatial)]
    one_point = weight[2:] == (1,) * spatial and before[-spatial:] == after[-spatial:] and not _padded(call)
    outs = " ".join(positions if one_point else [f"{name}!" for name in positions])
    ins = outs if one_point else " ".join(f"i{index}!" for index in range(spatial))
    kernel = " ".join(f"k{index}!" for index in range(spatial))
    text = f"{batch}(g c) {ins}, (g n) c {kernel}, +(g n) -> {batch}(g n) {outs}"
    return _convolution_rule(call, text, " ".join(positions), spatial)


def transposed_convolution(call: Call) -> Rule:
    """b (g c) i…, (g c) n k… -> b (g n) o…: each input position is multiplied by the whole kernel."""
    weight, before = call.shape("weight"), call.shape("input")
    spatial = len(weight) - 2
    batch = "b " if len(before) == spatial + 2 else ""
    ins, outs = (" ".join(f"{name}{index}!" for index in range(spatial)) for name in "io")
    kernel = " ".join(f"k{index}!" for index in range(spatial))
    text = f"{batch}(g c) {ins}, (g c) n {kernel}, +(g n) -> {batch}(g n) {outs}"
    positions = " ".join(f"i{index}" for index in range(spatial))
    return _convolution_rule(call, text, positions, spatial)


def _convolution_rule(call: Call, text: str, positions: str, spatial: int) -> Rule:
    kernel = " ".join(f"k{index}" for index in range(spatial))
    return Rule(
        text,
        contractions=(Contraction(((0,), (1,)), f"b g c n {positions} {kernel}"),),
        sizes=(("g", call.arguments["groups"]),),
        linear_in=((0, 2), (1, 2)),
        local="groups",
    )


def _padded(call: Call) -> bool:
    padding = call.arguments["padding"]
    return padding not in ("valid", "same") and any(padding if isinstance(padding, tuple) else (padding,))


def general_convolution(call: Call) -> Rule:
    """`convolution`, which says in an argument whether it is transposed."""
    return transposed_convolution(call) if call.arguments["transposed"] else convolution(call)


def attention(call: Call) -> Rule:
    """softmax(q kᵀ) v. Batches and heads are free; so are queries, unless the mask is causal.

    With grouped queries the heads of q are (h g), g of them sharing one head of k and v.
    """
    query, key, mask = call.shape("query"), call.shape("key"), call.arguments["attn_mask"]
    rows = "s!" if call.arguments["is_causal"] else "s"
    lead = len(query) - 2
    names = dim_names(lead)
    grouped = call.arguments["enable_gqa"] and lead and query[-3] != key[-3]
    heads = names if not grouped else [*names[:-1], f"({names[-1]} g)"]
    queries, keys = " ".join(heads), " ".join(names)
    text = f"{queries} {rows} e!, {keys} t! e, {keys} t f!"
    if mask is not None:
        text += f", {_mask(mask.shape, heads)}"
    group = " g" if grouped else ""
    over = f"{' '.join(names)}{group} s t"
    return Rule(
        f"{text} -> {queries} s f",
        contractions=(
            Contraction(((0,), (1,)), f"{over} e"),
            Contraction(((0, 1), (2,)), f"{over} f"),
        ),
        sizes=(("g", query[-3] // key[-3]),) if grouped else (),
        random=call.arguments["dropout_p"] > 0,
    )


def _mask(shape: Shape, heads: list[str]) -> str:
    """A mask broadcasts over queries' batches and heads, aligned at the right."""
    names = [*heads, "s", "t"]
    return " ".join(names[len(names) - len(shape) :])
