"""Selection of prototypes: random rows, maximal entropy, pivoted Cholesky, clusters."""

from .bandwidth import RULES, Bandwidth, normal_reference_bandwidth, plug_in_bandwidth
from .clusters import KCenterResult, KMeansResult, k_center, k_means
from .pivoted_cholesky import PivotedCholeskyResult, pivoted_cholesky
from .renyi import RenyiResult, RenyiState, renyi
from .uniform import interleaved, stratified, uniform

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
