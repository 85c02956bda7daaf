"""Imitation of a large machine: prototypes are moved until few of them give its values."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._blocks import map_systems
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
from .method import CLike, Method, Points, PointTable, TrainingRows
from .rows import FoldLayout, Rows

STEPS = 40  # of the descent; later steps gain little
KERNEL_VALUES = 2**20  # of rows and prototypes in one evaluation, which bounds the time of a step
# Weight of the squared difference from the teacher. Its values have no noise, so that the penalty
# only has to keep the coefficients small enough for float64.
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

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `Method.held_out`: fit to the rows, as sums of one fold lack the other rows."""
        folds = self.validation_folds(folds, len(rows))
        return Method.held_out(self, kernel, points, C, rows, folds, on_fold, key)

    def fold_machines(
        self, kernel: Kernel, points: PointTable, C: CLike, size: int | None, rows: Rows,
        folds: Any, key: Key | None, sums: Any,
    ) -> KernelExpansion:  # fmt: skip
        """See `Method.fold_machines`: fit to the rows too."""
        return super().fold_machines(kernel, points, C, size, rows, folds, key, None)

    def validation_text(self, folds: int) -> str:
        """See `Method.validation_text`."""
        return f"1 of {super().validation_text(folds)} held out"

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """See `Method.choose_points`: the given prototypes."""
        return Points(rows.scaling.apply(as_array(self.prototypes, rows.X.dtype)), None)


def imitate(
    teacher: KernelExpansion, start: Float[Array, "m d"], X: Float[Array, "n d"], key: Key
) -> direct.Minimum:
    """Move prototypes until a machine on them has the values of a large machine.

    The direct method (Wu et al. 2006, Section 2) minimises the squared difference between both
    machines, summed over rows and over points between a row and one of its nearest rows. The
    coefficients of the small machine are the solution of ridge regression for given prototypes. The
    number of rows is limited, so that a step computes at most `KERNEL_VALUES` kernel values. Codes
    of categories are neither interpolated nor moved.

    Args:
        teacher: the large machine, without a scaling.
        start: prototypes to start from, in the units of the teacher's prototypes.
        X: rows, in the same units.
        key: decides the rows and the points between them.

    Returns:
        `direct.Minimum`, with the prototypes `Z`. Not differentiable.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32).tolist())
    n = max(1, min(len(X), KERNEL_VALUES // (2 * len(start))))
    numbers = rng.permutation(len(X))[:n]
    picks = rng.integers(1, min(NEIGHBOURS, max(1, n - 1)) + 1, n) if n > 1 else np.zeros(n, int)
    rows = jax.device_put(np.asarray(X)[numbers])
    columns = np.ones(X.shape[1])
    columns[list(categorical_columns(teacher.kernel))] = 0
    shares = rng.uniform(size=(n, 1)) * columns
    weights = np.ones(2 * n, rows.dtype)
    picks, shares = picks.astype(np.int32), shares.astype(rows.dtype)
    return _imitate(teacher, start, rows, picks, shares, weights)


@compiled
def _imitate(
    teacher: KernelExpansion,
    start: Float[Array, "m d"],
    X: Float[Array, "n d"],
    picks: Int[Array, " n"],
    shares: Float[Array, "n d"],
    weights: Float[Array, " p"],  # an argument, as XLA would fold a constant of this size
) -> direct.Minimum:
    neighbours = jnp.take_along_axis(_nearest(teacher.kernel, X), picks[:, None], axis=1)[:, 0]
    points = jnp.concatenate([X, X + shares * (X[neighbours] - X)])
    problem = LeastSquares(teacher.kernel, points, teacher(points), like(C, X), weights)
    return direct.minimise(problem, start, max_iterations=STEPS)


def _nearest(kernel: Kernel, X: Float[Array, "n d"]) -> Int[Array, "n k"]:
    """Return for each row the indices of the `k` nearest rows in feature space, itself first."""
    n, k = len(X), min(NEIGHBOURS + 1, len(X))
    squares = kernel.diagonal(X)
    blocks = jnp.resize(X, (-(-n // _BLOCK), _BLOCK, X.shape[1]))  # repeats rows as padding

    def of_block(block: Float[Array, "b d"]) -> Int[Array, "b k"]:
        return jax.lax.top_k(2 * kernel.cross_gram(block, X) - squares[None], k)[1]

    return map_systems(of_block, blocks).reshape(-1, k)[:n]
