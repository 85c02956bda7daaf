"""The common base of kernel subspace, matching and basis pursuit (Kabbara 2015)."""

import abc
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arguments import as_key, increasing
from .._numerics import as_array, as_float, dot, like, present_rows, present_targets
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, EXHAUSTED, INDEFINITE, PRECISION_LOST, TRUNCATED
from .._types import CLike, Key, KeyLike, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from ..pursuit.on_atoms import least_squares
from .candidates import CandidatesFromSums
from .checks import check_points, check_problem, in_one_dtype, penalty_or_none
from .dictionary import Design, DictionaryColumns, System, design_of, dictionary_columns
from .family import Family, is_dictionary, kernels_of
from .held_out import Sums
from .method import Shape, Task, at_most, check_number, option, replaced, setting
from .nested import with_sizes
from .rows import Rows


class Selected(NamedTuple):
    """Coefficients of all `p` atoms, and stop codes, for each of `c` targets and `s` sizes."""

    coefficients: Float[Array, "c s p"]
    statuses: Int[Array, "c s"]

    __repr__ = short_repr


class Pursuit(CandidatesFromSums):
    """The settings of `KSP`, `KMP` and `KBP`: machines of stated numbers of atoms, without a `C`.

    `Candidates` describes the settings that are not listed.

    Args:
        n_prototypes: number of atoms K, or several from which cross-validation chooses; None
            or "auto" for every number up to `max_prototypes`. Each atom is one prototype, or with
            several kernels one prototype with one of the kernels.
        intercept: whether the machines have an intercept, which does not count as an atom.
        ridge: a penalty: the mean squared error plus `ridge |coefficients|^2` is minimised.
    """

    usual_folds: ClassVar[int] = 5
    has_C: ClassVar[bool] = False
    max_rows: ClassVar[int | None] = 20_000  # memory holds the values of the atoms at all rows

    n_prototypes: Any = option(
        None,
        "numbers of prototypes to choose from, with commas between them; default: numbers up to "
        "--max-prototypes",
        kind="sizes",
        metavar="M[,M...]",
    )
    intercept: bool = setting(True)
    ridge: ScalarLike = 0.0

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_number("ridge", self.ridge, 0.0)

    def check_kernel(self, kernel: Kernel) -> None:
        """See `Method.check_kernel`: several kernels are allowed, as a dictionary."""
        if isinstance(kernel, Mixture) and not is_dictionary(kernel):
            raise ValueError(
                "kernel: expected kernels of a dictionary, got a Mixture of prototypes"
            )

    def resolve(self, shape: Shape) -> "Pursuit":
        """See `Method.resolve`."""
        if self.n_prototypes in (None, "auto"):
            method = cast(Pursuit, super().resolve(shape))
            return replaced(method, n_prototypes=self.default_sizes(method.largest_size))
        sizes = sizes_of(self.n_prototypes, shape.n_present, "the rows with weight")
        if self.max_prototypes not in (None, sizes[-1]):
            raise ValueError(
                f"max_prototypes: expected None or the last of n_prototypes, {sizes[-1]}, got "
                f"{self.max_prototypes}"
            )
        method = replaced(self, max_prototypes=sizes[-1], n_prototypes=sizes)
        return cast(Pursuit, CandidatesFromSums.resolve(method, shape))

    def capped(self, shape: Shape) -> "Pursuit":
        """See `Method.capped`."""
        lowered = cast(Pursuit, super().capped(shape))
        bound = min(lowered._candidate_count(shape), shape.training)
        return replaced(lowered, n_prototypes=at_most(self.n_prototypes, bound))

    def default_sizes(self, largest: int) -> tuple[int, ...]:
        """Return the default numbers of atoms: 1 to `largest`, as one pursuit returns them all."""
        return tuple(range(1, largest + 1))

    @property
    def fit_sizes(self) -> tuple[int, ...]:
        """See `Method.fit_sizes`: the resolved numbers of atoms."""
        assert isinstance(self.n_prototypes, tuple)
        return self.n_prototypes

    def fits_from_fold_sums(self, r: int, s: int) -> bool:
        """See `Method.fits_from_fold_sums`."""
        return True

    def shortened(self, n_sizes: int) -> "Pursuit":
        """See `Method.shortened`."""
        sizes = self.fit_sizes[:n_sizes]
        return replaced(self, n_prototypes=sizes, max_prototypes=sizes[-1])

    def features(self, kernel: Kernel, points: Float[Array, "M d"]) -> DictionaryColumns:
        """See `FromSums.features`: the values of the atoms."""
        return dictionary_columns(kernel, points, intercept=self.intercept)

    def system(self, sums: NormalEquations) -> System:
        """Return the normal equations of the atoms, with a right-hand side for each target."""
        f, total = sums.feature_sum, sums.weight_sum
        A, b = sums.gram, sums.cross.reshape(len(f), -1)
        if self.intercept:
            A = A - f[:, None] * (f / total)[None, :]
            b = b - f[:, None] * (sums.target_sum.reshape(1, -1) / total)
        return System(A, b, jnp.diagonal(sums.gram), like(self.ridge, A) * total)

    @abc.abstractmethod
    def select(self, system: System, key: Key | None) -> Selected:
        """Solve normal equations for every size in `fit_sizes`, for each target separately.

        The `key` decides the random draws of a method with a `subset`.
        """

    def select_with_rows(self, design: Design, system: System, key: Key | None) -> Selected:
        """Solve as `select` does, given also the least-squares problem `design` of the rows.

        By default ignore the `design`. This method is called if the rows are in memory.
        """
        return self.select(system, key)

    def solve(
        self, sums: Sums, C: CLike, code: Code | None = None, key: Key | None = None
    ) -> Family:
        """See `FromSums.solve`; `C` has no effect."""
        assert isinstance(sums.features, DictionaryColumns)
        return with_sizes(_solve(self, *sums, key), np.array(self.fit_sizes))

    def fit_in_memory(
        self, kernel: Kernel, points: Float[Array, "M d"], C: CLike, rows: Rows, key: Key | None
    ) -> Family:
        """See `CandidatesFromSums.fit_in_memory`; `C` has no effect."""
        family = _fit_rows(self, kernel, points, rows.X, rows.targets, rows.weights, key)
        return with_sizes(family, np.array(self.fit_sizes))


