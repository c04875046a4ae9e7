"""PaSE's own setting (Elango, "PaSE: Parallelization Strategies for Efficient DNN Training", IPDPS 2021).

A flat network of p equal devices, one ratio rho of FLOPs to words, a configuration (parts of each dim) for
every layer, and the paper's cost formulas, over a captured graph of any model. It is here to reproduce the
paper's findings; `planning.search` plans for real clusters.

How captured ops map to the paper's layers (`layer_graph` decides, `rules` and `products` price):

| captured | priced as |
| --- | --- |
| linear, matmul, einsum of two | GEMM; a bias costs nothing; queries, keys and values of a module are one |
| convolution | GEMM with M = batch · positions, K = channels · window; positions are not split |
| embedding | GEMM of a one-hot with the table, in full |
| lstm, gru, rnn; those of equal size in a row as one | GEMM with batch = layers, and its recurrence |
| attention | q kᵀ, softmax and · v in one configuration; the projections are linear layers |
| pooling | one FLOP an output, and the halo |
| layer, group, batch norm | norm; batch norm over the batch alone, or `batch_norm="channel"` |
| softmax, cross entropy, mean | their formulas |
| pointwise op of one tensor | fused into the layer before (`pw`) |
| pointwise op of two tensors | elementwise |
| concatenation, slices, padding, repetition | nothing; the dim that they work along is whole |
| views, permutations, dropout, conversions | no layer: the layout is carried through |
| what does not depend on both an input and a weight | no layer |
| any other op | one FLOP an output; only free dims are split |

It differs from the paper's code in this: a reshape is not confined to contiguous shards of the whole tensor;
two tensors between the same layers are both paid for; where queries come from another tensor than keys and
values, they are a layer of their own, and keys and values another, instead of three stacked products.
"""

from syncline.planning.pase.result import LayerChoice, PaseResult
from syncline.planning.pase.search import plan_pase

__all__ = ["LayerChoice", "PaseResult", "plan_pase"]
