"""Figures of trained models, with matplotlib."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ._arguments import whole_number
from .model import Model
from .training.trained import Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_METRICS = {
    "misclassification": "misclassification",
    "mse": "mean squared error",
    "mae": "mean absolute error",
}


def error_curve(
    trained: Trained,
    ax: "Axes | None" = None,
    *,
    test_errors: Float[np.ndarray, " k"] | None = None,
    others: Mapping[str, tuple[float, float]] | None = None,
) -> "Axes":
    """The cross-validated error against the number of prototypes, its spread, and the size chosen.

    Args:
        trained: from `train`, of a path or of several numbers of prototypes.
        ax: axes to draw on; by default new ones.
        test_errors: of new rows in the same metric, of every size.
        others: machines to compare with, name to (number of prototypes, error).

    Raises:
        ValueError: if there are no errors of several sizes.
        ImportError: without matplotlib.
    """
    curve = trained.curve
    if curve is None:
        raise ValueError(
            "trained: expected errors of several sizes: a path such as SCDP's, or "
            "FixedSize(n_prototypes=[..]) with several numbers"
        )
    axes: Any = _axes() if ax is None else ax
    sizes, errors = curve.sizes, curve.errors
    low, high = (errors + sign * curve.standard_errors for sign in (-1, 1))
    axes.fill_between(sizes, low, high, alpha=0.25, linewidth=0, label="one standard error")
    axes.plot(sizes, errors, label="cross-validation")
    if test_errors is not None:
        axes.plot(sizes, test_errors, linestyle="--", label="new rows")
    axes.plot(
        [curve.size],
        [errors[curve.chosen]],
        marker="o",
        linestyle="none",
        label=f"chosen: {curve.size}",
    )
    for name, (size, error) in (others or {}).items():
        axes.plot([size], [error], marker="x", linestyle="none", label=f"{name}: {size:g}")
    # One prototype alone is often far worse than all that one wants to see.
    rest = errors[min(4, len(sizes) - 1) :]
    axes.set_ylim(top=min(high.max(), rest.max() + (rest.max() - low.min())))
    axes.set_xscale("log")
    axes.set_xlabel("prototypes")
    axes.set_ylabel(_METRICS[trained.metric])
    axes.legend()
    return axes


def relevance(
    trained: Trained | Model,
    ax: "Axes | None" = None,
    *,
    names: Sequence[Any] | None = None,
    most: int = 20,
) -> "Axes":
    """How much each column has to say, the most relevant above; see `Model.relevance`.

    Args:
        trained: of a kernel with one lengthscale for each column.
        ax: axes to draw on; by default new ones.
        names: of the inputs, for a model that knows none.
        most: columns shown.

    Raises:
        ValueError: for a kernel of one lengthscale for all columns, or of none.
        ImportError: without matplotlib.
    """
    found = trained.relevance(names)
    chosen = sorted(found, key=lambda name: -found[name])[: whole_number("most", most, 1)]
    axes: Any = _axes() if ax is None else ax
    axes.barh(chosen, [found[name] for name in chosen])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    left_out = len(found) - len(chosen)
    axes.set_xlabel("relevance" + (f" ({left_out} columns of less left out)" if left_out else ""))
    return axes


def _axes() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'jsparse[cli]'") from error
    return Figure(figsize=(6, 4), layout="constrained").subplots()