def fit(
    method: Pursuit,
    kernel: Kernel | Sequence[Kernel],
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    key: KeyLike | None = None,
) -> Family:
    """Fit machines of several sizes by `KSP`, `KMP` or `KBP`.

    Args:
        method: the settings; `n_prototypes` states the sizes.
        kernel: kernel of two points; or several, for a dictionary in which every candidate has an
            atom of each kernel.
        candidates: points from which the prototypes are selected, shape `M d`.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n`, or `n c` for several targets, each with separate prototypes.
        weights: row weights, shape `n`, at least 0.
        key: decides the random draws of a method with a `subset`.

    Returns:
        A `Family` of the sizes `n_prototypes`, without `support`: every atom has a coefficient.

    Pure; works under `jit` and `vmap`, and nothing compiles again when values or `ridge` change.
    Differentiable in forward mode in all floating arguments where the selection does not change, in
    weights and `ridge` only where they are above 0. Not differentiable in reverse mode, as the
    number of steps depends on values; `refit` is differentiable in both modes.

    Raises:
        ValueError: for inputs whose shapes do not fit, values known to be out of range, sizes above
            the number of atoms or None, or a `subset` without a `key`.
    """
    X, candidates = as_float(X), as_float(candidates)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, 1.0, X, y, weights, kernel=kernel)
    check_points("candidates", candidates, X.shape[1])
    if not isinstance(kernel, Kernel):
        if not kernel or not all(isinstance(one, Kernel) for one in kernel):
            raise ValueError(f"kernel: expected a Kernel or several, got {kernel!r}")
        kernel = Mixture(tuple(kernel))
    method.check_kernel(kernel)
    method.check("regression")
    if method.n_prototypes in (None, "auto"):
        raise ValueError(
            f"n_prototypes: expected one number of atoms or several, got {method.n_prototypes!r}"
        )
    n_atoms = len(kernels_of(kernel)) * len(candidates)
    sizes = sizes_of(method.n_prototypes, n_atoms, "the number of atoms")
    if method.subset is not None and key is None:
        raise ValueError("key: expected one with a subset, got None")
    subset = method.resolved_subset(n_atoms)
    resolved = replaced(method, n_prototypes=sizes, max_prototypes=sizes[-1], subset=subset)
    key = None if key is None else as_key(key)
    family = _fit_rows(resolved, kernel, candidates, X, y, weights, key)
    return with_sizes(family, np.array(sizes))


