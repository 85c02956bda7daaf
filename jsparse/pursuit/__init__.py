"""Sparse approximate solutions of linear systems: paths of growing size, or one size.

These functions know matrices only and can be used alone. A system is given as normal equations
`A w = b`, formed or by columns, or as a dictionary `X w = y`. The functions solve one system or a
batch, whose members step together. In shapes, `v` counts systems, `D` atoms, `c` right-hand sides,
`n` rows, `k` the atoms of the longest path, and `e` is `k + 1`.
"""

from .conjugate import scdp as scdp
from .debias import debiased as debiased
from .least_angle import AnglePath as AnglePath
from .least_angle import lars as lars
from .least_angle import lasso as lasso
from .matching import matching_pursuit as matching_pursuit
from .on_atoms import least_squares as least_squares
from .orthogonal import omp as omp
from .orthogonal import stagewise_omp as stagewise_omp
from .path import Path as Path
from .probabilistic import scdpp as scdpp
from .subspace import Subspace as Subspace
from .subspace import cosamp as cosamp
from .subspace import subspace_pursuit as subspace_pursuit
from .subspace import subspace_pursuit_gram as subspace_pursuit_gram
from .system import GramColumns as GramColumns
