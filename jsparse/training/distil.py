"""Distillation: training of a small machine on the prototypes of a large machine."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import ArrayLike

from .._runtime import check_runtime
from .._types import KeyLike
from ..data.frames import Frame, as_frame
from ..data.schema import Schema
from ..kernels import Mixture
from ..machines.method import Method
from ..machines.scdp import SCDP
from ..model import Model
from ..search.strategies import Profile
from .inputs import weighted_rows
from .run import run
from .settings import Settings
from .trained import Trained


def distil(
    trained: Trained | Model,
    X: Any,
    y: Any = None,
    *,
    key: KeyLike,
    method: Method = SCDP(),
    C: ArrayLike | None = None,
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
        method: `SCDP`, `SpSVM`, `KSP`, `KMP` or `KBP`, which select from the large machine's
            prototypes; or `SparseReduction`, which chooses as many rows as the large machine has
            prototypes, and prunes them.
        C: values of the weight of the data-fit term; by default the `C` of the large machine, if
            the method has a `C`.
        **options: see `train`. The default `task` is the model's.

    All computations and the resulting model are in float64, whatever the dtype of the rows and of
    the large machine. In float32 the kernel columns of some hundred prototypes are linearly
    dependent to rounding. Lengthscales are in units of the standard deviations of the rows in `X`.
    So the kernel changes if these rows have other standard deviations than the large machine's
    rows. The columns of a table may be in another order than the large machine's. The option
    `multiclass` decides how classes are divided into binary problems; the large machine's scheme
    has no effect.

    Raises:
        ValueError: as `train`; also for a method that cannot select or prune, a machine of several
            kernels, a table with other columns than the large machine's, or the option `kernel` or
            `search`.
    """
    check_runtime()
    model = trained.model if isinstance(trained, Trained) else trained
    if not isinstance(model, Model):
        raise ValueError(f"trained: expected a result of train, or a Model, got {trained!r}")
    if not isinstance(method, Method):
        raise ValueError(f"method: expected a method, such as SCDP(..), got {method!r}")
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
    with jax.enable_x64(True):
        return run(
            X.astype(np.float64) if isinstance(X, np.ndarray | jax.Array) else X,
            y,
            key=key,
            settings=Settings(
                method.for_distillation(Z), kernel, Profile(tune_kernel=False), columns
            ),
            C=C,
            **{"task": task, **options},
        )


def _in_order(frame: Frame, y: Any, weights: ArrayLike | None, columns: Schema) -> Frame:
    """Return the table with its columns in the order of `columns`.

    Raises:
        ValueError: if the columns differ by more than their order.
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
