"""Intervals and sets from the errors that a machine makes on rows it has not seen.

Split conformal prediction (Papadopoulos et al. 2002), cross-conformal intervals and sets, CV+, and
jackknife+ (Barber et al. 2021; Romano et al. 2020), in NumPy: centres of intervals and scores of
classes come in, intervals and sets go out.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from ._arguments import real
from ._repr import short_repr
from .expansion import KernelExpansion
from .serialization import check_keys

Guarantee = Literal["held out", "folds", "none"]
_ENTRIES = 2**22  # compared at a time: rows asked about times rows whose errors are known


class Unseen(eqx.Module):
    """The errors of rows by machines that have not seen them.

    Attributes:
        errors: of numbers the distances between target and value, shape `n` or `n c`; of classes
            how far the row's own class is behind the best of the others, see `behind`, shape `n`.
        fold: which of `machines` gave the error of a row, shape `n`; None without them.
        machines: one for each fold, as an expansion with a column for each fold and each output of
            the model, fold by fold; its inputs are scaled as the model's are.
        held_out: whether the model itself has not seen the rows (static).
    """

    errors: Float[Array, "n *c"] | Float[np.ndarray, "n *c"]
    fold: Int[Array, " n"] | Int[np.ndarray, " n"] | None = None
    machines: KernelExpansion | None = None
    held_out: bool = eqx.field(static=True, default=False)

    __repr__ = short_repr

    @property
    def guarantee(self) -> Guarantee:
        """What intervals and sets rest on."""
        if self.held_out:
            return "held out"
        return "none" if self.machines is None else "folds"


def behind(scores: Float[np.ndarray, "n *k"]) -> Float[np.ndarray, "n k"]:
    """How far each class is behind the best of the others, negative for the class decided for.

    Args:
        scores: shape `n` for two classes, positive for the second, else `n k`.
    """
    if scores.ndim == 1:
        return np.stack([scores, -scores], axis=1)
    first = np.argmax(scores, axis=1)[:, None]
    best = np.take_along_axis(scores, first, axis=1)
    rest = scores.copy()
    np.put_along_axis(rest, first, -np.inf, axis=1)
    others = np.where(np.arange(scores.shape[1]) == first, rest.max(axis=1, keepdims=True), best)
    return others - scores


def unseen_numbers(
    values: Float[np.ndarray, "n *c"],
    targets: Shaped[np.ndarray, "n *c"],
    *,
    held_out: bool = False,
) -> Unseen:
    """How far targets are from the values of machines that have not seen them."""
    apart = np.abs(np.asarray(targets, float) - np.asarray(values, float))
    return Unseen(apart.astype(values.dtype), held_out=held_out)


def unseen_classes(
    scores: Float[np.ndarray, "n *k"], numbers: Int[np.ndarray, " n"], *, held_out: bool = False
) -> Unseen:
    """How far classes are behind by the scores of machines that have not seen them."""
    apart = behind(scores)
    return Unseen(np.take_along_axis(apart, numbers[:, None], axis=1)[:, 0], held_out=held_out)


def rank_of(coverage: Any, n: int) -> int:
    """`ceil(coverage (n + 1))`: which of `n` sorted errors is taken.

    Raises:
        ValueError: for a coverage that is not between 0 and 1, or so large that errors of more rows
            were needed.
    """
    coverage = real("coverage", coverage, 0.0, above=True)
    rank = math.ceil(coverage * (n + 1) * (1 - 4 * np.finfo(float).eps))  # 0.9 times 10 is 9
    if not coverage < 1 or rank > n:
        raise ValueError(
            f"coverage: expected above 0 and at most {n / (n + 1):.6g}, as errors of {n} rows are "
            f"known, got {coverage:g}"
        )
    return rank


def intervals(
    centres: Float[np.ndarray, "t v *c"],
    errors: Float[np.ndarray, "n *c"],
    fold: Int[np.ndarray, " n"] | None,
    coverage: float,
) -> Float[np.ndarray, "t *c 2"]:
    """Lower and upper ends.

    The `ceil(coverage (n + 1))`-th smallest of centre plus error is the upper end, by Barber et al.
    2021, eq. 6 and Section 3, and the lower one its mirror image.

    Args:
        centres: values of the machines, of the one that all errors are of, or of each fold's.
        errors: see `Unseen`.
        fold: see `Unseen`; None for one machine.
        coverage: share of new rows that are to be inside.
    """
    n = len(errors)
    rank = rank_of(coverage, n)
    if fold is None:
        error = np.partition(errors, rank - 1, axis=0)[rank - 1]
        centre = centres[:, 0]
        return np.stack([centre - error, centre + error], axis=-1)

    def ends(values: np.ndarray) -> np.ndarray:
        middle = values[:, fold]
        low = np.partition(middle - errors, n - rank, axis=1)[:, n - rank]
        return np.stack([low, np.partition(middle + errors, rank - 1, axis=1)[:, rank - 1]], -1)

    return _in_blocks(ends, centres, errors.size)


def sets(
    apart: Float[np.ndarray, "t v k"],
    errors: Float[np.ndarray, " n"],
    fold: Int[np.ndarray, " n"] | None,
    coverage: float,
) -> Bool[np.ndarray, "t k"]:
    """Which classes are in the set: those not too far behind (Romano et al. 2020, eq. 9).

    Args:
        apart: `behind` of the scores of the machines.
        errors: see `Unseen`.
        fold: see `Unseen`.
        coverage: share of new rows whose class is to be in the set.
    """
    rank = rank_of(coverage, len(errors))
    if fold is None:
        return apart[:, 0] <= np.partition(errors, rank - 1)[rank - 1]

    def inside(values: np.ndarray) -> np.ndarray:
        return np.sum(errors[None, :, None] < values[:, fold], axis=1) < rank

    return _in_blocks(inside, apart, len(errors) * apart.shape[2])


def _in_blocks(
    function: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, each: int
) -> np.ndarray:
    """`function` of all rows, of so many entries each, some at a time."""

    def blocks() -> Iterator[np.ndarray]:
        step = max(1, _ENTRIES // each)
        for start in range(0, max(len(rows), 1), step):
            yield function(rows[start : start + step])

    return np.concatenate(list(blocks()))


def unseen_arrays(unseen: Unseen | None) -> dict[str, np.ndarray]:
    """The arrays of errors on unseen rows, by names that say whose rows they were."""
    if unseen is None:
        return {}
    arrays = {"errors": unseen.errors}
    if unseen.machines is not None and unseen.fold is not None:
        arrays["fold"] = unseen.fold
        for name in ("prototypes", "coefficients", "intercept"):
            arrays[name] = getattr(unseen.machines, name)
    prefix = "held_out" if unseen.held_out else "unseen"
    return {f"{prefix}.{name}": np.asarray(array) for name, array in arrays.items()}


def unseen_of(
    expansion: KernelExpansion, arrays: Mapping[str, Any], *, held_out: bool, classes: bool
) -> Unseen:
    """Errors from the arrays of a file, for a model of this expansion.

    Raises:
        ValueError: if they do not fit it or each other.
    """
    alone = held_out or set(arrays) == {"errors"}
    machines = () if alone else ("fold", "prototypes", "coefficients", "intercept")
    check_keys("unseen", arrays, {"errors", *machines})
    dtype, own = expansion.prototypes.dtype, expansion.intercept
    for name, array in arrays.items():
        wanted = np.int32 if name == "fold" else dtype
        if array.dtype != wanted:
            raise ValueError(f"unseen.{name}: expected {np.dtype(wanted)}, got {array.dtype}")
    errors, targets = np.asarray(arrays["errors"]), () if classes else own.shape
    if errors.ndim != 1 + len(targets) or errors.shape[1:] != targets or len(errors) == 0:
        raise ValueError(f"unseen.errors: expected shape n {targets}, got {errors.shape}")
    if not classes and errors.min() < 0:
        raise ValueError("unseen.errors: expected distances of at least 0")
    if alone:
        return Unseen(errors, held_out=held_out)
    fold, Z, coefficients, intercept = (np.asarray(arrays[name]) for name in machines)
    v = intercept.size // own.size
    columns = (v * own.size,)
    shapes = Z.shape[1:], coefficients.shape, intercept.shape
    if shapes != (expansion.prototypes.shape[1:], (len(Z), *columns), columns) or v == 0:
        raise ValueError(f"unseen: expected machines with {own.size} outputs each, got {shapes}")
    if fold.shape != errors.shape[:1] or fold.min() < 0 or fold.max() >= v:
        raise ValueError(f"unseen.fold: expected {len(errors)} numbers of {v} machines")
    Z, coefficients, intercept = map(jnp.asarray, (Z, coefficients, intercept))
    return Unseen(errors, fold, KernelExpansion(expansion.kernel, Z, coefficients, intercept))
