"""Imitation of a large machine: move few prototypes until a machine on them has its values."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._blocks import map_row_blocks
from .._numerics import as_array, like
from .._programs import compiled
from .._types import Key
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..kernels.mixed import categorical_columns
from . import direct
from .fixed_size import FixedSize
from .held_out import HeldOut, OnFold
from .inner_problems import LeastSquares
from .method import Method, Points, PointTable, TrainingRows
from .rows import FoldLayout, Rows

STEPS = 40  # limit of the descent; later steps gain little
KERNEL_VALUES = 2**20  # limit of the kernel values in one evaluation, which bounds a step's time
# Weight of the squared difference from the teacher. As the teacher's values have no noise, the
# penalty only has to keep the coefficients small enough for float64.
C = 1e4
NEIGHBOURS = 5  # a row is interpolated with one of these nearest rows
_BLOCK = 256  # rows whose distances to all rows are held at once


class MovedPrototypes(FixedSize):
    """A fixed-size LS-SVM whose prototypes are given, validated on the first fold alone.

    Args:
        prototypes: points in raw units, shape `m d`.
    """

    prototypes: Any = eqx.field(default=None, kw_only=True)

    def validation_folds(self, folds: Any, n: int) -> Any:
        """See `Method.validation_folds`: the first fold, which the prototypes have not seen."""
        return folds._replace(index=folds.index[:1], valid=folds.valid[:1])

    def fits_from_fold_sums(self, r: int, s: int) -> bool:
        """See `Method.fits_from_fold_sums`: they would validate folds that prototypes have seen."""
        return False

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `Method.held_out`: fit to the rows, as the sums of one fold lack all other rows."""
        folds = self.validation_folds(folds, len(rows))
        return Method.held_out(self, kernel, points, C, rows, folds, on_fold, key)

    def validation_text(self, folds: int) -> str:
        """See `Method.validation_text`."""
        return f"1 of {super().validation_text(folds)} held out"

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """See `Method.choose_points`: the setting `prototypes`, in scaled units."""
        return Points(rows.scaling.apply(as_array(self.prototypes, rows.X.dtype)), None)


def imitate(
    teacher: KernelExpansion, start: Float[Array, "m d"], X: Float[Array, "n d"], key: Key
) -> direct.Minimum:
    """Move prototypes until a machine on them has the values of a large machine, the teacher.

    The direct method (Wu et al. 2006, Section 2) minimises the squared difference between both
    machines, summed over rows and over points between a row and one of its nearest rows. Ridge
    regression gives the coefficients for given prototypes. One random sample of the rows serves all
    steps. It is so small that evaluating the objective takes at most `KERNEL_VALUES` kernel values.
    Codes of categories are neither interpolated nor moved.

    Args:
        teacher: the large machine, without a scaling.
        start: prototypes to start from, in the units of the teacher's prototypes.
        X: rows, in the units of the prototypes.
        key: decides the rows and the points between them.

    Returns:
        `direct.Minimum`, with the prototypes `Z`. Not differentiable.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32).tolist())
    n = max(1, min(len(X), KERNEL_VALUES // (2 * len(start))))
    numbers = rng.permutation(len(X))[:n]
    ranks = rng.integers(1, min(NEIGHBOURS, n - 1) + 1, n) if n > 1 else np.zeros(n, int)
    rows = jax.device_put(np.asarray(X)[numbers])
    columns = np.ones(X.shape[1])
    columns[list(categorical_columns(teacher.kernel))] = 0
    fractions = (rng.uniform(size=(n, 1)) * columns).astype(rows.dtype)
    weights = np.ones(2 * n, rows.dtype)
    return _imitate(teacher, start, rows, ranks.astype(np.int32), fractions, weights)


@compiled
def _imitate(
    teacher: KernelExpansion,
    start: Float[Array, "m d"],
    X: Float[Array, "n d"],
    ranks: Int[Array, " n"],
    fractions: Float[Array, "n d"],
    weights: Float[Array, " p"],  # an argument, as XLA would fold a constant of this size
) -> direct.Minimum:
    """Imitate at the rows `X` and at points between each row and its neighbour of a given rank.

    `fractions` are the parts of the way to the neighbour, in each column.
    """
    neighbours = jnp.take_along_axis(_nearest(teacher.kernel, X), ranks[:, None], axis=1)[:, 0]
    points = jnp.concatenate([X, X + fractions * (X[neighbours] - X)])
    problem = LeastSquares(teacher.kernel, points, teacher(points), like(C, X), weights)
    return direct.minimise(problem, start, max_iterations=STEPS)


def _nearest(kernel: Kernel, X: Float[Array, "n d"]) -> Int[Array, "n k"]:
    """Return for each row the indices of the `k` nearest rows in feature space, itself first."""
    k, squares = min(NEIGHBOURS + 1, len(X)), kernel.diagonal(X)

    def of_block(block: Float[Array, "b d"]) -> Int[Array, "b k"]:
        return jax.lax.top_k(2 * kernel.cross_gram(block, X) - squares[None], k)[1]

    return map_row_blocks(of_block, X, _BLOCK)
