"""SCDP-FSLSSVM: fixed-size LS-SVMs of growing size by sparse conjugate directions pursuit."""

import dataclasses
import functools
from typing import ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import as_key, check_finite, real
from .._blocks import rows_in_block
from .._numerics import as_array, as_float, eigh, epsilon, like
from .._programs import compiled
from .._status import COMPLETED, CONVERGED, PRECISION_LOST, TRUNCATED
from .._types import Key, KeyLike, ScalarLike
from ..features import FeatureMap
from ..kernels import Kernel
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from ..pursuit.path import Path, assemble
from ..pursuit.system import check_atoms
from ..solvers.row_factor import row_factor
from . import scdp_rows
from .candidates import Candidates
from .checks import check_problem, in_one_dtype
from .method import FEW_C, Additive, Metric, Stopping, Task
from .scdp_system import CandidateColumns, candidate_columns, intercept_path, select
from .sparse_path import SparsePath

Selection = Literal["joint", "separate"]


@dataclasses.dataclass(frozen=True)
class SCDP(Candidates, Additive):
    """SCDP-FSLSSVM: fixed-size LS-SVMs of growing size (Karsmakers 2011, Section 4).

    Prototypes are selected out of candidates one after another, by what is left of the targets, and
    cross-validation of the whole path says how many are worth having.

    Args:
        max_prototypes: see `Candidates`, as are the following.
        candidates: their number, "all", or points in raw units.
        candidate_method: how they are chosen.
        subset: SCDPP: candidates looked at for each prototype; None for all.
        size_tolerance: of the size chosen.
        selection: of several problems or targets: "joint", the same prototypes for all, or
            "separate".
        stopping: end paths where their error no longer changes (eq. 38), to save time; by default
            they all go on to `max_prototypes`, the paper's safest choice.
        nu: see `fit`.
    """

    name: ClassVar[str] = "scdp"
    title: ClassVar[str] = "SCDP"
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C  # each takes a path for every fold
    shares_rows: ClassVar[bool] = True

    selection: Selection = "joint"
    stopping: Stopping | None = None
    nu: float = 0.0

    @property
    def memory(self) -> int | None:
        """The candidates, once their number is known."""
        return self.n_candidates

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.selection not in ("joint", "separate"):
            raise ValueError(f"selection: expected 'joint' or 'separate', got {self.selection!r}")
        real("nu", self.nu, 0.0)
        if self.stopping is not None:
            if not isinstance(self.stopping, Stopping):
                raise ValueError(f"stopping: expected a Stopping or None, got {self.stopping!r}")
            self.stopping.check()

    def criterion(self, task: Task) -> Metric:
        """The press statistic (eq. 35), for classes too."""
        return "mse"

    def features(self, kernel: Kernel, points: Float[Array, "M d"]) -> CandidateColumns:
        """The kernel's columns."""
        return candidate_columns(kernel, points)

    def paths(
        self,
        columns: CandidateColumns,
        sums: NormalEquations,
        C: Float[Array, ""],
        key: Key | None,
        *,
        separate: bool,
    ) -> tuple[Path, Float[Array, "v k c"]]:
        """Paths and their intercepts from a batch of sums; if separate, of each target apart.

        Args:
            columns: what was summed.
            sums: with a leading axis.
            C: weight of the data-fit term.
            key: decides the random subsets, the same for all.
            separate: whether each target selects by itself; the paths of the first sums come first.
        """
        nu = jnp.asarray(self.nu, C.dtype)
        A, b, rounded, feature_sum = jax.vmap(lambda of: columns.system(of, C, nu))(sums)
        problems = b.shape[-1] if separate else 1
        owner = jnp.repeat(jnp.arange(len(A), dtype=jnp.int32), problems)

        def apart(a: Array) -> Array:  # `g .. c` to `g*c .. 1`
            return jnp.moveaxis(a, -1, 1).reshape(-1, *a.shape[1:-1], 1) if separate else a

        options = {"max_prototypes": self.longest, "subset": self.subset}
        path = select(A, apart(b), rounded, owner, None if self.subset is None else key, **options)
        intercepts = intercept_path(
            path,
            jnp.take_along_axis(feature_sum[owner], jnp.maximum(path.support, 0), axis=1),
            apart(sums.target_sum),
            (sums.weight_sum + nu)[owner],
        )
        return path, intercepts

    def solve(
        self,
        features: FeatureMap,
        sums: NormalEquations,
        C: ScalarLike | Float[Array, " l"],
        code: Code | None = None,
        *,
        key: Key | None = None,
    ) -> SparsePath:
        """From the sums alone; `fit` sees the rows, which in float32 gives more digits."""
        assert isinstance(features, CandidateColumns)
        return _solve(self, features, sums, jnp.asarray(C, sums.gram.dtype), key)

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "M d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> SparsePath:
        """See `fit`."""
        assert points is not None
        targets = y if code is None else jnp.asarray(code.matrix)[y]
        return fit(
            kernel,
            points,
            cast(ScalarLike, C),
            X,
            targets,
            weights,
            max_prototypes=self.longest,
            nu=self.nu,
            selection=self.selection,
            subset=cast(int | None, self.subset),
            key=None if self.subset is None else key,
        )


