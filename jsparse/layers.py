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
from jax.tree_util import KeyPath
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ._arguments import check_finite, whole_number
from ._blocks import to_blocks
from ._numerics import as_array, as_float, is_concrete
from ._repr import short_repr
from ._types import KeyLike
from .expansion import KernelExpansion
from .kernels import RBF, Kernel
from .machines import fixed_size
from .machines.checks import check_weights
from .prototypes import k_means
from .validation.error_gradient import CrossEntropy, Parts, SquaredError, held_out_error


class HeadMachine(eqx.Module):
    """A fitted head. It maps features to values, class numbers or class probabilities.

    Attributes:
        expansion: the machine of features. For classes it has a column of values for each class.
        inverse_temperature: factor of the values in the exponents of the probabilities.
        status: stop code of the fit, see `jsparse.check`.
        classes: number of classes; None for regression (static).

    Every method also takes the features of one row, shape `d`. The axis of rows is then absent from
    the result.
    """

    expansion: KernelExpansion
    inverse_temperature: Float[Array, ""]
    status: Int[Array, ""]
    classes: int | None = eqx.field(static=True)

    __repr__ = short_repr
    # `jax.jit` identifies a machine by object identity, not by its numbers.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __call__(self, features: Float[Array, "*n d"]) -> Float[Array, "..."]:
        """Return predicted targets, shape `n *c`, or a value for each class, shape `n k`."""
        return self.expansion(features)

    def predict(self, features: Float[Array, "*n d"]) -> Float[Array, "..."] | Int[Array, "*n"]:
        """Return predicted targets, shape `n *c`, or predicted class numbers, shape `n`."""
        values = self(features)
        return values if self.classes is None else jnp.argmax(values, axis=-1).astype(jnp.int32)

    def predict_proba(self, features: Float[Array, "*n d"]) -> Float[Array, "*n k"]:
        """Return class probabilities, shape `n k`. The cross-entropy loss calibrates them.

        Raises:
            ValueError: for a head for regression.
        """
        if self.classes is None:
            raise ValueError(
                "predict_proba: expected a head with classes, got a head for regression"
            )
        return jax.nn.softmax(self.inverse_temperature * self(features), axis=-1)


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

        Works under `jit` and `vmap`. The sign of a traced leaf of the kernel is not known. Such a
        leaf is stored as a logarithm, unless its kernel allows numbers that are not positive: an
        offset, the matrix of `kernels.Projected`, the parameters of `kernels.Custom`.

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
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(kernel)
        if not leaves or not all(_is_floating(leaf) for _, leaf in leaves):
            raise ValueError(f"kernel: expected floating-point leaves only, got {kernel!r}")
        self._positive = tuple(_is_positive(*leaf) for leaf in leaves)
        self.kernel_parameters = tuple(
            _parameter(leaf, positive).astype(Z.dtype)
            for (_, leaf), positive in zip(leaves, self._positive, strict=True)
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
            key: random key of the initial centres of k-means.
            kernel: any kernel with floating-point leaves. None for an `RBF` whose lengthscale is
                the root mean squared distance of two rows of features.
            settings: further arguments of `KernelHead`.

        Works under `jit` and `vmap`, also over keys.

        Raises:
            ValueError: for more prototypes than rows; see also `KernelHead`.
        """
        Y = as_float(as_array(features))
        if Y.ndim != 2:
            raise ValueError(
                f"features: expected shape (n, d), got {Y.shape}; PureHead.init takes the key first"
            )
        n_prototypes = whole_number("n_prototypes", n_prototypes, 1, len(Y), "the number of rows")
        centres = k_means(key, Y, n_prototypes).centres
        return cls(centres, RBF(_distance_of_rows(Y)) if kernel is None else kernel, **settings)

    @property
    def kernel(self) -> Kernel:
        """Return the kernel with the present parameters."""
        pairs = zip(self.kernel_parameters, self._positive, strict=True)
        leaves = [jnp.exp(leaf) if positive else leaf for leaf, positive in pairs]
        return jax.tree.unflatten(self._structure, leaves)

    def loss(
        self,
        features: Float[Array, "n d"],
        targets: Float[Array, " n *c"] | Int[Array, " n"] | Bool[Array, " n"],
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
            targets: real targets, shape `n` or `n c`, or class numbers, shape `n`. Of two classes,
                booleans are class numbers, too. Under `jit`, a class number out of range gives NaN;
                outside `jit` it raises ValueError.
            weights: row weights, shape `n`, at least 0.
            prototypes: points that replace the head's prototypes, such as the network's features of
                fixed inputs. Pass `jax.lax.stop_gradient(head.prototypes)` to hold them fixed.

        Differentiable once, in both modes, in the features, real targets, weights, prototypes and
        every parameter of the head. A gradient costs hardly more than the loss, see
        `validation.error_gradient`. Works under `jit` and `vmap`.

        Raises:
            ValueError: for shapes that do not fit, or (outside `jit`) values out of range.
        """
        features, y, Z = self._problem(features, targets, weights, prototypes)
        check_weights(weights)
        n_folds = whole_number("n_folds", self.n_folds, 2, len(features), "the number of rows")
        w = jnp.ones(len(features), features.dtype) if weights is None else weights
        loss = SquaredError() if self.classes is None else CrossEntropy(self._inverse_temperature)
        parts = Parts(*(_in_parts(a, n_folds) for a in (features, y.reshape(len(y), -1), w)))
        return held_out_error(self.kernel, Z, jnp.exp(self.log_C), parts, loss)

    def fit(
        self,
        features: Float[Array, "n d"],
        targets: Float[Array, " n *c"] | Int[Array, " n"] | Bool[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        prototypes: Float[Array, "m d"] | None = None,
    ) -> HeadMachine:
        """Return the closed-form machine of all rows; `loss` describes the arguments.

        Under `jit`, a class number out of range gives a machine of NaN, with the status
        `NOT_FINITE`.

        Differentiable any number of times in both modes, in the arguments and parameters in which
        `loss` is differentiable. Works under `jit` and `vmap`.

        Raises:
            ValueError: see `loss`; also for more prototypes than rows.
        """
        features, y, Z = self._problem(features, targets, weights, prototypes)
        fit = fixed_size.fit(self.kernel, Z, jnp.exp(self.log_C), features, y, weights)
        return HeadMachine(fit.expansion, self._inverse_temperature, fit.status, self.classes)

    @property
    def _inverse_temperature(self) -> Float[Array, ""]:
        return jnp.exp(self.log_inverse_temperature)

    def _problem(
        self, features: Array, targets: Array, weights: Array | None, prototypes: Array | None
    ) -> tuple[Float[Array, "n d"], Float[Array, " n *c"], Float[Array, "m d"]]:
        """Return features, targets (for classes a column of -1 and +1 each) and prototypes."""
        Z = self.prototypes if prototypes is None else prototypes
        features, y = as_float(features), as_array(targets)
        if features.ndim != 2 or features.shape[1] != Z.shape[1]:
            raise ValueError(
                f"features: expected shape (n, {Z.shape[1]}), got {tuple(features.shape)}"
            )
        check_finite("features", features)
        for name, a in (("targets", y), ("weights", weights)):
            if a is not None and (a.ndim == 0 or len(a) != len(features)):
                raise ValueError(
                    f"{name}: expected {len(features)} rows, as many as features, got shape "
                    f"{tuple(a.shape)}"
                )
        if self.classes is None:
            y = as_float(y)
            check_finite("targets", y)
            return features, y, Z
        if y.dtype == bool and self.classes == 2:
            y = y.astype(jnp.int32)
        if y.ndim != 1 or not jnp.issubdtype(y.dtype, jnp.integer):
            raise ValueError(
                f"targets: expected class numbers, integers of shape (n,), got {y.dtype} of shape "
                f"{tuple(y.shape)}"
            )
        if is_concrete(y) and not ((np.asarray(y) >= 0) & (np.asarray(y) < self.classes)).all():
            raise ValueError(f"targets: expected class numbers from 0 to {self.classes - 1}")
        codes = 2 * jax.nn.one_hot(y, self.classes, dtype=features.dtype) - 1
        valid = (y >= 0) & (y < self.classes)  # a traced class number may be out of range
        return features, jnp.where(valid[:, None], codes, jnp.nan), Z


class PureHead(NamedTuple):
    """A head as pure functions of a dictionary of parameters, for flax, haiku and plain JAX.

    Attributes:
        init: `init(key, features)` returns the parameters, a dictionary of arrays.
        loss: `loss(params, features, targets, weights=None, prototypes=None)` returns a scalar.
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
        values = tuple(params[name] for name in _NAMES)
        return eqx.tree_at(lambda h: tuple(getattr(h, name) for name in _NAMES), example, values)

    def init(key: KeyLike, features: Float[ArrayLike, "n d"]) -> dict[str, Any]:
        head = KernelHead.from_features(features, n_prototypes, key=key, kernel=kernel, **settings)
        return {name: getattr(head, name) for name in _NAMES}

    def loss(params: dict[str, Any], *args: Any, **kwargs: Any) -> Float[Array, ""]:
        return head_of(params).loss(*args, **kwargs)

    def fit(params: dict[str, Any], *args: Any, **kwargs: Any) -> HeadMachine:
        return head_of(params).fit(*args, **kwargs)

    return PureHead(init, loss, fit)


_OF_ANY_SIGN = ("offset", "matrix", "params")  # attributes of kernels
_NAMES = ("prototypes", "log_C", "kernel_parameters", "log_inverse_temperature")


def _is_floating(leaf: Any) -> bool:
    is_number = isinstance(leaf, jax.Array | np.ndarray | np.generic | float)
    return is_number and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _is_positive(path: KeyPath, leaf: ArrayLike) -> bool:
    """Return whether a kernel's leaf is positive; for a traced leaf, whether it has to be."""
    if is_concrete(leaf):
        return bool(np.all(np.asarray(leaf) > 0))
    return not any(getattr(key, "name", "") in _OF_ANY_SIGN for key in path)


def _parameter(leaf: ArrayLike, positive: bool) -> Array:
    """Return a leaf of a kernel as an unconstrained parameter."""
    leaf = leaf if isinstance(leaf, jax.Array) else as_array(leaf)
    return jnp.log(leaf) if positive else leaf


def _distance_of_rows(Y: Float[Array, "n d"]) -> Float[Array, ""]:
    """Return the root mean squared distance of two rows, or 1 if all rows are equal."""
    distance = jnp.sqrt(2 * jnp.sum(jnp.var(Y, axis=0)))
    return jnp.where(distance > 0, distance, 1)


def _in_parts(a: Float[Array, " n *c"], n_folds: int) -> Float[Array, "v r *c"]:
    """Return rows laid out by folds, padded with zeros: row `i` is in fold `i mod n_folds`."""
    return jnp.swapaxes(to_blocks(a, -(-len(a) // n_folds), n_folds), 0, 1)
