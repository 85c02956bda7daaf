"""Kernel subspace, matching and basis pursuit: as many atoms as are asked for (Kabbara 2015)."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import as_key
from .._numerics import as_array, as_float, dot
from .._types import KeyLike, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture
from ..pursuit.on_atoms import least_squares
from .candidates import check_candidates
from .checks import check_problem, given_penalty, in_one_dtype
from .dictionary import design_of, dictionary_columns, is_dictionary, kernels_of
from .family import Family
from .method import check_number, replaced
from .pursuit import Pursuit, fit_rows, sizes_of


def fit(
    method: Pursuit,
    kernel: Kernel | Sequence[Kernel],
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    key: KeyLike | None = None,
) -> Family:
    """Fit machines of every size of a method, `KSP`, `KMP` or `KBP`.

    Args:
        method: the settings, with `atoms` the sizes.
        kernel: kernel of two points; or several, for a dictionary in which every candidate has an
            atom of each kernel.
        candidates: points of the atoms, shape `M d`.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n`, or `n c` for several at once, each by itself.
        weights: row weights, shape `n`, at least 0.
        key: decides the random draws of a method with a `subset`.

    Returns:
        A `Family` of the sizes `atoms`, without `support`: every atom has a coefficient.

    Pure; works under `jit` and `vmap`, and nothing compiles again when values change, the method's
    `ridge` included. Differentiable in forward mode in all floating arguments, in weights and a
    `ridge` above 0, where the selection does not change; not in reverse mode, as the number of
    steps depends on values. `refit` is differentiable in both.

    Raises:
        ValueError: for inputs whose shapes do not fit, values known to be out of range, or more
            atoms than there are.
    """
    X, candidates = as_float(X), as_float(candidates)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, 1.0, X, y, weights)
    check_candidates(candidates, X.shape[1])
    if not isinstance(kernel, Kernel):
        if not kernel or not all(isinstance(one, Kernel) for one in kernel):
            raise ValueError(f"kernel: expected a Kernel or several, got {kernel!r}")
        kernel = Mixture(tuple(kernel))
    if isinstance(kernel, Mixture) and not is_dictionary(kernel):
        raise ValueError("kernel: expected kernels of a dictionary, got a Mixture of prototypes")
    method.check("regression")
    if method.atoms is None:
        raise ValueError("atoms: expected one number of atoms or several, got None")
    n_atoms = len(kernels_of(kernel)) * len(candidates)
    sizes = sizes_of(method.atoms, n_atoms, "the number of atoms")
    if method.subset is not None and key is None:
        raise ValueError("key: expected one with a subset, got None")
    subset = method.resolved_subset(n_atoms)
    resolved = replaced(method, atoms=sizes, max_prototypes=sizes[-1], subset=subset)
    key = None if key is None else as_key(key)
    return fit_rows(resolved, kernel, candidates, X, y, weights, key)


def refit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept: bool = True,
    ridge: ScalarLike = 0.0,
) -> KernelExpansion:
    """Solve least squares on given prototypes, the last step of `KSP` and `KMP` with back-fitting.

    Args:
        kernel: kernel of two points, or the `Mixture` of a machine.
        prototypes: the selected points, shape `m d`.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n` or `n c`.
        weights: row weights, shape `n`, at least 0.
        intercept: whether there is one (static).
        ridge: least squares is of the mean squared error plus `ridge |coefficients|^2`.

    Differentiable in both modes in the kernel, prototypes, X, y, weights above 0 and a ridge above
    0, by the formula of the pseudo-inverse, where the rank does not change. Works under `jit` and
    `vmap`.

    Raises:
        ValueError: for inputs whose shapes do not fit, or values known to be out of range.
    """
    X, prototypes = as_float(X), as_float(prototypes)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, 1.0, X, y, weights)
    check_candidates(prototypes, X.shape[1])
    check_number("ridge", ridge, 0.0)
    columns = dictionary_columns(kernel, prototypes, intercept=intercept)
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    D, targets = design_of(columns, X, y, w, intercept=intercept)
    penalty = given_penalty(ridge, X)
    if penalty is not None:  # one more row for each atom
        positive = penalty > 0
        root = jnp.where(positive, jnp.sqrt(jnp.where(positive, penalty, 1) * jnp.sum(w)), 0)
        D = jnp.concatenate([D, root * jnp.eye(D.shape[1], dtype=D.dtype)])
        targets = jnp.pad(targets, ((0, D.shape[1]), (0, 0)))
    coefficients = least_squares(D, targets)
    mean = jnp.zeros(coefficients.shape[1:], X.dtype)
    if intercept:
        share = w / jnp.sum(w)
        mean = dot(share, y.reshape(len(X), -1)) - dot(dot(share, columns(X)), coefficients)
    return columns.expansion(coefficients.reshape(-1, *y.shape[1:]), mean.reshape(y.shape[1:]))
