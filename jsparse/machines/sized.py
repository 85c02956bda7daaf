"""The number of prototypes: stated, chosen among several, or doubled while the error falls."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

from .._arguments import increasing, real, whole_number
from .._blocks import rounded_down
from .method import Method, Shape, Task, at_most, option, replaced, setting
from .stages import Stages, size_stages


class Sized(Method):
    """The settings of methods whose number of prototypes the user states.

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several increasing
            numbers, cross-validation chooses one (De Brabanter 2010, Section 5). "auto" doubles the
            number while the error falls and the time limit of the search permits. None takes a
            third of the rows, at least one for each class, and at most 300, or 20 where a descent
            moves the prototypes.
        size_tolerance: among several numbers, choose the smallest whose error is within this many
            standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls by
            less than a tenth of a standard error, or when the next number would exceed the time
            limit of the search.
    """

    range_of_auto: ClassVar[tuple[int, int]] = (30, 2000)  # smallest and largest number of "auto"

    n_prototypes: int | Sequence[int] | Literal["auto"] | None = option(
        None,
        "number of prototypes; or several numbers, from which cross-validation chooses one; or "
        "'auto', to try more while the error falls; default: a third of the rows, at most 300, or "
        "20 where a descent moves the prototypes",
        kind="sizes",
        metavar="M[,M...]",
    )
    size_tolerance: float = option(  # type: ignore[assignment]
        1.0,
        "choose the smallest size whose error is within T standard errors of the smallest error",
        kind="not negative",
        metavar="T",
        kw_only=True,
    )
    stop_when_flat: bool = setting(False, kw_only=True)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of prototypes to choose from; empty if there is only one number."""
        return self.n_prototypes if isinstance(self.n_prototypes, tuple) else ()

    @property
    def largest(self) -> int:
        """The number of prototypes, or the largest of several; only valid if resolved."""
        return self.sizes[-1] if self.sizes else int(self.n_prototypes)  # type: ignore[call-overload]

    @property
    def n_features(self) -> int | Literal["all"] | None:
        """See `Method.n_features`."""
        return None if self.n_prototypes in (None, "auto") else self.largest

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        real("size_tolerance", self.size_tolerance, 0.0)
        if self.n_prototypes not in (None, "auto"):
            self._checked(2**31 - 1, "the largest number")

    def default_number(self, shape: Shape) -> int:
        """Return the number of prototypes that None stands for, see the class."""
        third = -(-shape.n // 3)
        return min(shape.n, max(shape.classes or 1, min(self.usual_prototypes, third)))

    def resolve(self, shape: Shape) -> "Sized":
        """See `Method.resolve`."""
        if self.n_prototypes is None:
            method = replaced(self, n_prototypes=self.default_number(shape))
        elif self.n_prototypes == "auto":
            sizes = doubled(shape.training, shape.classes or 1, *self.range_of_auto)
            within_memory = tuple(m for m in sizes if shape.room is None or m <= shape.room)
            method = replaced(self, n_prototypes=within_memory or sizes, stop_when_flat=True)
        else:
            method = self
        return replaced(method, n_prototypes=method._checked(shape.n, "the number of rows"))

    def _checked(self, most: int, what: str) -> Any:
        """Return `n_prototypes`; raise a `ValueError` if it exceeds `most`, described by `what`."""
        if isinstance(self.n_prototypes, tuple):
            return increasing("n_prototypes", self.n_prototypes, most, what)
        return whole_number("n_prototypes", self.n_prototypes, 1, most, what)

    def capped(self, shape: Shape) -> "Sized":
        """See `Method.capped`."""
        return replaced(self, n_prototypes=at_most(self.n_prototypes, shape.n))

    def limited(self, n_prototypes: int) -> "Sized":
        """See `Method.limited`."""
        return replaced(self, n_prototypes=at_most(self.n_prototypes, n_prototypes))

    def at_size(self, m: int) -> tuple["Sized", slice]:
        """See `Method.at_size`."""
        method, place = super().at_size(m)
        return cast(Sized, replaced(method, n_prototypes=m, stop_when_flat=False)), place

    def stages(self, problem: Any, search: Any) -> Stages:
        """See `Method.stages`; with several sizes, `size_stages` yields the stages of each size."""
        if not self.sizes:
            return super().stages(problem, search)
        sizes = self.sizes, self.size_tolerance, self.stop_when_flat
        return size_stages(*sizes, problem, search)


def doubled(rows: int, classes: int, fewest: int, most: int) -> tuple[int, ...]:
    """Return the numbers of prototypes that "auto" tries, each about twice the previous one.

    The last number is at most `most` and `rows`. Halving it gives the others, as long as they are
    at least `fewest` and `classes`.
    """
    m = rounded_down(min(most, rows))
    sizes = [m]
    while m // 2 >= max(fewest, classes):
        m //= 2
        sizes.append(m)
    return tuple(sizes[::-1])
