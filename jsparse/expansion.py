"""The model that every learner returns: `f(x) = sum_j beta_j k(z_j, x) + b`."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._blocks import map_row_batches, map_row_blocks, rows_in_block
from ._numerics import as_array, dot, is_traced
from ._programs import compiled
from ._repr import short_repr
from ._runtime import check_runtime
from .kernels import Kernel
from .scaling import Scaling


class KernelExpansion(eqx.Module):
    """A sparse kernel machine, `f(x) = sum_j coefficients_j k(prototypes_j, s(x)) + intercept`.

    `s` is `scaling`, or the identity: the inputs are raw, and the prototypes are in scaled units.
    It is a pytree that may pass through `jit` and `vmap`, differentiable in `X` and in every
    floating leaf in both modes. NumPy rows are padded to six capacities, each of which has one
    program. JAX arrays have a program for each number of rows.

    Attributes:
        kernel: kernel of two points, or a `Mixture`, which has one for each prototype.
        prototypes: points that carry the model, shape `m d`.
        coefficients: one column per output, shape `m` or `m c`.
        intercept: shape `()` or `c`.
        scaling: standardisation or normal scores that are applied to the inputs; or None.

    Example:
        >>> import jax.numpy as jnp
        >>> from jsparse.kernels import Linear
        >>> point, one = jnp.array([[1.0, 2.0]]), jnp.array(1.0)
        >>> machine = KernelExpansion(Linear(), point, jnp.array([3.0]), one)
        >>> machine(jnp.array([[1.0, 1.0]])).tolist()
        [10.0]
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]
    coefficients: Float[Array, " m *c"]
    intercept: Float[Array, "*c"]
    scaling: Scaling | None = None

    __repr__ = short_repr
    # `jax.jit` identifies an expansion by object identity, not by its numbers.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __call__(
        self,
        X: Float[Array, "*n d"] | Float[np.ndarray, "*n d"],
        *,
        block_rows: int | None = None,
    ) -> Float[Array, "..."]:
        """Return the values at the rows of `X`, shape `n` or `n c`, in blocks of rows.

        Args:
            X: inputs in raw units, shape `n d`, which are cast to the model's dtype. One row of
                shape `d` gives values without the axis of rows.
            block_rows: number of rows evaluated at a time. The default depends on the device.

        Raises:
            ValueError: if `X` is not of shape `n d` or `d` with the model's `d`.
        """
        check_runtime()
        if not isinstance(X, np.ndarray):
            X = as_array(X)
        if X.ndim == 1:
            return self(X[None], block_rows=block_rows)[0]
        if X.ndim != 2 or X.shape[1] != self.prototypes.shape[1]:
            raise ValueError(
                f"X: expected shape (n, {self.prototypes.shape[1]}), the model's number of "
                f"columns; got {X.shape}"
            )
        if not isinstance(X, np.ndarray) or len(X) == 0 or block_rows is not None:
            return self._in_one_program(X, block_rows)
        arrays = [leaf for leaf in jax.tree.leaves(self) if isinstance(leaf, jax.Array)]
        if is_traced(self) or any(len(a.sharding.device_set) > 1 for a in arrays):
            return self._in_one_program(X, block_rows)
        with np.errstate(over="ignore"):
            rows = X.astype(self.prototypes.dtype)
        device = next((a.sharding for a in arrays if a.committed), None)
        return jax.device_put(map_row_batches(self._in_one_program, rows), device)

    def _in_one_program(
        self, X: Float[Array, "n d"] | Float[np.ndarray, "n d"], block_rows: int | None = None
    ) -> Float[Array, " n *c"]:
        X = as_array(X).astype(self.prototypes.dtype)
        return _evaluate(self, X, rows_in_block(block_rows))


@functools.partial(compiled, static_argnames="block_rows")
def _evaluate(
    expansion: KernelExpansion, X: Float[Array, "n d"], block_rows: int
) -> Float[Array, " n *c"]:
    def block(rows: Float[Array, "r d"]) -> Float[Array, " r *c"]:
        if expansion.scaling is not None:
            rows = expansion.scaling.apply(rows)
        features = expansion.kernel.cross_gram(rows, expansion.prototypes)
        values = dot(features, expansion.coefficients)
        return values + jnp.broadcast_to(expansion.intercept, values.shape)

    return map_row_blocks(block, X, block_rows)
