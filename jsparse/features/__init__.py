"""Feature maps: `Phi` with its penalty `R`, and the conversion of weights to an expansion."""

from .base import FeatureMap as FeatureMap
from .columns import KernelColumns as KernelColumns
from .linear import Linear as Linear
from .nystroem import Nystroem as Nystroem
from .triangular import Triangular as Triangular
