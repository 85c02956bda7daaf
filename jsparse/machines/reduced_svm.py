"""Reduced support vector machines: fit on given prototypes (Lee and Mangasarian 2001)."""

from typing import ClassVar, NamedTuple

from jaxtyping import Array, Float, Int

from .._repr import short_repr
from .._types import CLike
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
    objective: Float[Array, ""]  # minimum of the objective, summed over targets
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
    C: CLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    *,
    loss: Hinge = "hinge",
    penalty: Penalty = "norm",
) -> ReducedFit:
    """Fit a support vector machine on given prototypes (Wu et al. 2006, problem (24)-(27)).

    The prototypes have shape `m d`. `penalty` (static) is described by `ReducedSVM`. Other
    arguments and errors are as for `slmc.fit`.

    Returns:
        `ReducedFit`, with the status of `interior_point.solve`.

    Pure; works under `jit` and `vmap`. The objective is differentiable once, in both modes, in the
    kernel, the prototypes, `C`, `X` and the weights of present rows, where the solution and its
    multipliers are unique (Wu 2006, Lemma 1). No derivative passes through the coefficients and the
    intercept of the machine.
    """
    method = ReducedSVM(loss=loss, penalty=penalty)
    return fit_arrays(method, "prototypes", kernel, prototypes, C, X, y, weights)
