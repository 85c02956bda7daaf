"""Selection of prototypes: random rows, maximal entropy, pivoted Cholesky, clusters."""

from .bandwidth import RULES as RULES
from .bandwidth import Bandwidth as Bandwidth
from .bandwidth import normal_reference_bandwidth as normal_reference_bandwidth
from .bandwidth import plug_in_bandwidth as plug_in_bandwidth
from .clusters import KCenterResult as KCenterResult
from .clusters import KMeansResult as KMeansResult
from .clusters import k_center as k_center
from .clusters import k_means as k_means
from .pivoted_cholesky import PivotedCholeskyResult as PivotedCholeskyResult
from .pivoted_cholesky import pivoted_cholesky as pivoted_cholesky
from .renyi import RenyiResult as RenyiResult
from .renyi import RenyiState as RenyiState
from .renyi import renyi as renyi
from .uniform import interleaved as interleaved
from .uniform import stratified as stratified
from .uniform import uniform as uniform

# `help` of the package shows these names.
__all__ = [
    "RULES",
    "Bandwidth",
    "KCenterResult",
    "KMeansResult",
    "PivotedCholeskyResult",
    "RenyiResult",
    "RenyiState",
    "interleaved",
    "k_center",
    "k_means",
    "normal_reference_bandwidth",
    "pivoted_cholesky",
    "plug_in_bandwidth",
    "renyi",
    "stratified",
    "uniform",
]
