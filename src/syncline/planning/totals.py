"""Adding up the predicted time and memory of a complete choice.

On a machine that was measured, a step also takes a *workspace*: what the process takes before any model, a
fresh gradient and two temporaries of the optimizer as large as the largest parameter, and the largest
activation's gradient with a copy. CPU ranks, whose C library keeps freed blocks up to a size, hold on to the
buckets of the first step, which are made anew after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from syncline.planning.calibration import MachineFigures
from syncline.planning.parameter_costs import ParameterCosts
from syncline.planning.prediction import Memory, Prediction, Times
from syncline.planning.tables import Node

KEPT_BLOCK_BYTES = 32e6
"""Buckets of gradients smaller than this stay with the process; larger ones go back to the system."""
PARAMETER_TEMPORARIES = 3.0
ACTIVATION_TEMPORARIES = 2.0


@dataclass(slots=True)
class Totals:
    """Adds up what the chosen nodes and edges cost."""

    machine: MachineFigures | None = None
    """What was measured in place of estimates."""
    compute_s: float = 0.0
    recompute_s: float = 0.0
    redistribute_s: float = 0.0
    exchange_s: float = 0.0
    parameters_s: float = 0.0
    waited_s: float = 0.0
    optimizer_s: float = 0.0
    weights: float = 0.0
    gradients: float = 0.0
    optimizer_state: float = 0.0
    saved: float = 0.0
    gathered: float = 0.0
    first_buckets: float = 0.0
    largest_parameter: float = 0.0
    largest_activation: float = 0.0
    recomputed: dict[str, float] = field(default_factory=dict)
    """By block, what it keeps only while its backward runs."""

    def add_node(self, node: Node, chosen: int, kept: int, *, recompute: bool) -> None:
        """Add a node's choice; `kept` is an index into `KEEPINGS`."""
        again = recompute and node.block is not None
        if node.costs is not None:
            own = node.costs
            self.compute_s += node.weight * (own.forward_s[chosen] + own.backward_s[chosen])
            exchange_s = own.forward_exchange_s[chosen] + own.backward_exchange_s[chosen]
            self.exchange_s += node.weight * exchange_s
            if again:
                self.recompute_s += node.weight * (own.forward_s[chosen] + own.forward_exchange_s[chosen])
        if node.output_bytes is not None:
            self.largest_activation = max(self.largest_activation, float(node.output_bytes[chosen]))
        saved = node.entering_bytes if again else node.saved_bytes
        self.saved += node.weight * saved[chosen] if saved is not None else 0.0
        if again and node.block is not None and node.saved_bytes is not None and saved is not None:
            dropped = float(node.saved_bytes[chosen] - saved[chosen])
            self.recomputed[node.block] = self.recomputed.get(node.block, 0.0) + dropped
        if node.parameters is not None:
            self._add_parameters(node.parameters, node.weight, chosen, kept)

    def _add_parameters(self, own: ParameterCosts, weight: int, chosen: int, kept: int) -> None:
        sent_s = own.forward_gather_s[chosen, kept] + own.backward_reduce_s[chosen, kept]
        self.parameters_s += weight * sent_s
        self.waited_s += weight * own.waited_s[chosen, kept]
        self.optimizer_s += weight * own.optimizer_s[chosen, kept]
        self.weights += weight * own.weight_bytes[chosen, kept]
        self.gradients += weight * own.gradient_bytes[chosen, kept]
        self.optimizer_state += weight * own.state_bytes[chosen, kept]
        # The next weights are gathered while these are in use.
        self.gathered = max(self.gathered, 2 * own.gathered_bytes[chosen, kept])
        if not own.gathered_bytes[chosen, kept] and own.weight_bytes[chosen, kept] < KEPT_BLOCK_BYTES:
            self.first_buckets += weight * own.gradient_bytes[chosen, kept]
        self.largest_parameter = max(self.largest_parameter, float(own.weight_bytes[chosen, kept]))

    def prediction(self, exposed_share: float) -> Prediction:
        """The sums, with the share of parameter communication that is not hidden."""
        return Prediction(
            times=Times(
                compute_s=float(self.compute_s),
                recompute_s=float(self.recompute_s),
                redistribute_s=float(self.redistribute_s),
                exchange_s=float(self.exchange_s),
                parameters_s=float(self.parameters_s + self.waited_s),
                hidden_s=float(self.parameters_s * (1 - exposed_share)),
                optimizer_s=float(self.optimizer_s),
            ),
            memory=Memory(
                weights=float(self.weights),
                gradients=float(self.gradients),
                optimizer_state=float(self.optimizer_state),
                saved_activations=float(self.saved),
                gather_buffers=float(self.gathered + max(self.recomputed.values(), default=0.0)),
                workspace=float(self._workspace),
            ),
        )

    @property
    def _workspace(self) -> float:
        if self.machine is None:
            return 0.0
        temporaries = PARAMETER_TEMPORARIES * self.largest_parameter
        temporaries += ACTIVATION_TEMPORARIES * self.largest_activation
        process = self.machine.process_bytes + self.machine.capture_bytes
        return process + temporaries + self._kept_buckets

    @property
    def _kept_buckets(self) -> float:
        on_cpu = self.machine is not None and not self.machine.gathers_beside_compute
        return self.first_buckets if on_cpu else 0.0
