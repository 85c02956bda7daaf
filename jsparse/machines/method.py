"""What a learner is, once data, folds, search and devices are taken away."""

import abc
import dataclasses
import operator
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from .._arguments import real
from .._numerics import as_array, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED
from .._types import CLike, Key, PointTable
from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture
from ..multiclass import Code
from ..scaling import Standardization
from .family import Family
from .fold_machines import join_machines
from .held_out import HeldOut, OnFold, Sums, each_fold_and_C
from .rows import FoldLayout, Rows
from .stages import Chosen, Outcome, Stage

Task = Literal["classification", "regression"]
Metric = Literal["mse", "mae", "misclassification"]
METRIC_NAMES: dict[Metric, str] = {
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "misclassification": "misclassification",
}
# A regularisation path of a least-squares machine costs hardly more than one solution.
MANY_C = np.geomspace(1e-2, 1e6, 25)
FEW_C = np.geomspace(1e-2, 1e6, 9)  # where each value is a fit of its own


class Shape(NamedTuple):
    """What is known of the rows before any work on them."""

    n: int  # rows that points are chosen from
    present: int  # of weight above 0: in training, all of them
    training: int  # of those, when the largest fold is left out
    d: int
    classes: int | None
    linear: bool  # whether the kernel is the linear one, which needs no points

    __repr__ = short_repr


class TrainingRows(NamedTuple):
    """Standardised rows, out of which points are chosen.

    After the first `n` come rows of weight 0, so that tables of like size compile once.
    """

    X: Float[Array, "r d"]
    labels: Int[np.ndarray, " r"] | None  # class numbers
    weights: Float[np.ndarray, " r"]  # a row of weight 0 is no point
    scaling: Standardization  # the standardisation of the raw rows
    n: int

    __repr__ = short_repr

    def points_at(self, numbers: Int[np.ndarray, " m"], status: int = CONVERGED) -> "Points":
        """Return rows by number as points."""
        return Points(rows_at(self.X, numbers), numbers, status)


def rows_at(X: Float[Array, "r d"], numbers: Int[np.ndarray, " m"]) -> Float[Array, "m d"]:
    """Return rows by number; on a CPU without a program."""
    if jax.default_backend() == "cpu":
        return as_array(np.asarray(X)[numbers])
    return _rows_at(X, numbers)


_rows_at = compiled(lambda X, numbers: X[numbers])


class Points(NamedTuple):
    """Which points may carry the model."""

    X: Float[Array, "m d"] | None  # None: every row
    rows: Int[np.ndarray, " m"] | None  # their numbers, if they are rows
    status: int = CONVERGED  # how the choice ended

    __repr__ = short_repr


