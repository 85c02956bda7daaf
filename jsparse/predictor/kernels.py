"""Kernels as small trees of named nodes that hold NumPy arrays, and their values.

A node has the class name and the fields of the kernel in `jsparse.kernels` that it stands for. The
formulas are repeated here, in a line each, because the code in `jsparse.kernels` needs JAX. The
tests compare both.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

Values = Callable[[np.ndarray], np.ndarray]  # inputs of shape `n d` to kernel values `n m`


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """A positive semi-definite function of two points."""

    rules: ClassVar[dict[str, str]] = {}  # the rule of `_check_number` for each array

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of rows `X (n, d)` that gives `k(x_i, z_j)`, shape `n m`.

        Whatever depends on `Z (m, d)` alone is computed here, once. Numbers are in the dtype of
        `Z`.
        """
        raise NotImplementedError

    def check(self, d: int) -> None:
        """Raise ValueError unless the fields are valid for points of `d` dimensions."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in self.rules:
                _check_number(field.name, value, self.rules[field.name], d)
            elif isinstance(value, Kernel):
                value.check(d)


def _check_number(name: str, value: np.ndarray, rule: str, d: int) -> None:
    """Raise ValueError unless an array of a kernel has the shape and the sign that a rule states.

    The rules "positive" and "not negative" are for a scalar. "positive, by column" is for a scalar
    or `d` numbers.
    """
    shapes = [(), (d,)] if rule == "positive, by column" else [()]
    if value.shape not in shapes:
        wanted = "a scalar or one value for each column" if len(shapes) > 1 else "a scalar"
        raise ValueError(f"{name}: expected {wanted} ({d} columns), got shape {value.shape}")
    positive = rule.startswith("positive")
    if not np.all(np.isfinite(value) & ((value > 0) if positive else (value >= 0))):
        bounds = "positive and finite" if positive else "finite and at least 0"
        raise ValueError(f"{name}: expected {bounds}, got {value}")


@dataclasses.dataclass(frozen=True, eq=False)
class Stationary(Kernel):
    """`profile(|(x - z) / lengthscale|^2)`; the lengthscale has shape `()` or `d`."""

    lengthscale: np.ndarray

    rules: ClassVar = {"lengthscale": "positive, by column"}
    cusp: ClassVar[bool] = False  # whether the profile behaves like sqrt(s) at 0

    def _profile(self, s: np.ndarray) -> np.ndarray:
        """Evaluate the kernel as a function of the squared scaled distance, elementwise."""
        raise NotImplementedError

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives `k(x_i, z_j)`, by one matrix product."""
        squares = squared_distances(Z, self.lengthscale, snap=self.cusp)
        return lambda X: self._profile(squares(X))


@dataclasses.dataclass(frozen=True, eq=False)
class RBF(Stationary):
    """`exp(-s / 2)` of the squared scaled distance `s`."""

    def _profile(self, s: np.ndarray) -> np.ndarray:
        return np.exp(np.multiply(s, -0.5, out=s), out=s)


@dataclasses.dataclass(frozen=True, eq=False)
class Laplacian(Stationary):
    """`exp(-sqrt(s))` of the squared scaled distance `s`."""

    cusp: ClassVar[bool] = True

    def _profile(self, s: np.ndarray) -> np.ndarray:
        return np.exp(-np.sqrt(s))


@dataclasses.dataclass(frozen=True, eq=False)
class Matern32(Stationary):
    """`(1 + r) exp(-r)` with `r = sqrt(3 s)` of the squared scaled distance `s`."""

    def _profile(self, s: np.ndarray) -> np.ndarray:
        r = np.sqrt(3 * s)
        return (1 + r) * np.exp(-r)


@dataclasses.dataclass(frozen=True, eq=False)
class Matern52(Stationary):
    """`(1 + r + r^2 / 3) exp(-r)` with `r = sqrt(5 s)` of the squared scaled distance `s`."""

    def _profile(self, s: np.ndarray) -> np.ndarray:
        t = 5 * s
        r = np.sqrt(t)
        return (1 + r + t / 3) * np.exp(-r)


@dataclasses.dataclass(frozen=True, eq=False)
class RationalQuadratic(Stationary):
    """`(1 + s / (2 alpha))^(-alpha)` of the squared scaled distance `s`."""

    alpha: np.ndarray

    rules: ClassVar = {"lengthscale": "positive, by column", "alpha": "positive"}

    def _profile(self, s: np.ndarray) -> np.ndarray:
        alpha = self.alpha.astype(s.dtype)
        return np.exp(-alpha * np.log1p(s / (2 * alpha)))


