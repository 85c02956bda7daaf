"""SCDP-FSLSSVM: fixed-size LS-SVMs of growing size by sparse conjugate directions pursuit."""

import dataclasses
import functools
from typing import Any, ClassVar, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import as_key, check_finite, real
from .._blocks import rows_in_block
from .._numerics import as_float, dot, eigh, epsilon, is_concrete, like
from .._status import COMPLETED, CONVERGED, INDEFINITE, PRECISION_LOST, TRUNCATED
from .._types import Key, KeyLike, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from ..pursuit.path import LOST, Path, assemble
from ..pursuit.system import check_atoms
from ..solvers.row_factor import row_factor
from . import scdp_rows
from .candidates import Candidates
from .fixed_size import check_problem, in_one_dtype
from .method import FEW_C, Additive, Metric, Stopping, Task
from .scdp_system import CandidateColumns, candidate_columns, intercept_path, select

Selection = Literal["joint", "separate"]


class SparsePath(NamedTuple):
    """Machines with one prototype more at a time, out of a set of candidates.

    With several targets that were selected for separately all but the kernel and the candidates
    have a leading axis of targets.
    """

    kernel: Kernel
    candidates: Float[Array, "M d"]
    support: Int[Array, "..."]  # candidates in the order of selection, -1 past `size`; `k`
    coefficients: Float[Array, "..."]  # with i + 1 prototypes in row i; `k k`, or `k k c`
    intercepts: Float[Array, "..."]  # `k`, or `k c`
    condition: Float[Array, "..."]  # of the system, see `pursuit.Path`
    coefficient_error: Float[Array, "..."]  # estimated from it, relative, by rounding; `k`
    coefficient_status: Int[Array, "..."]  # how the search for the coefficients ended; `k`
    size: Int[Array, "..."]
    status: Int[Array, "..."]  # of the path; of a machine on it see `status_at`

    def status_at(self, n_prototypes: int) -> Int[Array, ""]:
        """The path's status or, if worse, the coefficients'.

        `PRECISION_LOST` if they may be wrong by more than 1e-3.

        Raises:
            ValueError: if the path is not that long.
        """
        self._check_size(n_prototypes)
        numpy, path = self._where_known()
        error = numpy.max(path.coefficient_error[..., n_prototypes - 1])
        found = numpy.max(path.coefficient_status[..., n_prototypes - 1])
        found = numpy.where(error > LOST, numpy.maximum(found, PRECISION_LOST), found)
        # What was passed over, or what ended the path, came after the last on it.
        ended = (path.status == TRUNCATED) | (path.status == INDEFINITE)
        status = numpy.where(ended & (n_prototypes < path.size), COMPLETED, path.status)
        return jax.device_put(numpy.maximum(numpy.max(status), found).astype(np.int32))

    def at(self, n_prototypes: int) -> KernelExpansion:
        """The machine with so many prototypes; of each target, if they were selected separately.

        Separate targets share the prototypes that they have in common, so that the machine has
        between `n_prototypes` and as many for each target; how many depends on values, so not under
        `jit`. Where a path ended before, it is the last machine on it.

        Raises:
            ValueError: if the path is not that long.
        """
        self._check_size(n_prototypes)
        k = n_prototypes
        if self.support.ndim == 1:
            if is_concrete(self.size):
                k = max(1, min(k, int(self.size)))
            numpy, path = self._where_known()
            Z = path.candidates[numpy.maximum(path.support[:k], 0)]
            weights = Z, path.coefficients[k - 1, :k], path.intercepts[k - 1]
            return KernelExpansion(self.kernel, *jax.device_put(weights))
        support = np.asarray(self.support[:, :k])
        atoms = np.unique(support[support >= 0])
        coefficients = np.zeros((len(atoms), len(support)), self.coefficients.dtype)
        for target, own in enumerate(support):
            inside = own >= 0
            taken = np.asarray(self.coefficients[target, k - 1, :k])[inside]
            coefficients[np.searchsorted(atoms, own[inside]), target] = taken
        _, path = self._where_known()
        weights = path.candidates[atoms], coefficients, path.intercepts[:, k - 1]
        return KernelExpansion(self.kernel, *jax.device_put(weights))

    def values(self, X: Float[Array, "n d"]) -> Float[Array, "n k *c"]:
        """Values of all machines on the path, from one block of kernel values; `n k`, or `n k c`.

        With one prototype in the first of the `k`; past the end of the path the last one's.
        """
        if self.support.ndim == 1:
            columns = self.kernel.cross_gram(X, self.candidates[jnp.maximum(self.support, 0)])
            k = len(self.support)
            flat = jnp.moveaxis(self.coefficients.reshape(k, k, -1), 1, 0).reshape(k, -1)
            values = dot(columns, flat).reshape(len(X), *self.intercepts.shape)
            return values + self.intercepts[None]

        def one(of: tuple[Array, Array, Array]) -> Float[Array, "n k"]:
            support, coefficients, intercepts = of
            Z = self.candidates[jnp.maximum(support, 0)]
            return dot(self.kernel.cross_gram(X, Z), coefficients.T) + intercepts[None]

        each = jax.lax.map(one, (self.support, self.coefficients, self.intercepts))
        return jnp.moveaxis(each, 0, -1)

    def compact(self) -> "SparsePath":
        """The same path with no candidates but those that it selected; not under `jit`."""
        support = np.asarray(self.support)
        used = np.unique(support[support >= 0])
        place = np.where(support >= 0, np.searchsorted(used, support), -1).astype(np.int32)
        candidates = np.asarray(self.candidates)[used]
        return self._replace(candidates=jax.device_put(candidates), support=jax.device_put(place))

    def _where_known(self) -> "tuple[Any, SparsePath]":
        """The path on the host, if it is known, where nothing compiles for another size."""
        if all(map(is_concrete, jax.tree.leaves(self))):
            return np, jax.tree.map(np.asarray, self)
        return jnp, self

    def _check_size(self, n_prototypes: int) -> None:
        longest = self.support.shape[-1]
        if not 1 <= n_prototypes <= longest:
            raise ValueError(
                f"n_prototypes: expected 1 to {longest}, the length of the path; got {n_prototypes}"
            )


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

    def metric(self, task: Task) -> Metric:
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
    X, y, weights = in_one_dtype(X, jnp.asarray(y), weights)
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
    jax.jit, static_argnames=("max_prototypes", "separate", "subset", "formed", "block_rows")
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


@functools.partial(jax.jit, static_argnames="method")
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