def refit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept: bool = True,
    ridge: ScalarLike = 0.0,
) -> KernelExpansion:
    """Solve least squares on given prototypes: the last step of `KSP` and of backfitting `KMP`.

    Args:
        kernel: kernel of two points, or the `Mixture` of a machine.
        prototypes: the selected points, shape `m d`.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n` or `n c`.
        weights: row weights, shape `n`, at least 0.
        intercept: whether the machine has an intercept (static).
        ridge: a penalty: the mean squared error plus `ridge |coefficients|^2` is minimised.

    Returns:
        The machine. If the atoms are linearly dependent, its coefficients have the smallest norm.

    Differentiable in both modes in the kernel, prototypes, X, y, weights above 0 and a ridge above
    0, by the formula of the pseudo-inverse, where the rank does not change. Works under `jit` and
    `vmap`.

    Raises:
        ValueError: for inputs whose shapes do not fit, or values known to be out of range.
    """
    X, prototypes = as_float(X), as_float(prototypes)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, 1.0, X, y, weights, kernel=kernel)
    check_points("prototypes", prototypes, X.shape[1])
    check_number("ridge", ridge, 0.0)
    columns = dictionary_columns(kernel, prototypes, intercept=intercept)
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    D, targets = design_of(columns, X, y, w, intercept=intercept)
    penalty = penalty_or_none(ridge, X)
    if penalty is not None:  # append one row for each atom, which adds the penalty to the squares
        positive = penalty > 0
        root = jnp.where(positive, jnp.sqrt(jnp.where(positive, penalty, 1) * jnp.sum(w)), 0)
        D = jnp.concatenate([D, root * jnp.eye(D.shape[1], dtype=D.dtype)])
        targets = jnp.pad(targets, ((0, D.shape[1]), (0, 0)))
    coefficients = least_squares(D, targets)
    constant = jnp.zeros(coefficients.shape[1:], X.dtype)
    if intercept:
        share = w / jnp.sum(w)
        constant = dot(share, y.reshape(len(X), -1)) - dot(dot(share, columns(X)), coefficients)
    return columns.expansion(coefficients.reshape(-1, *y.shape[1:]), constant.reshape(y.shape[1:]))


@compiled
def _fit_rows(
    method: Pursuit,
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None,
    key: Key | None,
) -> Family:
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    X, y = present_rows(X, w, apart=True), present_targets(y, w)
    columns = method.features(kernel, candidates)
    equations = accumulate(columns, X, y, w)
    design = design_of(columns, X, y, w, intercept=method.intercept)
    selected = method.select_with_rows(design, method.system(equations), key)
    return _family(method, columns, equations, selected)


@compiled
def _solve(
    method: Pursuit, columns: DictionaryColumns, equations: NormalEquations, key: Key | None
) -> Family:
    return _family(method, columns, equations, method.select(method.system(equations), key))


def _family(
    method: Pursuit, columns: DictionaryColumns, equations: NormalEquations, selected: Selected
) -> Family:
    """Return the selected machines, whose intercepts absorb the constants `columns.shift`."""
    outputs = equations.target_sum.shape
    equations = equations.with_outputs((math.prod(outputs),))
    coefficients = jnp.moveaxis(selected.coefficients, 0, -1)  # s p c
    intercepts = jnp.zeros_like(coefficients[:, 0])
    if method.intercept:
        explained = jnp.tensordot(coefficients, equations.feature_sum, axes=((1,), (0,)))
        mean = (equations.target_sum[None] - explained) / equations.weight_sum
        intercepts = mean - jnp.tensordot(coefficients, columns.shift, axes=((1,), (0,)))
    first, *others = kernels_of(columns.kernel)
    return Family(
        kernel=columns.kernel if others else first,
        points=columns.prototypes,
        support=None,
        coefficients=coefficients[None],
        intercepts=intercepts[None],
        sizes=jnp.asarray(method.fit_sizes, jnp.int32),
        statuses=jnp.max(selected.statuses, axis=0),
        info={},
        outputs=outputs,
    )


def sizes_of(numbers: Any, most: int, what: str) -> tuple[int, ...]:
    """Return one number of atoms, or several, as a tuple.

    Raise a `ValueError` unless they are increasing whole numbers between 1 and `most`. The text
    `what` describes `most` in the message.
    """
    return increasing(
        "n_prototypes", numbers if isinstance(numbers, tuple) else (numbers,), most, what
    )


def statuses(
    status: Int[Array, "*c"],
    length: Int[Array, "*c"],
    lost: Bool[Array, "*c k"],
    places: Int[np.ndarray, " s"],
) -> Int[Array, "*c s"]:
    """Return the stop codes of some machines of a path.

    The codes TRUNCATED, EXHAUSTED and INDEFINITE concern only the path's last machine, which is
    repeated at all larger sizes. Smaller machines get COMPLETED. PRECISION_LOST of a path counts as
    TRUNCATED, and every other code holds for all machines. A machine that is `lost` gets at least
    PRECISION_LOST.

    Args:
        status: stop code of the path.
        length: number of atoms of the path's last machine.
        lost: whether the machine of 1, 2, .. atoms lost its digits to rounding.
        places: the machines, each as its number of atoms less 1.
    """
    status, length = status[..., None], length[..., None]
    # PRECISION_LOST is a property of machines. A path with this code skipped atoms: TRUNCATED.
    status = jnp.where(status == PRECISION_LOST, TRUNCATED, status)
    of_last = (status == TRUNCATED) | (status == EXHAUSTED) | (status == INDEFINITE)
    inside = places.reshape(*[1] * (length.ndim - 1), -1) < length
    codes = jnp.where(of_last & inside, COMPLETED, status)
    return jnp.where(lost[..., places], jnp.maximum(codes, PRECISION_LOST), codes).astype(jnp.int32)
