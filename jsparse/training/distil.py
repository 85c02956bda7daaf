"""Distillation: training of a small machine on the prototypes of a large machine."""

import dataclasses
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from .._arguments import as_key, whole_number
from .._numerics import as_array
from .._runtime import check_runtime
from .._types import Key, KeyLike
from ..data.frames import Frame, as_frame
from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture
from ..machines.imitation import MovedPrototypes, imitate
from ..machines.method import Method, Shape
from ..machines.scdp import SCDP
from ..model import Model
from ..predictor.schema import Schema
from ..search.strategies import Profile
from ..validation.folds import Folds
from .clock import clock, compile_clock
from .inputs import weighted_rows
from .run import run
from .settings import Settings, check_method
from .trained import Trained

# Number of parts of the rows, of which one decides whether moved prototypes are better.
HELD_OUT = 5
# Factors of the large machine's `C`, among which the held-out rows choose for moved prototypes.
FACTORS_OF_C = np.array([0.1, 1.0, 10.0, 100.0])
NO_NUMBER = (
    "n_prototypes: expected None with a method, which has its own number of prototypes, got {!r}"
)


class _AtMost(SCDP):
    """`SCDP` of at most `max_prototypes`: fewer if there are fewer candidates or training rows."""

    def resolve(self, shape: Shape) -> SCDP:
        """See `Method.resolve`."""
        capped = self.capped(shape)
        settings = {field.name: getattr(capped, field.name) for field in dataclasses.fields(SCDP)}
        return cast(SCDP, SCDP(**settings).resolve(shape))


def distil(
    trained: Trained | Model,
    X: Any,
    y: Any = None,
    *,
    key: KeyLike,
    n_prototypes: int | None = None,
    method: Method | None = None,
    C: ArrayLike | None = None,
    move_prototypes: bool = False,
    **options: Any,
) -> Trained:
    """Train a small machine on the prototypes of a large machine, with the large machine's kernel.

    The lowest errors come from tuning a kernel with few prototypes and fitting a machine with many.
    To get a small machine, a pursuit then selects few of the many prototypes, or a reduction prunes
    most of them. The kernel is not tuned again. With a pursuit, the result's `curve` has the error
    for every number of prototypes, and `at(size)` returns the machine of that size.

    Args:
        trained: the result of `train`, or a saved model.
        X: the rows, as for `train`.
        y: the targets, as for `train`.
        key: random seed of the folds and of the method.
        n_prototypes: the largest number of prototypes, at most the large machine's and the rows of
            any training split; cross-validation chooses the size on the path of `SCDP`. Only
            without a method.
        method: `SCDP`, `SpSVM`, `KSP`, `KMP` or `KBP`, which select from the large machine's
            prototypes; or `SparseReduction`, which chooses as many rows as the large machine has
            prototypes, and prunes them. None for `SCDP` with at most `n_prototypes`.
        C: values of the weight of the data-fit term; by default the `C` of the large machine, if
            the method has a `C`.
        move_prototypes: after the method, move its prototypes until a fixed-size machine on them
            has the large machine's values, at rows and at points between near rows
            (`machines.imitation`). A fifth of the rows is held out from the move. If the machine on
            the moved prototypes has the lower error there, it is the result; it has no `curve`, and
            its held-out values are of this fifth. The rows must be in memory on one device.
        **options: see `train`. The default `task` is the model's.

    All computations and the resulting model are in float64, as in float32 the kernel columns of
    some hundred prototypes are linearly dependent to rounding. Lengthscales are in units of the
    standard deviations of the rows in `X`. So the kernel changes if these rows have other standard
    deviations than the large machine's rows. The columns of a table may be in another order than
    the large machine's. The option `multiclass` decides how classes are divided into binary
    problems; the large machine's scheme has no effect.

    Raises:
        ValueError: as `train`; also for a method that cannot select or prune, a machine of several
            kernels, a table with other columns than the large machine's, or the option `kernel` or
            `search`.
    """
    check_runtime()
    out_of_fold = options.get("out_of_fold", True)
    model = trained.model if isinstance(trained, Trained) else trained
    if not isinstance(model, Model):
        raise ValueError(f"trained: expected a result of train, or a Model, got {trained!r}")
    if method is None:
        if n_prototypes is not None:
            n_prototypes = whole_number("n_prototypes", n_prototypes, 1)
        method = _AtMost(max_prototypes=n_prototypes)
    elif n_prototypes is not None:
        raise ValueError(NO_NUMBER.format(n_prototypes))
    check_method(method, "SCDP")
    if excluded := sorted({"kernel", "search"} & set(options)):
        raise ValueError(
            f"{excluded[0]}: expected none, as the kernel of the large machine is kept, got "
            f"{options[excluded[0]]!r}"
        )
    kernel = model.expansion.kernel
    if isinstance(kernel, Mixture):
        raise ValueError(
            f"trained: expected a machine of one kernel, got one of {len(kernel.kernels)}"
        )
    large_C = method.reported_C(model.about.get("C"))
    if C is None and large_C is not None:
        C = np.unique(large_C)
    task = "regression" if model.classes is None else "classification"
    frame = as_frame(X)
    if frame is not None and model.columns is not None:
        X = _in_order(frame, y, options.get("weights"), model.columns)
    kernel, Z, scaling = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64) if eqx.is_inexact_array(leaf) else leaf,
        (kernel, model.expansion.prototypes, model.expansion.scaling),
    )
    if scaling is not None:
        Z = scaling.undo_on_host(Z)
    columns = options.pop("columns", "standard" if scaling is None else scaling.columns)
    if isinstance(X, np.ndarray | jax.Array):
        X = X.astype(np.float64)

    def run_with(method: Method, C: ArrayLike | None, **changed: Any) -> Trained:
        settings = Settings(method, kernel, Profile(tune_kernel=False), columns)
        return run(X, y, key=key, settings=settings, C=C, **{"task": task, **options, **changed})

    with jax.enable_x64(True):
        small = run_with(method.for_distillation(Z), C)
        if model.about.get("metric") == small.metric:
            small = dataclasses.replace(small, large_error=model.about["cv_error"])
        if not move_prototypes:
            return small
        seconds: dict[str, float] = {}
        with compile_clock(seconds), clock(seconds, "moving"):
            inputs = np.asarray(small.model.standardised(X))
            present = weighted_rows(options.get("weights"), len(inputs)).index
            order = np.random.default_rng(HELD_OUT).permutation(present)
            parts = np.array_split(order, HELD_OUT)  # `MovedPrototypes` is validated on the first
            rows = inputs[np.concatenate(parts[1:])]
            if len(rows) == 0:
                return small
            starts, ends = _moved(small.model, model.expansion, kernel, Z, rows, as_key(key))
            grid = None if large_C is None else np.unique(np.outer(FACTORS_OF_C, large_C))
            validated = {"folds": Folds.of(parts), "out_of_fold": out_of_fold is not False}
            selected, moved = (
                run_with(MovedPrototypes(len(points), prototypes=points), grid, **validated)
                for points in (starts, ends)
            )
        best = moved if moved.cv_error < selected.cv_error else small
    seconds["total"] = small.seconds["total"] + seconds["moving"]
    seconds["compile"] += small.seconds["compile"]
    seconds = small.seconds | seconds
    return dataclasses.replace(best, seconds=seconds, large_error=small.large_error)


