"""Output codes: several classes as several binary problems."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Float, Int

from ._agreement import same_rows
from ._blocks import map_row_blocks, map_systems, rows_in_block
from ._mesh import sum_over_rows
from ._numerics import UNROLLED, as_array, dot
from ._repr import short_repr
from ._types import ScalarLike
from .features import FeatureMap
from .normal_equations import NormalEquations, accumulate, accumulate_groups
from .predictor import codes
from .solvers.ridge import Ridge

Decoding = Literal["hamming", "loss"]
Scheme = Literal["one_versus_one", "one_versus_rest", "minimum_output"]


class Code(NamedTuple):
    """The target of each class in each binary problem, and the rows that each problem uses.

    Attributes:
        matrix: one row per class, one column per problem, shape `k l`. An entry is the target -1 or
            +1, or 0 if the problem leaves the class out.
        members: 1 for the classes that a system of equations sums, else 0, shape `g k`. Problems
            with equal sets of classes share a system.
        classes: numbers of the classes of each system, padded by other classes, shape `g w`.
        problems: numbers of the problems of each system, padded by repetition, shape `g q`.
        system: number of the system of each problem, shape `l`.
        slot: position of each problem in its system's row of `problems`, shape `l`.
    """

    matrix: Float[Array, "k l"] | Float[np.ndarray, "k l"]
    members: Float[Array, "g k"] | Float[np.ndarray, "g k"]
    classes: Int[Array, "g w"] | Int[np.ndarray, "g w"]
    problems: Int[Array, "g q"] | Int[np.ndarray, "g q"]
    system: Int[Array, " l"] | Int[np.ndarray, " l"]
    slot: Int[Array, " l"] | Int[np.ndarray, " l"]

    __repr__ = short_repr

    @property
    def shares_all_rows(self) -> bool:
        """Return whether every problem uses every row, so that all share one system."""
        return self.members.shape[0] == 1

    def astype(self, dtype: jnp.dtype) -> "Code":
        """Return the code with its targets in `dtype`."""
        matrix, members = (as_array(a, dtype) for a in (self.matrix, self.members))
        return self._replace(matrix=matrix, members=members)


def output_code(scheme: Scheme | ArrayLike, k: int) -> Code:
    """Return the code of a scheme, or of a user's matrix, for `k` classes.

    De Brabanter 2010, Section 8.4:
    - "one_versus_one": a problem for every pair of classes, which leaves out all others.
    - "one_versus_rest": a problem for every class against all others.
    - "minimum_output": `ceil(log2 k)` problems, the binary digits of the class number.

    Raises:
        ValueError: if the scheme is unknown; if `k < 2`; if a matrix does not have `k` rows of -1,
            0 and +1; if two classes have equal rows; or if a problem has no class of +1 or of -1.

    Example:
        >>> output_code("one_versus_one", 3).matrix.astype(int).tolist()
        [[-1, -1, 0], [1, 0, -1], [0, 1, 1]]
    """
    if k < 2:
        raise ValueError(f"classes: expected at least 2, got {k}")
    if not isinstance(scheme, str):
        matrix = codes.check_code(np.asarray(scheme, float), k)
    elif k == 2:  # every scheme is a single problem
        matrix = np.array([[-1.0], [1.0]])
    elif scheme == "one_versus_one":
        first, second = np.triu_indices(k, 1)
        matrix = np.zeros((k, len(first)))
        # The later class has +1, as with two classes.
        matrix[first, np.arange(len(first))] = -1
        matrix[second, np.arange(len(first))] = 1
    elif scheme == "one_versus_rest":
        matrix = 2 * np.eye(k) - 1
    elif scheme == "minimum_output":
        digits = max(1, int(np.ceil(np.log2(k))))
        matrix = 2.0 * ((np.arange(k)[:, None] >> np.arange(digits)[None, :]) & 1) - 1
    else:
        raise ValueError(
            "multiclass: expected 'one_versus_one', 'one_versus_rest', 'minimum_output' or a "
            f"matrix of codes, got {scheme!r}"
        )
    members, system = np.unique(np.abs(matrix), axis=1, return_inverse=True)
    system = system.reshape(-1).astype(np.int32)
    # Sorting is fast even with a problem for every pair of hundreds of classes.
    order = np.argsort(system, kind="stable").astype(np.int32)
    groups = np.split(order, np.searchsorted(system[order], np.arange(1, members.shape[1])))
    widest = max(len(group) for group in groups)
    problems = np.stack([np.resize(group, widest) for group in groups])
    slot = np.zeros(len(system), np.int32)
    for group in groups:
        slot[group] = np.arange(len(group))
    members = members.T
    largest_count = int(members.sum(axis=1).max())
    classes = np.argsort(-members, axis=1, kind="stable")[:, :largest_count].astype(np.int32)
    return Code(matrix, members, classes, problems, system, slot)


@same_rows
def accumulate_code(
    code: Code,
    feature_map: FeatureMap,
    X: Float[Array, "n d"],
    labels: Int[Array, " n"],
    weights: Float[Array, " n"] | None = None,
    *,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> NormalEquations:
    """Sum the normal equations for `solve_code`, in one pass over the rows.

    Args:
        code: the problems, from `output_code`, in the dtype of `X`.
        feature_map: gives the features of a block of rows.
        X: inputs, shape `n d`.
        labels: class numbers 0..k-1, shape `n`.
        weights: row weights, shape `n`, at least 0.
        mesh: devices that share the rows, see `accumulate` (static).
        block_rows: number of rows in memory at a time (static).
    """
    matrix = jnp.asarray(code.matrix)
    if code.shares_all_rows:
        targets = matrix[labels]
        return accumulate(feature_map, X, targets, weights, mesh=mesh, block_rows=block_rows)
    w, k = jnp.ones(X.shape[0], X.dtype) if weights is None else weights, matrix.shape[0]

    def by_class(feature_map: FeatureMap, w: Array, X: Array, labels: Array) -> NormalEquations:
        no_targets = jnp.zeros((X.shape[0], 0), X.dtype)
        return accumulate_groups(
            feature_map, X, no_targets, w, labels, n_groups=k, block_rows=block_rows
        )

    return sum_over_rows(mesh, by_class, feature_map, w, X, labels)


def solve_code(
    code: Code,
    sums: NormalEquations,
    C: Float[Array, " s"] | Float[Array, "s l"],
    intercept_penalty: ScalarLike | None = None,
    *,
    refine: bool = True,
) -> Ridge:
    """Return the ridge solutions of every problem for every `C`.

    If the problems use different rows, they are solved from sums over the rows of each class,
    without another pass over the rows. Targets are constant within a class, so the equations of a
    problem are sums over its classes: grams weighted by `members`, and feature sums weighted by
    `matrix`. A problem without rows has the solution 0.

    Args:
        code: the problems, from `output_code`, in the dtype of the sums.
        sums: result of `accumulate_code`. If `code.shares_all_rows`, they are sums of all rows with
            a target for each problem; else they have a leading axis of `k` classes and no targets.
        C: weights of the data-fit term, shape `s`, or for each problem, shape `s l`.
        intercept_penalty: `p` of the penalty `p/2 b^2` on the intercept; None stands for 0.
        refine: improve float32 solutions by one step of refinement (static).

    Returns:
        `Ridge` with weights `s p l`, intercept `s l`, and the diagnostics of the worst system.
    """
    if code.shares_all_rows:
        return _solve(sums, C, intercept_penalty, refine)

    def solve_system(arguments: tuple[Array, Array, Array]) -> Ridge:
        """Return the ridge solutions of the problems that share a set of classes."""
        members, classes, problems = arguments
        targets = jnp.asarray(code.matrix)[:, problems]
        weight_sum = dot(members, sums.weight_sum)

        # Read only the grams of the system's classes: grams are most of the data.
        def weighted_gram(i: Int[Array, ""] | int) -> Float[Array, "p p"]:
            return members[classes[i]] * sums.gram[classes[i]]

        gram = jax.lax.fori_loop(
            1, len(classes), lambda i, gram: gram + weighted_gram(i), weighted_gram(0)
        )
        equations = NormalEquations(
            gram=gram,
            cross=dot(sums.feature_sum.T, targets),
            target_square=jnp.broadcast_to(weight_sum, problems.shape),
            feature_sum=dot(members, sums.feature_sum),
            target_sum=dot(sums.weight_sum, targets),
            # Without rows all sums are 0, and any weight gives the solution 0.
            weight_sum=jnp.where(weight_sum == 0, 1, weight_sum),
        )
        C_of_problems = C if C.ndim == 1 else C[:, problems]
        return _solve(equations, C_of_problems, intercept_penalty, refine)

    systems = tuple(jnp.asarray(a) for a in (code.members, code.classes, code.problems))
    # Even on a CPU a few systems together are faster: they share the steps of tridiagonal scans.
    solved = map_systems(solve_system, systems, at_least=UNROLLED)
    return Ridge(
        weights=jnp.moveaxis(solved.weights[code.system, :, :, code.slot], 0, -1),
        intercept=solved.intercept[code.system, :, code.slot].T,
        degrees_of_freedom=jnp.max(solved.degrees_of_freedom, axis=0),
        effective_rank=jnp.min(solved.effective_rank),
        relative_residual=jnp.max(solved.relative_residual, axis=0),
        status=jnp.max(solved.status, axis=0),
    )


def _solve(
    equations: NormalEquations,
    C: Float[Array, " s"] | Float[Array, "s q"],
    intercept_penalty: ScalarLike | None,
    refine: bool,
) -> Ridge:
    """Solve a system of `q` problems for every `C`; shape `s q` has a column for each problem."""
    if C.ndim == 1:
        return equations.solve(C, intercept_penalty, refine=refine)
    # One decomposition serves every C. Each solution has all problems, of which one is used.
    s, q = C.shape
    solutions = equations.solve(C.reshape(-1), intercept_penalty, refine=refine)
    places = jnp.arange(q)
    worst = (a.reshape(s, q).max(axis=1) for a in (solutions[2], solutions[4], solutions[5]))
    degrees, residual, status = worst
    return Ridge(
        weights=jnp.moveaxis(solutions.weights.reshape(s, q, -1, q)[:, places, :, places], 0, -1),
        intercept=solutions.intercept.reshape(s, q, q)[:, places, places],
        degrees_of_freedom=degrees,
        effective_rank=solutions.effective_rank,
        relative_residual=residual,
        status=status,
    )


def distances(
    matrix: Float[Array, "k l"], values: Float[Array, "*n l"], decoding: Decoding
) -> Float[Array, "*n k"]:
    """Return the distance of the values from each class's row of the code, in `k` columns.

    `predictor.codes.distances` defines the two distances.
    """
    return codes.distances(matrix, values, decoding, jnp, dot)


def decode(
    matrix: Float[Array, "k l"], values: Float[Array, "*n l"], decoding: Decoding = "loss"
) -> Int[Array, "*n"]:
    """Return the number of the nearest class, 0..k-1; the first class if distances are equal.

    The number is -1 if a distance is not finite.
    """

    def nearest(values: Float[Array, "r l"]) -> Int[Array, " r"]:
        class_distances = distances(matrix, values, decoding)
        nearest = jnp.argmin(class_distances, axis=-1).astype(jnp.int32)
        return jnp.where(jnp.all(jnp.isfinite(class_distances), axis=-1), nearest, -1)

    # Blocks keep the arrays of many problems in the cache.
    flat = values.reshape(-1, values.shape[-1])
    return map_row_blocks(nearest, flat, rows_in_block(None)).reshape(values.shape[:-1])