@dataclasses.dataclass(frozen=True, eq=False)
class Linear(Kernel):
    """`x'z + offset`."""

    offset: np.ndarray

    rules: ClassVar = {"offset": "not negative"}

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives `x_i'z_j + offset`."""
        offset = self.offset.astype(Z.dtype)
        return lambda X: X @ Z.T + offset


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomial(Kernel):
    """`(scale x'z + offset)^degree`."""

    degree: int
    scale: np.ndarray
    offset: np.ndarray

    rules: ClassVar = {"scale": "positive", "offset": "not negative"}

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives `(scale x_i'z_j + offset)^degree`."""
        scale, offset = self.scale.astype(Z.dtype), self.offset.astype(Z.dtype)
        return lambda X: power(scale * (X @ Z.T) + offset, self.degree)

    def check(self, d: int) -> None:
        """Raise ValueError unless degree, scale and offset are valid."""
        if type(self.degree) is not int or self.degree < 1:
            raise ValueError(f"degree: expected a whole number of at least 1, got {self.degree!r}")
        super().check(d)


def power(base: Any, degree: int) -> Any:
    """Return `base` to the power `degree`; from degree 3 on, 20 times faster than NumPy's power.

    `base` is an array, or any other value that can be multiplied. The degree is at least 1.
    """
    result = None
    while degree:
        if degree & 1:
            result = base if result is None else result * base
        degree >>= 1
        base = base * base if degree else base
    assert result is not None
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Sum(Kernel):
    """`left(x, z) + right(x, z)`."""

    left: Kernel
    right: Kernel

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives `left(x_i, z_j) + right(x_i, z_j)`."""
        left, right = self.left.at(Z), self.right.at(Z)
        return lambda X: left(X) + right(X)


@dataclasses.dataclass(frozen=True, eq=False)
class Product(Kernel):
    """`left(x, z) right(x, z)`."""

    left: Kernel
    right: Kernel

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives `left(x_i, z_j) right(x_i, z_j)`."""
        left, right = self.left.at(Z), self.right.at(Z)
        return lambda X: left(X) * right(X)


@dataclasses.dataclass(frozen=True, eq=False)
class Scaled(Kernel):
    """`variance kernel(x, z)`."""

    kernel: Kernel
    variance: np.ndarray

    rules: ClassVar = {"variance": "positive"}

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives `variance kernel(x_i, z_j)`."""
        values, variance = self.kernel.at(Z), self.variance.astype(Z.dtype)
        return lambda X: variance * values(X)


@dataclasses.dataclass(frozen=True, eq=False)
class Mixed(Kernel):
    """`profile(sum_j (x_j - z_j)^2 / l_j^2 + sum_c 2 [x_c != z_c] / l_c^2)`.

    The second sum is over `columns`, the increasing indices of the columns that hold numbers of
    categories; the first is over the other columns. `kernel` gives profile and lengthscales.
    """

    kernel: Kernel
    columns: tuple[int, ...]

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives the profile of both sums together."""
        kernel = self.kernel
        assert isinstance(kernel, Stationary)
        codes = np.array(self.columns)
        numbers = np.setdiff1d(np.arange(Z.shape[1]), codes)
        scale = np.broadcast_to(kernel.lengthscale.astype(Z.dtype), Z.shape[1:])
        squares = squared_distances(Z[:, numbers], scale[numbers], snap=kernel.cusp)
        rates, Z_codes = 2 / np.square(scale[codes]), Z[:, codes]

        def values(X: np.ndarray) -> np.ndarray:
            s, X_codes = squares(X[:, numbers]), X[:, codes]
            for c, rate in enumerate(rates):
                s += np.where(X_codes[:, c, None] == Z_codes[None, :, c], 0, rate)
            return kernel._profile(s)

        return values

    def check(self, d: int) -> None:
        """Raise ValueError unless the kernel is stationary and the columns are among `d`."""
        if not isinstance(self.kernel, Stationary):
            what = type(self.kernel).__name__
            raise ValueError(f"kernel: expected a kernel of the distance, got {what}")
        columns = self.columns
        all_int = all(type(column) is int for column in columns)
        if not all_int or not columns or list(columns) != sorted(set(columns) & set(range(d))):
            raise ValueError(f"columns: expected increasing numbers below {d}, got {columns!r}")
        self.kernel.check(d)


