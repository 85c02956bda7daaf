"""SCDP-FSLSSVM: fixed-size LS-SVMs of growing size by sparse conjugate directions pursuit."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import as_key
from .._blocks import rows_in_block
from .._numerics import as_float, eigh, epsilon, is_concrete, like
from .._status import COMPLETED, CONVERGED, INDEFINITE, PRECISION_LOST, TRUNCATED
from .._types import Key, KeyLike, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..normal_equations import accumulate
from ..pursuit.path import LOST, Path, assemble
from ..pursuit.system import check_atoms
from ..solvers.row_factor import row_factor
from . import scdp_rows
from .fixed_size import check_finite, check_problem, in_one_dtype
from .scdp_system import candidate_columns, intercept_path, select

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
        error = jnp.max(self.coefficient_error[..., n_prototypes - 1])
        found = jnp.max(self.coefficient_status[..., n_prototypes - 1])
        found = jnp.where(error > LOST, jnp.maximum(found, PRECISION_LOST), found)
        # What was passed over, or what ended the path, came after the last on it.
        ended = (self.status == TRUNCATED) | (self.status == INDEFINITE)
        status = jnp.max(jnp.where(ended & (n_prototypes < self.size), COMPLETED, self.status))
        return jnp.maximum(status, found).astype(jnp.int32)

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
            chosen = jnp.maximum(self.support[:k], 0)
            Z = self.candidates[chosen]
            return KernelExpansion(
                self.kernel, Z, self.coefficients[k - 1, :k], self.intercepts[k - 1]
            )
        support = np.asarray(self.support[:, :k])
        atoms = np.unique(support[support >= 0])
        coefficients = np.zeros((len(atoms), len(support)), self.coefficients.dtype)
        for target, own in enumerate(support):
            inside = own >= 0
            taken = np.asarray(self.coefficients[target, k - 1, :k])[inside]
            coefficients[np.searchsorted(atoms, own[inside]), target] = taken
        return KernelExpansion(
            self.kernel,
            self.candidates[atoms],
            jnp.asarray(coefficients),
            self.intercepts[:, k - 1],
        )

    def _check_size(self, n_prototypes: int) -> None:
        longest = self.support.shape[-1]
        if not 1 <= n_prototypes <= longest:
            raise ValueError(
                f"n_prototypes: expected 1 to {longest}, the length of the path; got {n_prototypes}"
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

    In a precision below float64 the coefficients are found anew from the rows, once the prototypes
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

    def lanes(a: Float[Array, "r *c"]) -> Float[Array, "v r c"]:
        """One for each set of targets that select together."""
        flat = a.reshape(len(a), -1)
        return flat.T[:, :, None] if separate else flat[None]

    targets = lanes(jnp.where(w.reshape(-1, *[1] * (y.ndim - 1)) > 0, y, 0))
    target_sum = jnp.einsum("n,vnc->vc", w, targets, precision=jax.lax.Precision.HIGHEST)
    weight_sum = jnp.sum(w) + nu
    if formed:
        columns = candidate_columns(kernel, candidates)
        sums = accumulate(columns, X, y, weights, block_rows=block_rows)
        A, b, rounded, feature_sum = columns.posed(sums, C, nu)
        rhs = lanes(b)
        owner = jnp.zeros(len(rhs), jnp.int32)  # all have the one matrix
        options = {"max_prototypes": max_prototypes, "subset": subset}
        path = select(A[None], rhs, rounded[None], owner, key, **options)
        feature_sum = feature_sum[jnp.maximum(path.support, 0)]
    else:
        assert subset is not None
        assert key is not None
        options = {"max_prototypes": max_prototypes, "subset": subset}
        path, feature_sum = jax.lax.map(
            lambda lane: scdp_rows.pursue(kernel, candidates, C, X, lane, w, nu, key, **options),
            targets,
        )
    # Digits are lost to machines, not to the path: see `status_at`. But candidates that in this
    # precision could not be told from those selected were passed over.
    ended = jnp.where(path.size < max_prototypes, TRUNCATED, COMPLETED)
    status = jnp.where(path.status == PRECISION_LOST, ended, path.status).astype(jnp.int32)
    on_rows = epsilon(X.dtype) > 1e-10
    if on_rows:
        path = jax.lax.map(
            lambda lane: _from_rows(
                lane[0], lane[1], kernel, candidates, C, X, w, nu, rows_in_block(block_rows)
            ),
            (path, targets),
        )
    intercepts = intercept_path(path, feature_sum, target_sum, weight_sum[None])
    condition = path.condition
    error = epsilon(X.dtype) * (jnp.sqrt(condition) if on_rows else condition)
    solved = jnp.full(error.shape, CONVERGED, jnp.int32)  # directly
    rest = (intercepts, condition, error, solved, path.size, status)
    coefficients = path.coefficients
    support = path.support
    if separate:
        coefficients = coefficients[..., 0]
        rest = (intercepts[..., 0], *rest[1:])
    else:
        support, coefficients, *rest = (a[0] for a in (support, coefficients, *rest))
        if y.ndim == 1:
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
    """The coefficients of a path anew, from the factor of the rows `[1 K(X, Z) y]`."""
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
    anew = assemble(
        path.support[None],
        factor[None],
        along[None],
        jnp.sum(jnp.square(factor), axis=0)[None],
        path.residual_norm[None],
        path.size[None],
        path.status[None],
        on_rows=True,
    )
    return jax.tree.map(lambda a: a[0], anew)
