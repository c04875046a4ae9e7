"""From a model to its computation graph: every op with its iteration space, FLOPs and bytes."""

from syncline.graph.blocks import Repetition as Repetition
from syncline.graph.blocks import find_repetitions as find_repetitions
from syncline.graph.blocks import fold as fold
from syncline.graph.capture import capture as capture
from syncline.graph.capture import capture_training as capture_training
from syncline.graph.opgraph import Op as Op
from syncline.graph.opgraph import OpGraph as OpGraph
from syncline.graph.opgraph import Tensor as Tensor
from syncline.graph.opgraph import TensorKind as TensorKind
from syncline.graph.opgraph import TensorRef as TensorRef
from syncline.graph.opgraph import resolve as resolve
from syncline.graph.space import Dim as Dim
from syncline.graph.space import DimKind as DimKind
from syncline.graph.space import Exchange as Exchange
from syncline.graph.space import IterationSpace as IterationSpace
from syncline.graph.space import Operand as Operand
