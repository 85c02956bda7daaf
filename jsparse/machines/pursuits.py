"""Kernel subspace, matching and basis pursuit: as many atoms as are asked for (Kabbara 2015)."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import as_key
from .._numerics import as_array, as_float, dot
from .._types import KeyLike
from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture
from ..pursuit.on_atoms import least_squares
from .checks import check_problem, in_one_dtype
from .dictionary import dictionary_columns, is_dictionary, kernels_of, rows_of
from .pursuit import Pursuit, fit_rows, sizes_of
from .scdp import check_candidates
from .sized_path import SizedPath


def fit(
    method: Pursuit,
    kernel: Kernel | Sequence[Kernel],
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    key: KeyLike | None = None,
) -> SizedPath:
    """Fit machines of every size of a method, `KSP`, `KMP` or `KBP`.

    Args:
        method: the settings, with `atoms` the sizes (static).
        kernel: kernel of two points; or several, of each of which every candidate has an atom: a
            dictionary of several kernels or widths.
        candidates: points of the atoms, shape `M d`.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n`, or `n c` for several at once, each by itself.
        weights: row weights, shape `n`, at least 0.
        key: decides what is drawn at random, for a method with a `subset`.

    Works under `jit` and `vmap`, and nothing compiles again when values change. Not differentiable;
    `refit` is.

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
    sizes = sizes_of(method.atoms, len(kernels_of(kernel)) * len(candidates), "the number of atoms")
    if method.subset is not None and key is None:
        raise ValueError("key: expected one with a subset, got None")
    settled = dataclasses.replace(method, atoms=sizes, max_prototypes=sizes[-1])
    key = None if key is None else as_key(key)
    return fit_rows(settled, kernel, candidates, X, y, weights, key)


def refit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept: bool = True,
) -> KernelExpansion:
    """Least squares on given prototypes: the last step of `KSP` and of `KMP` with back-fitting.

    Args:
        kernel: kernel of two points, or the `Mixture` of a machine.
        prototypes: shape `m d`, those selected.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n` or `n c`.
        weights: row weights, shape `n`, at least 0.
        intercept: whether there is one (static).

    Differentiable in both modes in the kernel, prototypes, X, y and weights above 0, where the rank
    does not change; by the formula of the pseudo-inverse. Works under `jit` and `vmap`.

    Raises:
        ValueError: for inputs whose shapes do not fit, or values known to be out of range.
    """
    X, prototypes = as_float(X), as_float(prototypes)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, 1.0, X, y, weights)
    check_candidates(prototypes, X.shape[1])
    columns = dictionary_columns(kernel, prototypes, intercept=intercept)
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    rows = rows_of(columns, X, y, w, intercept=intercept)
    found = least_squares(rows.D, rows.y)
    mean = jnp.zeros(found.shape[1:], X.dtype)
    if intercept:
        share = w / jnp.sum(w)
        mean = dot(share, y.reshape(len(X), -1)) - dot(dot(share, columns(X)), found)
    return columns.expansion(found.reshape(-1, *y.shape[1:]), mean.reshape(y.shape[1:]))