def fit(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    max_prototypes: int,
    nu: ScalarLike = 0.0,
    selection: Selection = "joint",
    subset: int | None = None,
    key: KeyLike | None = None,
    formed: bool | None = None,
    block_rows: int | None = None,
) -> SparsePath:
    """Fit fixed-size LS-SVMs of 1, 2, .. prototypes (Karsmakers 2011, Section 4.3).

    Sparse conjugate directions pursuit of the system (34): each prototype is the candidate of the
    largest residual, and the coefficients of those selected are the fixed-size LS-SVM's with these
    prototypes. The intercept is no candidate: it is in every machine, and eliminated.

    In a precision below float64 the coefficients are found again from the rows, once the prototypes
    are selected, by orthogonal transformations: they err by the condition of the kernel's columns,
    not by its square.

    Args:
        kernel: kernel of two points.
        candidates: points to choose prototypes from, shape `M d`.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0.
        max_prototypes: length of the path, at most `M` (static).
        nu: adds `C nu/2 b^2` to the objective (34); the paper's 1e-8, which it needs as it does not
            eliminate the intercept, depends on the units of the weights.
        selection: of several targets: "joint", the same prototypes for all, or "separate" (static).
        subset: candidates looked at for each prototype, drawn at random (SCDPP; Section 3.5.2; the
            paper's is 59); None for all (static).
        key: decides the draws.
        formed: whether the system of all candidates is summed first, `M M`. With a `subset` it need
            not be: a step computes the kernel's columns that it looks at, and `n x k` numbers are
            kept. None for what takes less time by count, but True with `block_rows` (static).
        block_rows: rows in memory at a time where the system is formed (static).

    Raises:
        ValueError: for inputs whose shapes do not fit, values known to be out of range, or more
            prototypes than candidates.
    """
    X, candidates = as_float(X), as_float(candidates)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, C, X, y, weights, nu)
    check_candidates(candidates, X.shape[1])
    M, what = len(candidates), "candidates"
    max_prototypes = check_atoms(max_prototypes, M, "max_prototypes", what)
    if (subset is None) != (key is None):
        raise ValueError("key, subset: expected both (random subsets) or none")
    if subset is None:
        if formed is False:
            raise ValueError("formed: expected True or None without a subset, which needs it all")
        formed = True
    else:
        subset = check_atoms(subset, M, "subset", what)
        if formed is None:
            formed = block_rows is not None or _forms(M, max_prototypes, subset)
    if selection not in ("joint", "separate"):
        raise ValueError(f"selection: expected 'joint' or 'separate', got {selection!r}")
    return _fit(
        kernel,
        candidates,
        like(C, X),
        X,
        y,
        weights,
        like(nu, X),
        None if key is None else as_key(key),
        max_prototypes=max_prototypes,
        separate=selection == "separate" and y.ndim == 2,
        subset=subset,
        formed=formed,
        block_rows=block_rows,
    )


def _forms(M: int, k: int, subset: int) -> bool:
    """Whether to form the system takes less time than to compute columns when looked at.

    Counted in multiplications for each row, in the time of 300 of which a kernel is evaluated, and
    of 40 a number read (magic and adult on a CPU).
    """
    return k * (300 * subset + 40 * k) >= M * (M + 300)


@functools.partial(
    compiled, static_argnames=("max_prototypes", "separate", "subset", "formed", "block_rows")
)
def _fit(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None,
    nu: Float[Array, ""],
    key: Key | None,
    *,
    max_prototypes: int,
    separate: bool,
    subset: int | None,
    formed: bool,
    block_rows: int | None,
) -> SparsePath:
    w = jnp.ones(len(X), X.dtype) if weights is None else weights

    def apart(a: Float[Array, "r *c"]) -> Float[Array, "v r c"]:
        """One for each set of targets that select together."""
        flat = a.reshape(len(a), -1)
        return flat.T[:, :, None] if separate else flat[None]

    targets = apart(jnp.where(w.reshape(-1, *[1] * (y.ndim - 1)) > 0, y, 0))
    target_sum = jnp.einsum("n,vnc->vc", w, targets, precision=jax.lax.Precision.HIGHEST)
    weight_sum = jnp.sum(w) + nu
    if formed:
        columns = candidate_columns(kernel, candidates)
        sums = accumulate(columns, X, y, weights, block_rows=block_rows)
        A, b, rounded, feature_sum = columns.system(sums, C, nu)
        rhs = apart(b)
        owner = jnp.zeros(len(rhs), jnp.int32)  # all have the one matrix
        options = {"max_prototypes": max_prototypes, "subset": subset}
        path = select(A[None], rhs, rounded[None], owner, key, **options)
        feature_sum = feature_sum[jnp.maximum(path.support, 0)]
    else:
        assert subset is not None
        assert key is not None
        options = {"max_prototypes": max_prototypes, "subset": subset}
        path, feature_sum = jax.lax.map(
            lambda one: scdp_rows.pursue(kernel, candidates, C, X, one, w, nu, key, **options),
            targets,
        )
    on_rows = epsilon(X.dtype) > 1e-10
    recovered = path
    if on_rows:
        recovered = jax.lax.map(
            lambda one: _from_rows(
                one[0], one[1], kernel, candidates, C, X, w, nu, rows_in_block(block_rows)
            ),
            (path, targets),
        )
    intercepts = intercept_path(recovered, feature_sum, target_sum, weight_sum[None])
    path = recovered._replace(status=path.status)
    return _machines(kernel, candidates, path, intercepts, y.ndim == 1, separate, on_rows)