def _moved(
    small: Model,
    large: KernelExpansion,
    kernel: Kernel,
    Z: Float[np.ndarray, "n d"],
    X: Float[np.ndarray, "r d"],
    key: Key,
) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d"]]:
    """Return the small model's prototypes in raw units, before and after the imitation.

    All arguments are in float64 except for the large machine. `kernel` and `Z` are the large
    machine's kernel, and its prototypes in raw units. The rows `X` are in the units of the small
    model's prototypes.
    """
    scaling, start = small.expansion.scaling, small.expansion.prototypes
    assert scaling is not None
    parameters = (np.asarray(a, np.float64) for a in (large.coefficients, large.intercept))
    teacher = KernelExpansion(kernel, *jax.device_put((scaling.apply(as_array(Z)), *parameters)))
    end = imitate(teacher, start, jax.device_put(X), key).Z
    end = jnp.where(jnp.all(jnp.isfinite(end)), end, start)
    before, after = (scaling.undo_on_host(np.asarray(points)) for points in (start, end))
    return before, after


def _in_order(frame: Frame, y: Any, weights: ArrayLike | None, columns: Schema) -> Frame:
    """Return the table with its columns in the order of the large machine's `columns`.

    If the columns differ by more than their order, raise a `ValueError`. `y` and `weights` are the
    user's; rows of weight 0 do not count.
    """
    frame = frame.ordered([column.name for column in columns.columns])
    rows = None if weights is None else weighted_rows(weights, frame.n_rows).index
    schema = frame.arrays(y, columns.task, rows)[2]
    actual, expected = ([c._replace(fill=None) for c in s.columns] for s in (schema, columns))
    if actual != expected:
        raise ValueError(
            f"X: expected the columns of the large machine, {', '.join(columns.features)}, got "
            f"{', '.join(schema.features)}"
        )
    return frame
