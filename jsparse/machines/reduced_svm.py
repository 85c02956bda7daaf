"""Reduced support vector machines: fit on given prototypes (Lee and Mangasarian 2001)."""

from typing import ClassVar, NamedTuple

from jaxtyping import Array, Float, Int

from .._repr import short_repr
from .._types import ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..solvers.interior_point import Hinge
from . import direct
from .checks import check_choice
from .few_prototypes import FewPrototypes, fit_arrays
from .inner_problems import LargeMargin, Penalty
from .method import Task, setting


class ReducedFit(NamedTuple):
    """A machine fitted on given prototypes."""

    expansion: KernelExpansion
    objective: Float[Array, ""]  # minimum of the objective, added up over targets
    status: Int[Array, ""]

    __repr__ = short_repr


class ReducedSVM(FewPrototypes):
    """The support vector machine in the span of given prototypes (Wu et al. 2006, MRSVM).

    `FewPrototypes` describes the settings that are not listed.

    Args:
        loss: "hinge" or "squared_hinge".
        penalty: "norm" for `|w|^2`, as in Section 4.2; or "coefficients" for the sum of squared
            coefficients, the RSVM of Lee and Mangasarian (2001).
    """

    loss: Hinge = setting("hinge")
    penalty: Penalty = setting("norm")

    name: ClassVar[str] = "reduced-svm"
    title: ClassVar[str] = "reduced SVM"
    max_rows: ClassVar[int | None] = 2000

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("loss", self.loss, Hinge)
        check_choice("penalty", self.penalty, Penalty)

    def fit_targets(
        self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array
    ) -> ReducedFit:
        """See `FewPrototypes.fit_targets`."""
        problem, Z = LargeMargin(kernel, *data, loss=self.loss, penalty=self.penalty), starts[0]
        objective, solved = direct.marginal(problem)(Z)
        return ReducedFit(problem.expansion(Z, solved), objective, solved.status)


def fit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: ScalarLike | Float[Array, " l"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    *,
    loss: Hinge = "hinge",
    penalty: Penalty = "norm",
) -> ReducedFit:
    """Fit a support vector machine of given prototypes (Wu et al. 2006, problem (24)-(27)).

    Args:
        kernel: kernel of two points.
        prototypes: shape `m d`.
        C: weight of the data-fit term, positive; or one for each target, shape `l`.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets -1 and +1, shape `n`; or several that share the prototypes, shape `n l`.
        weights: row weights, shape `n`, or `n l` for weights of each target; a row of weight 0 is
            absent.
        loss: "hinge" or "squared_hinge" (static).
        penalty: "norm" for `|w|^2`, or "coefficients" for the sum of squared coefficients (static).

    Returns:
        `ReducedFit`, with the status of `interior_point.solve`.

    Pure; works under `jit` and `vmap`. The objective is differentiable once, in both modes, in the
    kernel, the prototypes, `C`, `X` and the weights of present rows, where the solution and its
    multipliers are unique (Wu 2006, Lemma 1). No derivative passes through the coefficients and the
    intercept of the machine.

    Raises:
        ValueError: for another loss or penalty, shapes that do not fit, or (outside `jit`) NaN,
            infinity, C not positive, negative weights, or targets that are neither -1 nor +1.
    """
    method = ReducedSVM(loss=loss, penalty=penalty)
    return fit_arrays(method, "prototypes", kernel, prototypes, C, X, y, weights)
