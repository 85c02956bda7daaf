"""A kernel machine as the last layer of a network, solved in closed form within every step.

The network maps inputs to features. On the features `KernelHead` fits a fixed-size LS-SVM, and
returns the error of v-fold cross-validation as the loss. Gradients flow through the closed-form
solution to the features, and so to the network, to the prototypes, the kernel and `C`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ._arguments import whole_number
from ._numerics import as_array, as_float, is_concrete
from ._repr import short_repr
from ._types import KeyLike
from .expansion import KernelExpansion
from .kernels import RBF, Kernel
from .machines import fixed_size
from .prototypes import k_means
from .validation.error_gradient import CrossEntropy, Parts, SquaredError, held_out_error


class HeadMachine(eqx.Module):
    """A fitted head. It maps features to values, class numbers or class probabilities.

    Attributes:
        expansion: the machine of features. For classes it has a column of values for each class.
        inverse_temperature: factor of the values in the exponents of the probabilities.
        classes: number of classes; None for regression (static).
    """

    expansion: KernelExpansion
    inverse_temperature: Float[Array, ""]
    classes: int | None = eqx.field(static=True)

    __repr__ = short_repr

    def __call__(self, features: Float[Array, "n d"]) -> Float[Array, " n *c"]:
        """Return predicted targets, shape `n *c`, or a value for each class, shape `n k`."""
        return self.expansion(features)

    def predict(self, features: Float[Array, "n d"]) -> Float[Array, " n *c"] | Int[Array, " n"]:
        """Return predicted targets, shape `n *c`, or predicted class numbers, shape `n`."""
        values = self(features)
        return values if self.classes is None else jnp.argmax(values, axis=1).astype(jnp.int32)

    def predict_proba(self, features: Float[Array, "n d"]) -> Float[Array, "n k"]:
        """Return class probabilities, shape `n k`. The cross-entropy loss calibrates them.

        Raises:
            ValueError: for a head for regression.
        """
        if self.classes is None:
            raise ValueError(
                "predict_proba: expected a head with classes, got a head for regression"
            )
        return jax.nn.softmax(self.inverse_temperature * self(features), axis=1)


class KernelHead(eqx.Module):
    """A kernel machine on the features of a network: closed-form fit, cross-validated loss.

    Every array of the head is an unconstrained floating-point parameter: positive numbers are
    stored as logarithms. So `jax.grad` and optax need no filters for the head, alone or within a
    larger model.

    Attributes:
        prototypes: points in feature space, shape `m d`.
        log_C: logarithm of the weight of the data fit, shape `()`.
        kernel_parameters: the kernel's leaves; positive leaves are stored as logarithms.
        log_inverse_temperature: logarithm of `HeadMachine.inverse_temperature`, shape `()`.
        classes: number of classes; None for regression (static).
        n_folds: number of folds of the loss (static).
    """

    prototypes: Float[Array, "m d"]
    log_C: Float[Array, ""]
    kernel_parameters: tuple[Float[Array, "..."], ...]
    log_inverse_temperature: Float[Array, ""]
    classes: int | None = eqx.field(static=True)
    n_folds: int = eqx.field(static=True)
    _structure: Any = eqx.field(static=True)
    _positive: tuple[bool, ...] = eqx.field(static=True)

    __repr__ = short_repr

    def __init__(
        self,
        prototypes: Float[ArrayLike, "m d"],
        kernel: Kernel,
        *,
        C: float = 100.0,
        classes: int | None = None,
        n_folds: int = 5,
    ) -> None:
        """Construct a head from initial values of its parameters.

        Args:
            prototypes: points in feature space, shape `m d`.
            kernel: any kernel whose leaves are floating-point numbers, such as `RBF(1.0)`.
            C: weight of the data fit, positive.
            classes: number of classes; None for real targets.
            n_folds: number of folds of the cross-validated loss, at least 2.

        Raises:
            ValueError: for a value out of range, or a kernel with other leaves.
        """
        Z = as_float(as_array(prototypes))
        if Z.ndim != 2 or not len(Z):
            raise ValueError(f"prototypes: expected shape (m, d), m at least 1, got {Z.shape}")
        if is_concrete(C) and not 0 < float(C) < np.inf:
            raise ValueError(f"C: expected a positive number, got {C!r}")
        if classes is not None:
            classes = whole_number("classes", classes, 2)
        leaves, self._structure = jax.tree.flatten(kernel)
        if not leaves or not all(eqx.is_inexact_array_like(leaf) for leaf in leaves):
            raise ValueError(f"kernel: expected floating-point leaves only, got {kernel!r}")
        self._positive = tuple(bool(np.all(np.asarray(leaf) > 0)) for leaf in leaves)
        self.kernel_parameters = tuple(
            jnp.asarray(np.log(leaf) if positive else leaf, Z.dtype)
            for leaf, positive in zip(map(np.asarray, leaves), self._positive, strict=True)
        )
        self.prototypes = Z
        self.log_C = jnp.log(jnp.asarray(C, Z.dtype))
        self.log_inverse_temperature = jnp.asarray(np.log(2.0), Z.dtype)
        self.classes = classes
        self.n_folds = whole_number("n_folds", n_folds, 2)

    @classmethod
    def from_features(
        cls,
        features: Float[ArrayLike, "n d"],
        n_prototypes: int,
        *,
        key: KeyLike,
        kernel: Kernel | None = None,
        **settings: Any,
    ) -> "KernelHead":
        """Construct a head whose prototypes are the k-means centres of some features.

        Args:
            features: the network's features of some rows, shape `n d`, `n >= n_prototypes`.
            n_prototypes: the number of prototypes.
            key: random key of the first centres of k-means.
            kernel: see `KernelHead`. None for an `RBF` whose lengthscale is the root mean squared
                distance of two rows of features.
            settings: further arguments of `KernelHead`.

        Raises:
            ValueError: for more prototypes than rows; see also `KernelHead`.
        """
        Y = np.asarray(as_float(as_array(features)))
        n_prototypes = whole_number("n_prototypes", n_prototypes, 1, len(Y), "the number of rows")
        centres = k_means(key, as_array(Y), n_prototypes).centres
        if kernel is None:
            spread = float(np.sqrt(2 * np.sum(np.var(Y, axis=0, dtype=float))))
            kernel = RBF(spread if spread > 0 else 1.0)
        return cls(centres, kernel, **settings)

    @property
    def kernel(self) -> Kernel:
        """Return the kernel with the present parameters."""
        pairs = zip(self.kernel_parameters, self._positive, strict=True)
        leaves = [jnp.exp(leaf) if positive else leaf for leaf, positive in pairs]
        return jax.tree.unflatten(self._structure, leaves)

    def loss(
        self,
        features: Float[Array, "n d"],
        targets: Float[Array, " n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        prototypes: Float[Array, "m d"] | None = None,
    ) -> Float[Array, ""]:
        """Return the v-fold cross-validated loss of the closed-form machine.

        Row `i` belongs to fold `i mod n_folds`, so the rows must be in random order, as in shuffled
        batches. For real targets the loss is the mean squared error. For classes it is the
        cross-entropy of the softmax of the held-out values.

        Args:
            features: shape `n d`; at least `n_folds` rows.
            targets: real targets, shape `n` or `n c`, or class numbers, shape `n`.
            weights: row weights, shape `n`, at least 0.
            prototypes: points that replace the head's prototypes, such as the network's features of
                fixed inputs. Pass `jax.lax.stop_gradient(head.prototypes)` to hold them fixed.

        Differentiable once, in both modes, in the features, real targets, weights, prototypes and
        every parameter of the head. A gradient costs hardly more than the loss, see
        `validation.error_gradient`. Works under `jit` and `vmap`.

        Raises:
            ValueError: for shapes that do not fit, or (outside `jit`) values out of range.
        """
        features, y, Z = self._problem(features, targets, prototypes)
        n_folds = whole_number("n_folds", self.n_folds, 2, len(features), "the number of rows")
        w = jnp.ones(len(features), features.dtype) if weights is None else weights
        loss = SquaredError() if self.classes is None else CrossEntropy(self._inverse_temperature)
        parts = Parts(*(_in_parts(a, n_folds) for a in (features, y.reshape(len(y), -1), w)))
        return held_out_error(self.kernel, Z, jnp.exp(self.log_C), parts, loss)

    def fit(
        self,
        features: Float[Array, "n d"],
        targets: Float[Array, " n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        prototypes: Float[Array, "m d"] | None = None,
    ) -> HeadMachine:
        """Return the closed-form machine of all rows; `loss` describes the arguments.

        Differentiable any number of times in both modes, in the arguments and parameters in which
        `loss` is differentiable. Works under `jit` and `vmap`.

        Raises:
            ValueError: see `loss`; also for more prototypes than rows.
        """
        features, y, Z = self._problem(features, targets, prototypes)
        machine = fixed_size.fit(self.kernel, Z, jnp.exp(self.log_C), features, y, weights)
        return HeadMachine(machine.expansion, self._inverse_temperature, self.classes)

    @property
    def _inverse_temperature(self) -> Float[Array, ""]:
        return jnp.exp(self.log_inverse_temperature)

    def _problem(
        self, features: Array, targets: Array, prototypes: Array | None
    ) -> tuple[Float[Array, "n d"], Float[Array, " n *c"], Float[Array, "m d"]]:
        """Return features, targets (for classes a column of -1 and +1 each) and prototypes."""
        Z = self.prototypes if prototypes is None else prototypes
        features, y = as_float(features), as_array(targets)
        if features.ndim != 2 or features.shape[1] != Z.shape[1]:
            raise ValueError(
                f"features: expected shape (n, {Z.shape[1]}), got {tuple(features.shape)}"
            )
        if self.classes is None:
            return features, as_float(y), Z
        if y.ndim != 1 or not jnp.issubdtype(y.dtype, jnp.integer):
            raise ValueError(
                f"targets: expected class numbers, integers of shape (n,), got {y.dtype} of shape "
                f"{tuple(y.shape)}"
            )
        if is_concrete(y) and not ((np.asarray(y) >= 0) & (np.asarray(y) < self.classes)).all():
            raise ValueError(f"targets: expected class numbers from 0 to {self.classes - 1}")
        return features, 2 * jax.nn.one_hot(y, self.classes, dtype=features.dtype) - 1, Z


class PureHead(NamedTuple):
    """A head as pure functions of a dictionary of parameters, for flax, haiku and plain JAX.

    Attributes:
        init: `init(key, features)` returns the parameters, a dictionary of arrays.
        loss: `loss(params, features, targets, weights=None, prototypes=None)`.
        fit: `fit(params, features, targets, weights=None, prototypes=None)` returns a machine.
    """

    init: Callable[..., dict[str, Any]]
    loss: Callable[..., Float[Array, ""]]
    fit: Callable[..., HeadMachine]

    __repr__ = short_repr


def pure_head(n_prototypes: int, kernel: Kernel | None = None, **settings: Any) -> PureHead:
    """Return `KernelHead` as three pure functions; `from_features` describes the arguments.

    `init(key, features)` returns `{"prototypes", "log_C", "kernel_parameters",
    "log_inverse_temperature"}`. `loss` and `fit` take these parameters as first argument. Otherwise
    they equal the methods of `KernelHead`, also in their derivatives.
    """
    example = KernelHead(np.zeros((1, 1), np.float32), kernel or RBF(1.0), **settings)

    def head_of(params: dict[str, Any]) -> KernelHead:
        return eqx.tree_at(_parameters, example, tuple(params[name] for name in _NAMES))

    def init(key: KeyLike, features: Float[ArrayLike, "n d"]) -> dict[str, Any]:
        head = KernelHead.from_features(features, n_prototypes, key=key, kernel=kernel, **settings)
        return {name: getattr(head, name) for name in _NAMES}

    def loss(params: dict[str, Any], *args: Any, **kwargs: Any) -> Float[Array, ""]:
        return head_of(params).loss(*args, **kwargs)

    def fit(params: dict[str, Any], *args: Any, **kwargs: Any) -> HeadMachine:
        return head_of(params).fit(*args, **kwargs)

    return PureHead(init, loss, fit)


_NAMES = ("prototypes", "log_C", "kernel_parameters", "log_inverse_temperature")


def _parameters(head: KernelHead) -> tuple[Any, ...]:
    return tuple(getattr(head, name) for name in _NAMES)


def _in_parts(a: Float[Array, " n *c"], n_folds: int) -> Float[Array, "v r *c"]:
    """Return rows as `Parts`: row `i` in fold `i mod n_folds`."""
    rows = -(-len(a) // n_folds)
    padding = [(0, rows * n_folds - len(a)), *[(0, 0)] * (a.ndim - 1)]
    return jnp.moveaxis(jnp.pad(a, padding).reshape(rows, n_folds, *a.shape[1:]), 1, 0)
