"""The exact search: the choice of one configuration a node that costs least in all.

    F(x) = sum over nodes v of c_v(x_v)  +  sum over edges (u, v) of e_uv(x_u, x_v)

with c_v the node costs and e_uv the edge costs; F* is its minimum over all x. PaSE's dynamic program finds
it by what is known as min-sum variable elimination: eliminating v replaces all terms with x_v by the
message  m(x_D) = min over x_v of their sum,  over the set D of nodes that share a term with v. Any order of
elimination gives F*; it decides only how large the messages get. Around it:

- ``layouts``: messages are indexed by classes of configurations that look alike;
- ``bounds``: configurations that no best choice can have are crossed out first, where that pays;
- ``dominance``: so are those that another one can always replace;
- ``ordering``, ``repetition``: the cheapest order that a few greedy rules find;
- ``folding``: tables that repeat, as the layers of a transformer do, are computed once;
- ``tabulation``: dense NumPy arrays, integer back-pointers, bounded blocks.

The memory of a device is no part of F: callers price it into the node costs and solve again with a
``Solver``, which keeps all that does not depend on them.
"""

from syncline.planning.elimination.problem import LayoutCosts
from syncline.planning.elimination.search import evaluate, solve
from syncline.planning.elimination.solution import Solution, Statistics
from syncline.planning.elimination.solver import Solver

__all__ = ["LayoutCosts", "Solution", "Solver", "Statistics", "evaluate", "solve"]
