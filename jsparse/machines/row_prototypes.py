"""Settings of methods whose prototypes are rows, chosen before anything is fitted."""

from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import as_array
from .._programs import compiled
from .._types import Key
from ..features import FeatureMap, Nystroem
from ..features import Linear as LinearFeatures
from ..kernels import Kernel, Linear
from ..prototypes import interleaved, pivoted_cholesky
from ..prototypes.choice import choose_rows
from .checks import check_choice
from .method import Points, Shape, Task, TrainingRows, replaced, setting
from .sized import Sized

Selection = Literal["renyi", "uniform", "pivoted_cholesky"]


class Prototypes(Sized):
    """The settings of methods whose prototypes are rows chosen before anything is fitted.

    `Sized` describes the settings that are not listed.

    Args:
        selection: "renyi" (De Brabanter 2010, Algorithm 1), stratified by class; "uniform"; or
            "pivoted_cholesky", for the rows of any class with the largest residual variance under
            the untuned kernel.
    """

    selection: Selection = setting("renyi")

    @property
    def nested(self) -> bool:
        """Whether, for every `s`, the first `s` prototypes must be a good choice of `s` rows."""
        return len(self.sizes) > 0

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("selection", self.selection, Selection)

    def resolve(self, shape: Shape) -> "Prototypes":
        """See `Method.resolve`: for the linear kernel one point is enough."""
        if shape.linear and self.n_prototypes == "auto":
            return replaced(self, n_prototypes=1)
        if shape.linear and self.sizes:
            raise ValueError(
                "n_prototypes: expected one number for the linear kernel, whose features are the "
                f"inputs, got {self.sizes}"
            )
        return cast(Prototypes, super().resolve(shape))

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return rows chosen by `selection`; for the linear kernel, the first rows."""
        m = self.largest
        if isinstance(kernel, Linear):  # the features are the inputs: points have no effect
            return rows.points_at(np.arange(m))
        if self.selection == "pivoted_cholesky":  # the order of the pivots is nested already
            weights = as_array(rows.weights, rows.X.dtype)
            pivots = pivoted_cholesky(key, kernel, rows.kernel_inputs, m, weights).indices
            return rows.points_at(np.asarray(pivots))
        return self.chosen_rows(key, rows)

    def chosen_rows(self, key: Key, rows: TrainingRows) -> Points:
        """Return rows chosen by entropy or at random.

        If `nested`, the first `s` of these rows are a good choice of `s` rows, for every `s`.
        """
        m, labels = self.largest, rows.labels
        numbers, status = choose_rows(key, self.selection, rows.X, m, labels, rows.weights, rows.n)
        if self.nested:
            label = None if labels is None else labels[numbers]
            numbers = numbers[interleaved(jax.random.fold_in(key, 1), m, label)]
        return rows.points_at(numbers, status)


@compiled
def feature_map(kernel: Kernel, prototypes: Float[Array, "m d"]) -> FeatureMap:
    """Return the Nystroem feature map of the prototypes; for the linear kernel, the identity."""
    if isinstance(kernel, Linear):
        return LinearFeatures(jnp.zeros(prototypes.shape[1], prototypes.dtype))
    return Nystroem(kernel, prototypes)