@functools.partial(compiled, static_argnames="method")
def _solve(
    method: SCDP,
    columns: CandidateColumns,
    sums: NormalEquations,
    C: Float[Array, ""],
    key: Key | None,
) -> SparsePath:
    single = sums.cross.ndim == 1
    separate = method.selection == "separate" and not single
    if single:
        sums = sums._replace(
            cross=sums.cross[:, None],
            target_square=sums.target_square[None],
            target_sum=sums.target_sum[None],
        )
    batch = jax.tree.map(lambda a: a[None], sums)
    path, intercepts = method.paths(columns, batch, C, key, separate=separate)
    return _machines(
        columns.kernel, columns.prototypes, path, intercepts, single, separate, on_rows=False
    )


def _machines(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    path: Path,
    intercepts: Float[Array, "v k c"],
    single: bool,
    separate: bool,
    on_rows: bool,
) -> SparsePath:
    """A path per set of targets that select together, as the caller has his targets."""
    # Digits are lost to machines, not to the path: see `status_at`. But candidates that in this
    # precision could not be told from those selected were passed over.
    ended = jnp.where(path.size < path.support.shape[-1], TRUNCATED, COMPLETED)
    status = jnp.where(path.status == PRECISION_LOST, ended, path.status).astype(jnp.int32)
    condition, support, coefficients = path.condition, path.support, path.coefficients
    rounding = epsilon(intercepts.dtype)
    error = rounding * (jnp.sqrt(condition) if on_rows else condition)
    solved = jnp.full(error.shape, CONVERGED, jnp.int32)  # directly
    rest = (intercepts, condition, error, solved, path.size, status)
    if separate:
        coefficients = coefficients[..., 0]
        rest = (intercepts[..., 0], *rest[1:])
    else:
        support, coefficients, *rest = (a[0] for a in (support, coefficients, *rest))
        if single:
            coefficients, rest[0] = coefficients[..., 0], rest[0][..., 0]
    return SparsePath(kernel, candidates, support, coefficients, *rest)


def check_candidates(candidates: Array, d: int) -> None:
    """Raise unless they are finite points of `d` columns; there may be more than rows."""
    if candidates.ndim != 2 or candidates.shape[1] != d or len(candidates) == 0:
        raise ValueError(
            f"candidates: expected shape (M, {d}) with M at least 1, got {candidates.shape}"
        )
    check_finite("candidates", candidates)


def _from_rows(
    path: Path,
    targets: Float[Array, "n c"],
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    weights: Float[Array, " n"],
    nu: Float[Array, ""],
    block_rows: int,
) -> Path:
    """The coefficients of a path again, from the factor of the rows `[1 K(X, Z) y]`."""
    k, c = path.support.shape[0], targets.shape[1]
    inside = path.support >= 0
    Z = candidates[jnp.maximum(path.support, 0)]
    gram = kernel.gram(Z)

    def rows_of(X: Array, y: Array, w: Array) -> Float[Array, "r q"]:
        columns = jnp.where(inside[None, :], kernel.cross_gram(X, Z), 0)
        extended = jnp.concatenate([jnp.ones_like(w)[:, None], columns, y], axis=1)
        return jnp.where(w[:, None] > 0, jnp.sqrt(w)[:, None] * extended, 0)

    values, vectors = eigh(jnp.where(inside[:, None] & inside[None, :], gram, 0))
    root = jnp.sqrt(jnp.maximum(values, 0) / C)[:, None] * vectors.T
    first = jnp.zeros((1, 1 + k + c), X.dtype).at[0, 0].set(jnp.sqrt(nu))
    start = jnp.concatenate([first, jnp.pad(root, ((0, 0), (1, c)))])
    R = row_factor(rows_of, (X, targets, weights), start, block_rows)
    factor, along = R[1 : 1 + k, 1 : 1 + k], R[1 : 1 + k, 1 + k :]
    found = assemble(
        path.support[None],
        factor[None],
        along[None],
        jnp.sum(jnp.square(factor), axis=0)[None],
        path.residual_norm[None],
        path.size[None],
        path.status[None],
        on_rows=True,
    )
    return jax.tree.map(lambda a: a[0], found)