def option(
    default: Any,
    help: str,
    *,
    kind: str = "text",
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Return a static field that is an option of the command line too.

    Args:
        default: the field's default value.
        help: the help text of the command line.
        kind: the values it takes: "sizes", "count", "count or auto", "not negative", "text".
        metavar: the value's letter in the help text.
        choices: the texts it takes.
    """
    described = {"help": help, "kind": kind, "metavar": metavar, "choices": choices}
    return eqx.field(default=default, static=True, metadata={"option": described})


def setting(default: Any) -> Any:
    """Return a field that decides shapes or structure: another value compiles again."""
    return eqx.field(default=default, static=True)


class Method(eqx.Module):
    """The settings of a learner, and what training asks of it.

    Subclasses are dataclasses whose fields are the settings. A field that decides shapes or
    structure is static: methods with equal static fields share programs. Every other field is a
    number and a leaf of the pytree: programs take it as an argument, so nothing compiles again
    when it changes, and `vmap` runs over it.
    """

    name: ClassVar[str]  # on the command line
    title: ClassVar[str]  # in tables
    max_rows: ClassVar[int | None] = None  # rows that a comparison of methods gives it at most
    usual_prototypes: ClassVar[int] = 300  # at most, see `default_prototypes`
    tasks: ClassVar[tuple[Task, ...]] = ("classification", "regression")
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C
    has_C: ClassVar[bool] = True  # whether the fit depends on `C`
    shares_C: ClassVar[bool] = False  # whether all binary problems must have one `C`
    several_sizes: ClassVar[bool] = False  # whether one fit gives machines of several sizes
    robust: ClassVar[bool] = False  # whether outliers must not decide the unit of the targets
    shares_rows: ClassVar[bool] = False  # whether all binary problems must see all rows
    size_argument: ClassVar[str] = "n_prototypes"  # the argument that has the number of points
    # The power of the targets' unit that a diagnostic goes with; 0 if it is not named.
    info_powers: ClassVar[dict[str, int]] = {}

    __repr__ = short_repr

    def __post_init__(self) -> None:
        # A converter of the fields would do, but `help` would show no types of the arguments.
        for field in dataclasses.fields(self):
            if field.metadata.get("static", False):
                setattr(self, field.name, as_python(getattr(self, field.name)))

    def check(self, task: Task) -> None:
        """Raise a `ValueError` for settings that make no sense whatever the data."""
        if task not in self.tasks:
            raise ValueError(
                f"task: expected {' or '.join(map(repr, self.tasks))} with {type(self).__name__}, "
                f"got {task!r}"
            )

    def check_code(self, argument: str, code: Code | None) -> None:
        """Raise a `ValueError`, naming the argument, if the method cannot take the code."""
        if self.shares_rows and code is not None and not code.shares_all_rows:
            raise ValueError(
                f"{argument}: expected a scheme in which every problem sees every class, such as "
                f"'one_versus_rest', as {type(self).__name__} solves one system for all problems"
            )

    def check_kernel(self, kernel: Kernel) -> None:
        """Raise a `ValueError` if the method cannot take the kernel."""
        if isinstance(kernel, Mixture):
            raise ValueError(
                f"kernel: expected one with {type(self).__name__}, got {len(kernel.kernels)}; "
                "KSP, KMP and KBP choose from several"
            )

    def check_classes(self, classes: Shaped[np.ndarray, " k"], present: int) -> None:
        """Raise a `ValueError` if the method needs rows of all classes, and fewer are present."""
        if present < len(classes):
            raise ValueError(
                f"classes: expected rows of all of them with {type(self).__name__}, got none of "
                f"some of {classes.tolist()}"
            )

    def check_movable(self) -> None:
        """Raise a `ValueError` unless a search may move the points by the error's gradient."""
        raise ValueError(
            "move_prototypes: expected False but for FixedSize(m) with one number of prototypes, "
            f"got {self!r}"
        )

    def values_of_C(self, C: ArrayLike | None) -> ArrayLike:
        """Return the values of `C` to choose from, by default those of the method.

        Raises:
            ValueError: for values, if the method has no `C`.
        """
        if C is not None and not self.has_C:
            raise ValueError(
                f"C: expected None with {type(self).__name__}, which is tuned by its sizes "
                f"alone, got {C!r}"
            )
        return self.default_C if C is None else C

    def check_C_per_problem(self) -> None:
        """Raise a `ValueError` if all binary problems must have one `C`."""
        if self.shares_C:
            raise ValueError(
                f"C_per_problem: expected False with {type(self).__name__}, whose problems share "
                "one"
            )

    def check_sums(self, argument: str) -> Any:
        """Return the method as a `FromSums`, if sums over rows are all that it needs.

        Raises:
            ValueError: naming the argument.
        """
        raise sums_needed(self, argument, ", which sees all rows together")

    def resolve(self, shape: Shape) -> "Method":
        """Return the method with every setting a value; raise if one does not suit the rows.

        Called before any work on the rows.

        Raises:
            ValueError: for a setting that does not suit rows of that shape.
        """
        return self

    def capped(self, shape: Shape) -> "Method":
        """Return the method with numbers of points lowered to what the rows allow.

        For callers that fit to many subsets of rows; `resolve` raises an error for such numbers.
        """
        return self

    def for_distillation(self, prototypes: Float[np.ndarray, "m d"]) -> "Method":
        """Return the method that selects few of the prototypes of a large machine, in raw units.

        Raises:
            ValueError: if it cannot select.
        """
        raise ValueError(
            "method: expected one that selects out of candidates, such as SCDP(..) or KSP(..), or "
            f"SparseReduction(..), got {type(self).__name__}"
        )

    def metric(self, task: Task) -> Metric:
        """Return the metric in which errors are reported by default."""
        return "misclassification" if task == "classification" else "mse"

    def criterion(self, task: Task) -> Metric:
        """Return the metric that the search minimises by default."""
        return self.metric(task)

    @property
    def size_tolerance(self) -> float:
        """The smallest size within as many standard errors of the best is taken."""
        return 0.0

    @property
    def memory(self) -> int | Literal["all"] | None:
        """Features whose sums are in memory, "all" for a kernel matrix, None if neither."""
        return None

    @property
    def shares_work_over_C(self) -> bool:
        """Whether the errors for many values of `C` take hardly longer than those for one."""
        return not self.several_sizes

    def drop_oversized(self, largest: int) -> "Method":
        """Return the method without sizes that it added by itself and memory has no room for."""
        return self

    @abc.abstractmethod
    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return the points that may carry the model."""

    @abc.abstractmethod
    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """Fit to weighted rows; a row of weight 0 is absent.

        Args:
            kernel: kernel of two points.
            points: from `choose_points`.
            C: weight of the data-fit term; with a code also one for each problem.
            rows: in the units of the points.
            key: decides random draws.
        """

    def fit_and_sum(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None,
        sums: Sums | None = None,
    ) -> tuple[Family, Sums | None]:  # fmt: skip
        """Fit as `fit`, and return the sums that later rows can be added to, if there are any.

        `sums` from `HeldOut.total` save a pass over the rows.
        """
        return self.fit(kernel, points, C, rows, key), None

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """Predict the rows of each fold by machines that have not seen it, for every `C`.

        By default by one fit for each fold and `C`.
        """

        def fit(C: Float[Array, ""], fold: Int[Array, ""]) -> Family:
            return self.fit(kernel, points, C, rows.without_fold(folds, fold), key)

        return each_fold_and_C(fit, C, rows.by_fold(folds), on_fold)

    def validation_folds(self, folds: Any, n: int) -> Any:
        """Return the folds that `held_out` predicts, of `n` rows and the folds it is given."""
        return folds

    def fold_machines(
        self, kernel: Kernel, points: PointTable, C: CLike, size: int | None, rows: Rows,
        folds: Any, key: Key | None, sums: Sums | None,
    ) -> KernelExpansion:  # fmt: skip
        """Return the machines of a size that have not seen a fold, as one expansion; on the host.

        It has a column for each fold and output, fold by fold. The size is None if the method has
        one, the folds are from `validation_folds`, and the sums from `fit_and_sum` or
        `HeldOut.total`; all else is as for `fit`. By default by a fit for each fold.
        """
        weights = np.asarray(rows.weights)
        machines = []
        for index, valid in zip(np.asarray(folds.index), np.asarray(folds.valid), strict=True):
            without = weights.copy()
            without[index[valid]] = 0
            family = self.fit(kernel, points, C, rows.with_weights(jnp.asarray(without)), key)
            machines.append(family.expansion if size is None else family.at(size))
        return join_machines(machines)

    @property
    def fit_sizes(self) -> tuple[int, ...]:
        """The sizes of the machines of one fit, once resolved; empty if there is one."""
        return ()

    def shorter(self) -> "Sequence[Method]":
        """Return the methods to validate one after the other until a path is long enough.

        The last one is the method itself. By default there is no other.
        """
        return (self,)

    def path_end(self, scores: Float[np.ndarray, " k"]) -> int | None:
        """Return how many sizes count, by their errors; None for all."""
        return None

    def error_status(self, status: Int[np.ndarray, " s"]) -> Int[np.ndarray, " s"]:
        """Return the stop codes of held-out errors, from the worst codes of the machines."""
        return status

    def shortened(self, n_sizes: int) -> "Method":
        """Return the method with the first `n_sizes` sizes alone."""
        return self

    def stages(self, problem: Any, search: Any) -> Generator[Stage, Outcome | None, Chosen]:
        """Yield the stages of tuning one after the other, and return what is chosen.

        Each `yield` gives the outcome of the stage; None if an optional stage had none. By default
        there is one stage, the search for the method itself.

        Args:
            problem: the tuning problem, see `search.problem.Problem`.
            search: what the user asked for, see `search.strategies.Search`.
        """
        outcome = yield Stage(problem, search)
        assert outcome is not None
        return Chosen(outcome)


def sums_needed(method: Method, argument: str, why: str) -> ValueError:
    """Return the error for a method that needs more of the rows than sums."""
    return ValueError(
        f"{argument}: expected a method that needs only sums over rows, such as FixedSize, got "
        f"{type(method).__name__}{why}"
    )


def check_number(
    name: str, value: Any, least: float, *, above: bool = False, finite: bool = True
) -> None:
    """Raise unless a setting is a number of at least `least`; a traced one is not looked at."""
    if is_concrete(value):
        real(name, value, least, above=above, finite=finite)


def default_prototypes(most: int, shape: Shape) -> int:
    """Return the number of prototypes where the user gives none.

    A third of the rows, at most `most`, and at least one for each class.
    """
    return min(shape.n, max(shape.classes or 1, min(most, -(-shape.n // 3))))


def at_most(numbers: Any, bound: int) -> Any:
    """Lower a whole number, or those of a tuple, to a bound; anything else stays as it is."""
    if isinstance(numbers, tuple):
        lowered = tuple(at_most(number, bound) for number in numbers)
        return numbers if lowered == numbers else tuple(dict.fromkeys(lowered))
    whole = isinstance(numbers, int | np.integer) and not isinstance(numbers, bool)
    return bound if whole and numbers > bound else numbers


def as_python(value: Any) -> Any:
    """Return numbers of NumPy's and JAX's as Python's, and a sequence as a tuple.

    Static fields are compared and hashed. A value that is neither stays as it is.
    """
    if isinstance(value, np.generic | np.ndarray | jax.Array) and is_concrete(value):
        value = np.asarray(value).tolist()
    if not isinstance(value, Sequence) or isinstance(value, str) or hasattr(value, "_fields"):
        return value
    several = tuple(as_python(one) for one in value)
    as_is = isinstance(value, tuple) and all(map(operator.is_, several, value))
    return value if as_is else several


def replaced(method: Any, **changes: Any) -> Any:
    """Return a method with other settings."""
    return dataclasses.replace(method, **changes)