@dataclasses.dataclass(frozen=True, eq=False)
class Projected(Kernel):
    """`kernel(P x, P z)`; the matrix `P` has shape `r d`."""

    kernel: Kernel
    matrix: np.ndarray

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives `kernel(matrix x_i, matrix z_j)`."""
        to_mapped = self.matrix.astype(Z.dtype).T
        # A shift changes no distance, and centred points lose fewer digits in the product.
        centre = np.zeros_like(Z[0])
        if isinstance(self.kernel, Stationary):
            centre = Z.mean(axis=0)
        values = self.kernel.at((Z - centre) @ to_mapped)
        return lambda X: values((X - centre) @ to_mapped)

    def check(self, d: int) -> None:
        """Raise ValueError unless the matrix has `d` columns and the kernel fits its rows."""
        if self.matrix.ndim != 2 or self.matrix.shape[1] != d or len(self.matrix) < 1:
            raise ValueError(f"matrix: expected shape (r, {d}), got {self.matrix.shape}")
        if not np.isfinite(self.matrix).all():
            raise ValueError("matrix: expected finite numbers, got NaN or infinity")
        self.kernel.check(len(self.matrix))


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture(Kernel):
    """`k_j(x, z_j)`: prototype j has the kernel `kernels[which[j]]`."""

    kernels: tuple[Kernel, ...]
    which: np.ndarray

    def at(self, Z: np.ndarray) -> Values:
        """Return the function of `X (n, d)` that gives each prototype's kernel at the prototype."""
        groups = [np.flatnonzero(self.which == number) for number in range(len(self.kernels))]
        parts = [
            (prototypes, kernel.at(Z[prototypes]))
            for prototypes, kernel in zip(groups, self.kernels, strict=True)
            if len(prototypes)
        ]

        def values(X: np.ndarray) -> np.ndarray:
            out = np.empty((len(X), len(Z)), X.dtype)
            for prototypes, part in parts:
                out[:, prototypes] = part(X)
            return out

        return values

    def check(self, d: int) -> None:
        """Raise ValueError unless `which` indexes `kernels`, and no kernel is a mixture."""
        if not self.kernels or any(isinstance(kernel, Mixture) for kernel in self.kernels):
            raise ValueError("kernels: expected at least one, and no Mixture among them")
        if self.which.ndim != 1 or not np.isin(self.which, range(len(self.kernels))).all():
            raise ValueError(
                f"which: expected numbers of {len(self.kernels)} kernels, got {self.which}"
            )
        for kernel in self.kernels:
            kernel.check(d)


KERNELS: dict[str, type[Kernel]] = {
    kind.__name__: kind
    for kind in (
        RBF, Laplacian, Matern32, Matern52, RationalQuadratic, Linear, Polynomial, Sum, Product,
        Scaled, Mixed, Projected, Mixture,
    )
}  # fmt: skip


def squared_distances(Z: np.ndarray, lengthscale: np.ndarray, *, snap: bool) -> Values:
    """Return the function of rows that gives `|(x_i - z_j) / lengthscale|^2`, at least 0.

    The distances are `|u|^2 + |v|^2 - 2 u.v` of points less the mean of `Z`, as in
    `jsparse.kernels`, so their rounding errors are of the same size. With `snap`, distances within
    the error of the formula become 0: a square root turns an error of eps into sqrt(eps).
    """
    lengthscale = lengthscale.astype(Z.dtype)
    centre = Z.mean(axis=0)
    V = (Z - centre) / lengthscale
    norms, to_products = np.einsum("ij,ij->i", V, V), np.ascontiguousarray(-2 * V.T)
    error = (3 + float(np.sqrt(Z.shape[1]))) * float(np.finfo(Z.dtype).eps)

    def squares(X: np.ndarray) -> np.ndarray:
        U = (X - centre) / lengthscale
        products = U @ to_products
        both = np.einsum("ij,ij->i", U, U)[:, None] + norms
        if not snap:
            both += products
            return np.maximum(both, 0, out=both)  # NaN stays NaN
        s = both + products
        s[s <= error * both] = 0
        return s

    return squares
