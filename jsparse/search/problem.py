"""What a search varies and what it keeps: a kernel's leaves and `C` over fixed data and folds."""

import functools
import sys
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .. import features, kernels
from .._mesh import check_mesh
from ..kernels import Kernel
from ..multiclass import Code, Decoding
from ..validation.cross_validation import (
    CrossValidation,
    Loss,
    Metric,
    cross_validate,
    standard_error,
)
from ..validation.folds import Folds
from ..validation.leave_one_out import leave_one_out
from ..validation.sharding import ShardedFolds, shard


class Scoring(NamedTuple):
    """What is fitted and how it is scored: static, each setting compiles anew."""

    metric: Metric
    decoding: Decoding = "loss"
    loss: Loss = "squared"


@runtime_checkable
class Tunable(Protocol):
    """What a search asks of a problem: the scores of kernels, each for a vector of `C`."""

    @property
    def tuned(self) -> Kernel:
        """The template's positive leaves, None elsewhere."""
        ...

    @property
    def fixed(self) -> Kernel:
        """The rest of the template."""
        ...

    @property
    def dtype(self) -> jnp.dtype:
        """Of the computations."""
        ...

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        ...

    @property
    def kernels_at_once(self) -> int:
        """How many kernels are best handed over in one call."""
        ...

    def scores(
        self, thetas: Float[Array, "q p"], C: Float[Array, "q s"], scoring: Scoring
    ) -> tuple[Float[Array, "q s"], Float[Array, "q s"], Int[Array, "q s"]]:
        """Scores of the kernels `exp(theta)`, their standard errors and stop codes."""
        ...


class Problem(eqx.Module):
    """What stays fixed while kernel and `C` vary; the arrays are traced, nothing recompiles."""

    tuned: Kernel  # the template's positive leaves, None elsewhere
    fixed: Kernel  # the rest of the template
    prototypes: Float[Array, "m d"] | None  # None: every row, the LS-SVM in the dual
    X: Float[Array, "n d"]
    y: Float[Array, " n"] | Int[Array, " n"]  # targets, or class numbers if there is a code
    weights: Float[Array, " n"] | None
    folds: Folds | ShardedFolds
    code: Code | None  # several classes as several problems
    mesh: Mesh | None = eqx.field(static=True)  # the devices over which the rows are spread

    @property
    def dtype(self) -> jnp.dtype:
        """Of the computations."""
        return self.X.dtype

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        return self.X.shape[0]

    @property
    def kernels_at_once(self) -> int:
        """One on a CPU, which it fills and which can report after each; else all there are."""
        return 1 if jax.default_backend() == "cpu" else sys.maxsize

    def scores(
        self, thetas: Float[Array, "q p"], C: Float[Array, "q s"], scoring: Scoring
    ) -> tuple[Float[Array, "q s"], Float[Array, "q s"], Int[Array, "q s"]]:
        """Scores of the kernels `exp(theta)`, their standard errors and stop codes."""
        if len(thetas) > 1:
            return evaluate_batch(self, thetas, C, scoring)
        scores, errors, status = evaluate(self, thetas[0], C[0], scoring)
        return scores[None], errors[None], status[None]


def tuning_problem(
    kernel: Kernel,
    prototypes: Float[Array, "m d"] | None,
    X: Float[Array, "n d"],
    y: Float[Array, " n"] | Int[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None = None,
    code: Code | None = None,
    *,
    tune_kernel: bool = True,
    mesh: Mesh | None = None,
) -> Problem:
    """The tuning problem of a template kernel: its positive floating leaves are tuned.

    Without prototypes every row is one: the LS-SVM in the dual, scored by leave-one-out, whatever
    the folds. With `tune_kernel` False only `C` is tuned. The other arguments are those of
    `cross_validate`.

    With a `mesh` the rows are sharded over its devices, and come in another order; see
    `validation.sharding`.

    Raises:
        ValueError: for a mesh with axes of type Explicit, or without prototypes.
    """
    tuned, fixed = split_kernel(kernel, X.dtype, tune_kernel=tune_kernel)
    code = None if code is None else code.astype(X.dtype)
    if mesh is None:
        return Problem(tuned, fixed, prototypes, X, y, weights, folds, code, None)
    check_mesh(mesh)
    if prototypes is None:
        raise ValueError("mesh: expected None without prototypes")
    return Problem(tuned, fixed, prototypes, *shard(mesh, folds, X, y, weights), code, mesh)


def split_kernel(kernel: Kernel, dtype: jnp.dtype, *, tune_kernel: bool) -> tuple[Kernel, Kernel]:
    """A template's leaves to be tuned, the positive ones, and the rest."""
    kernel = jax.tree.map(lambda a: jnp.asarray(a, dtype) if eqx.is_inexact_array(a) else a, kernel)
    spec = jax.tree.map(
        lambda a: tune_kernel and eqx.is_inexact_array(a) and bool(jnp.all(a > 0)), kernel
    )
    return eqx.partition(kernel, spec)


def start_of(problem: Tunable) -> Float[Array, " p"]:
    """Logs of the template's tuned leaves, shape `p`."""
    return jnp.log(ravel_pytree(problem.tuned)[0]).astype(problem.dtype)


def kernel_at(problem: Tunable, theta: Float[Array, " p"]) -> Kernel:
    """The template with tuned leaves `exp(theta)`."""
    _, unravel = ravel_pytree(problem.tuned)
    return eqx.combine(unravel(jnp.exp(theta)), problem.fixed)


@jax.jit
def feature_map(kernel: Kernel, prototypes: Float[Array, "m d"]) -> features.FeatureMap:
    """Nystroem features; for the linear kernel the inputs themselves, which no rank can limit."""
    if isinstance(kernel, kernels.Linear):
        return features.Linear(jnp.zeros(prototypes.shape[1], prototypes.dtype))
    return features.Nystroem(kernel, prototypes)


@functools.partial(jax.jit, static_argnames="scoring")
def evaluate(
    problem: Problem,
    theta: Float[Array, " p"],
    C: Float[Array, " s"],
    scoring: Scoring,
) -> tuple[Float[Array, " s"], Float[Array, " s"], Int[Array, " s"]]:
    """Cross-validation scores of one kernel for every `C`, standard errors and stop codes."""
    result = validate(problem, kernel_at(problem, theta), C, scoring)
    return result.scores, standard_error(result.fold_scores), result.status


def validate(
    problem: Problem, kernel: Kernel, C: Float[Array, " s"], scoring: Scoring
) -> CrossValidation:
    """Everything that cross-validation says of one kernel, for every `C`."""
    X, y, weights, code = problem.X, problem.y, problem.weights, problem.code
    metric, decoding, loss = scoring
    if problem.prototypes is None:
        return leave_one_out(kernel, C, X, y, weights, metric=metric, code=code, decoding=decoding)
    phi = feature_map(kernel, problem.prototypes)
    options = {"metric": metric, "code": code, "decoding": decoding, "loss": loss}
    return cross_validate(phi, C, X, y, problem.folds, weights, mesh=problem.mesh, **options)


@functools.partial(jax.jit, static_argnames="scoring")
def evaluate_batch(
    problem: Problem,
    thetas: Float[Array, "q p"],
    C: Float[Array, "q s"],
    scoring: Scoring,
) -> tuple[Float[Array, "q s"], Float[Array, "q s"], Int[Array, "q s"]]:
    """`evaluate` for a batch of kernels, each with its own vector of `C`, by `vmap`.

    For accelerators, which it fills; memory is that of `q` blocks of rows.
    """
    return jax.vmap(lambda theta, c: evaluate(problem, theta, c, scoring))(thetas, C)
