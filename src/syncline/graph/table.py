"""The iteration-space table: for each ATen op, its dims and which of them each tensor has.

FLOPs, bytes, legal splits and layouts all derive from it. `notation.py` says how to read a row; an op
whose dims depend on its arguments has a function in `rules/` that writes its row. Ops are listed after
`canonical.py` has reduced synonyms: all views are `reshape` or `permute`, all conversions `to`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from syncline.graph.notation import Contraction, Rule
from syncline.graph.rules import contractions, indexing, pointwise, recurrent, reductions, views
from syncline.graph.rules.call import Call

Row: TypeAlias = str | Rule | Callable[[Call], Rule]

_PRODUCT = (Contraction(((0,), (1,))),)
_EACH = ((0,), (1,))

TABLE: dict[str, Row] = {
    # Products: a dim that only the operands have is summed over.
    "linear": Rule("... k, n k, +n -> ... n", contractions=_PRODUCT, linear_in=((0, 2), (1, 2))),
    "mm": Rule("m k, k n -> m n", contractions=_PRODUCT, linear_in=_EACH),
    "bmm": Rule("b m k, b k n -> b m n", contractions=_PRODUCT, linear_in=_EACH),
    "mv": Rule("m k, k -> m", contractions=_PRODUCT, linear_in=_EACH),
    **dict.fromkeys(("dot", "vdot"), Rule("k, k -> .", linear_in=_EACH)),
    "cdist": "... m k!, ... n k! -> ... m n",
    "outer": Rule("m, n -> m n", linear_in=_EACH),
    "matmul": contractions.matmul,
    "addmm": contractions.add_product,
    "baddbmm": contractions.add_product,
    "linear_chunks": contractions.linear_chunks,
    "addmm_chunks": contractions.addmm_chunks,
    "einsum": contractions.einsum,
    "conv1d": contractions.convolution,
    "conv2d": contractions.convolution,
    "conv3d": contractions.convolution,
    "convolution": contractions.general_convolution,
    "conv_transpose1d": contractions.transposed_convolution,
    "conv_transpose2d": contractions.transposed_convolution,
    "conv_transpose3d": contractions.transposed_convolution,
    "scaled_dot_product_attention": contractions.attention,
    "lstm": recurrent.recurrent,
    "gru": recurrent.recurrent,
    "rnn_tanh": recurrent.recurrent,
    "rnn_relu": recurrent.recurrent,
    "lstm_cell": recurrent.lstm_cell,
    "gru_cell": recurrent.gru_cell,
    # Lookups: a shard of the vocabulary gives its own rows and zeros for the others, which sum up.
    "embedding": indexing.embedding,
    "index_select": indexing.index_select,
    "gather": indexing.gather,
    "take_along_dim": indexing.gather,
    "index": indexing.index,
    "index_put": indexing.index_put,
    "scatter": indexing.scatter,
    "scatter_add": indexing.scatter,
    "one_hot": "... -> ... c!",
    # Norms: the moments of a split dim are exchanged.
    "layer_norm": reductions.layer_norm,
    "rms_norm": reductions.layer_norm,
    "group_norm": reductions.group_norm,
    "batch_norm": reductions.batch_norm,
    "instance_norm": reductions.instance_norm,
    "softmax": reductions.softmax,
    "log_softmax": reductions.softmax,
    "_softmax": reductions.softmax,
    "_log_softmax": reductions.softmax,
    # Losses: a sum or a mean over the samples; classes are exchanged.
    "cross_entropy_loss": reductions.cross_entropy,
    "nll_loss": reductions.nll_loss,
    "nll_loss_nd": reductions.nll_loss,
    "mse_loss": reductions.elementwise_loss,
    "l1_loss": reductions.elementwise_loss,
    "smooth_l1_loss": reductions.elementwise_loss,
    "huber_loss": reductions.elementwise_loss,
    "binary_cross_entropy": reductions.elementwise_loss,
    "binary_cross_entropy_with_logits": reductions.elementwise_loss,
    "kl_div": reductions.elementwise_loss,
    "soft_margin_loss": reductions.elementwise_loss,
    "poisson_nll_loss": reductions.elementwise_loss,
    "hinge_embedding_loss": reductions.elementwise_loss,
    "margin_ranking_loss": reductions.elementwise_loss,
    # Reductions: sums leave partial sums, everything else needs its dims whole.
    "sum": reductions.total,
    "mean": reductions.average,
    **dict.fromkeys(
        ("amax", "amin", "max", "min", "argmax", "argmin", "aminmax", "median"), reductions.whole
    ),
    **dict.fromkeys(("prod", "var", "std", "var_mean", "std_mean", "all", "any"), reductions.whole),
    **dict.fromkeys(
        ("kthvalue", "logsumexp", "norm", "linalg_vector_norm", "count_nonzero"), reductions.whole
    ),
    **dict.fromkeys(("sort", "argsort", "topk"), reductions.sorted_along),
    **dict.fromkeys(("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft"), reductions.sorted_along),
    "cosine_similarity": reductions.similarity,
    "pairwise_distance": "... k!, ... k! -> ...",
    "_weight_norm": reductions.weight_norm,
    # Windows: neighbouring positions are needed, so these dims are whole.
    **dict.fromkeys(("max_pool1d", "avg_pool1d", "adaptive_avg_pool1d"), "... x! -> ... y!"),
    "max_pool2d": "... h! w! -> ... y! x!",
    "avg_pool2d": "... h! w! -> ... y! x!",
    "adaptive_avg_pool2d": "... h! w! -> ... y! x!",
    "max_pool3d": "... d! h! w! -> ... z! y! x!",
    "avg_pool3d": "... d! h! w! -> ... z! y! x!",
    "adaptive_avg_pool3d": "... d! h! w! -> ... z! y! x!",
    "adaptive_max_pool2d": "... h! w! -> ... y! x!, ... y! x!",
    "max_pool2d_with_indices": "... h! w! -> ... y! x!, ... y! x!",
    **dict.fromkeys(("upsample_nearest1d", "upsample_linear1d"), "b c x! -> b c y!"),
    "upsample_nearest2d": "b c h! w! -> b c y! x!",
    "upsample_bilinear2d": "b c h! w! -> b c y! x!",
    "upsample_bicubic2d": "b c h! w! -> b c y! x!",
    "upsample_nearest3d": "b c d! h! w! -> b c z! y! x!",
    "upsample_trilinear3d": "b c d! h! w! -> b c z! y! x!",
    "im2col": "b c h! w! -> b (c k!) l!",
    "col2im": "b (c k!) l! -> b c h! w!",
    "pixel_shuffle": "... c! h! w! -> ... n! y! x!",
    "pixel_unshuffle": "... c! h! w! -> ... n! y! x!",
    # Elements that only move.
    "reshape": views.reshape,
    "permute": views.permute,
    "expand": Rule("... -> ...", linear_in=((0,),), local="shape"),
    "repeat": views.repeat,
    "repeat_interleave": views.repeat_interleave,
    "cat": views.cat,
    "stack": views.stack,
    "split_with_sizes": views.split,
    "unbind": views.unbind,
    "select": views.select,
    "slice": views.slice_dim,
    "select_scatter": views.select_scatter,
    "slice_scatter": views.slice_scatter,
    "pad": views.pad,
    "constant_pad_nd": views.pad,
    **dict.fromkeys(("flip", "roll", "cumsum"), views.along),
    **dict.fromkeys(("cumprod", "cummax", "cummin", "logcumsumexp"), reductions.sorted_along),
    "diff": views.diff,
    **dict.fromkeys(("tril", "triu"), views.last_two),
    "view_as_complex": "... z! -> ...",
    "view_as_real": "... -> ... z!",
    "unfold": views.unfold,
    **dict.fromkeys(("meshgrid", "diag", "diagonal", "diag_embed"), views.all_whole),
    # Pointwise; any other op that torch tags as pointwise has the same rule.
    "add": pointwise.additive,
    "sub": pointwise.additive,
    "mul": pointwise.multiplicative,
    **dict.fromkeys(("div", "neg", "to"), pointwise.scaled),
    "masked_fill": pointwise.masked_fill,
    **dict.fromkeys(("max.other", "min.other", "__and__", "__or__", "__xor__"), pointwise.pointwise),
    **dict.fromkeys(("hardswish", "log_sigmoid", "polar", "complex", "real", "imag"), pointwise.pointwise),
    "bucketize": "..., v! -> ...",
    **dict.fromkeys(("detach", "relu6", "selu", "where", "isfinite", "isclose"), pointwise.pointwise),
    **dict.fromkeys(
        ("dropout", "alpha_dropout", "bernoulli", "normal_functional", "uniform", "exponential", "rrelu"),
        pointwise.random_pointwise,
    ),
    **dict.fromkeys(("feature_dropout", "feature_alpha_dropout"), pointwise.feature_dropout),
    "prelu": pointwise.prelu,
    "glu": pointwise.glu,
    # Tensors from nothing.
    **dict.fromkeys(("zeros", "ones", "full", "empty", "rand", "randn", "randint"), pointwise.factory),
    "scalar_tensor": "-> .",
    "arange": "-> n!",
    "eye": "-> m! n!",
    "linspace": "-> n!",
}
