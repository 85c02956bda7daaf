"""Scores of a model: a pure function of rows, and its evaluation for rows on the host."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._blocks import batch_capacities, capacity, map_row_batches, padded
from ._numerics import as_array
from ._programs import compiled
from ._repr import short_repr
from ._runtime import check_runtime
from .expansion import KernelExpansion
from .kernels import Mixture
from .multiclass import Code, Decoding, distances
from .predictor.checks import NameRow, check_scores, row_index


class Scorer(NamedTuple):
    """Scores of the classes, or values of a regression, by one or several machines."""

    expansion: KernelExpansion  # the machines, which take raw inputs
    # code of `k` classes by `l` binary problems; None for two classes or a regression
    matrix: Float[Array, "k l"] | Float[np.ndarray, "k l"] | None
    decoding: Decoding = "loss"  # the distance that turns the values of the problems into scores
    # shape of one machine's values if the expansion has the columns of several machines
    outputs: tuple[int, ...] | None = None
    # whether to sort the values of a row, which are quantiles of one target, so that they never
    # cross (Chernozhukov, Fernandez-Val and Galichon 2010)
    in_order: bool = False

    __repr__ = short_repr

    def __call__(self, X: Float[Array, "n d"] | Float[np.ndarray, "n d"]) -> Float[Array, "n ..."]:
        """Return the scores of rows, shape `n *c`, or `n v *c` by `v` machines; differentiable."""
        values = self.expansion(X)
        if self.outputs is not None:
            machines = self.expansion.intercept.size // math.prod(self.outputs)
            values = values.reshape(values.shape[0], machines, *self.outputs)
        if self.in_order:
            values = jnp.sort(values, axis=-1)
        if self.matrix is None:
            return values
        return -distances(as_array(self.matrix, values.dtype), values, self.decoding)

    def on_host(
        self, X: Float[np.ndarray, "n d"], *, name_row: NameRow = row_index
    ) -> Float[np.ndarray, "n ..."]:
        """Return the scores of NumPy rows, which are padded to one of six batch sizes.

        Raise NumericalError, naming the row by `name_row`, if a score is not finite.
        """
        check_runtime()
        shared = self._padded()
        dtype = np.dtype(self.expansion.prototypes.dtype)
        with np.errstate(over="ignore"), jax.enable_x64(dtype == np.float64):
            scores = map_row_batches(lambda rows: _scores(*shared, rows), np.asarray(X, dtype))
        check_scores(scores, name_row=name_row)
        return scores

    def warm_up(self) -> None:
        """Compile the programs of `on_host`, one for each of six batch sizes."""
        check_runtime()
        shared, d = self._padded(), self.expansion.prototypes.shape[1]
        dtype = np.dtype(self.expansion.prototypes.dtype)
        with jax.enable_x64(dtype == np.float64):
            for rows in batch_capacities():
                jax.block_until_ready(_scores(*shared, np.zeros((rows, d), dtype)))

    def _padded(self) -> "Scorer":
        """Add prototypes of coefficient 0, so that models of similar size share programs."""
        expansion = self.expansion
        prototypes, coefficients = map(np.asarray, (expansion.prototypes, expansion.coefficients))
        m, kernel, dtype = capacity(len(prototypes)), expansion.kernel, prototypes.dtype
        with jax.enable_x64(dtype == np.float64):
            if isinstance(kernel, Mixture):
                which = as_array(padded(np.asarray(kernel.which), m))
                kernel = dataclasses.replace(kernel, which=which)
            expansion = dataclasses.replace(
                expansion,
                kernel=kernel,
                prototypes=as_array(padded(prototypes, m)),
                coefficients=as_array(padded(coefficients, m, "constant")),
            )
        matrix = None if self.matrix is None else np.asarray(self.matrix, dtype)
        return self._replace(expansion=expansion, matrix=matrix)


@functools.partial(compiled, static_argnums=(2, 3, 4))
def _scores(
    expansion: KernelExpansion,
    matrix: Float[Array, "k l"] | None,
    decoding: Decoding,
    outputs: tuple[int, ...] | None,
    in_order: bool,
    X: Float[Array, "n d"],
) -> Float[Array, "n ..."]:
    """Return the scores of a `Scorer` with these fields, by a compiled program."""
    return Scorer(expansion, matrix, decoding, outputs, in_order)(X)


_distances = compiled(distances, static_argnames="decoding")


def scores_of(
    values: Float[np.ndarray, " n *l"], code: Code | None, decoding: Decoding
) -> np.ndarray:
    """Return the scores of the classes from the values of the problems; without code, the values.

    Raise NumericalError, naming the row, if a value is not finite or too large for a code.
    """
    scores = values
    if code is not None:
        with jax.enable_x64(values.dtype == np.float64):
            rows = padded(values, capacity(len(values)))
            matrix = np.asarray(code.matrix, values.dtype)
            scores = -np.asarray(_distances(matrix, rows, decoding))[: len(values)]
    check_scores(scores)
    return scores
