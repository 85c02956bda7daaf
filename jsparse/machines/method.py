"""What is left of a learner once data, folds, search and devices are taken away."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._arguments import increasing, real, whole_number
from .._blocks import map_systems
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..multiclass import Code, accumulate_code
from ..normal_equations import NormalEquations, accumulate
from ..scaling import Standardization

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
    scaling: Standardization  # what standardised them
    n: int

    __repr__ = short_repr


@compiled
def rows_at(X: Float[Array, "r d"], chosen: Int[Array, " m"]) -> Float[Array, "m d"]:
    """Rows by number, in one program."""
    return X[chosen]


class Points(NamedTuple):
    """Which points may carry the model."""

    X: Float[Array, "m d"] | None  # None: every row
    rows: Int[np.ndarray, " m"] | None  # their numbers, if they are rows
    status: int = CONVERGED  # how the choice ended

    __repr__ = short_repr


class Stopping(NamedTuple):
    """When a path has become long enough (Karsmakers 2011, eq. 38).

    The cross-validated error with k prototypes differs from the mean of the `window` before by at
    most `tolerance` of itself.
    """

    window: int = 10
    tolerance: float = 1e-3

    __repr__ = short_repr

    def check(self) -> None:
        """Raise unless the window is a whole number and the tolerance a number that make sense."""
        whole_number("stopping.window", self.window, 1, 10**6, "a million")
        if not (isinstance(self.tolerance, int | float) and 0 <= self.tolerance < 1):
            raise ValueError(
                f"stopping.tolerance: expected a number between 0 and 1, got {self.tolerance!r}"
            )

    def length(self, scores: Float[np.ndarray, " k"]) -> int | None:
        """The number of prototypes at which it stops; None if it does not."""
        for k in range(self.window, len(scores)):
            before = np.mean(scores[k - self.window : k])
            if abs(before - scores[k]) <= self.tolerance * abs(scores[k]):
                return k + 1
        return None


def option(
    default: Any,
    help: str,
    *,
    kind: str = "text",
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field that is an option of the command line too.

    Args:
        default: its value.
        help: what the command line says of it.
        kind: what may be given: "sizes", "count", "count or auto", "not negative", "text".
        metavar: its letter in the help.
        choices: of texts.
    """
    how = {"help": help, "kind": kind, "metavar": metavar, "choices": choices}
    return dataclasses.field(default=default, metadata={"option": how})


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
    """The settings of a learner, and what training asks of it.

    Subclasses are frozen dataclasses: their fields are the settings, equal settings share compiled
    programs. A learner that needs only sums over rows is `Additive`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # else `dataclass` would write whole arrays
            cls.__repr__ = short_repr

    name: ClassVar[str]  # on the command line
    title: ClassVar[str]  # in tables
    most_rows: ClassVar[int | None] = None  # that a comparison of methods gives it
    usual_prototypes: ClassVar[int] = 300  # at most, see `default_prototypes`
    tasks: ClassVar[tuple[Task, ...]] = ("classification", "regression")
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C
    has_C: ClassVar[bool] = True  # whether `C` is looked at at all
    is_path: ClassVar[bool] = False  # gives machines of every size, see `PathMethod`
    robust: ClassVar[bool] = False  # no outlier may decide the unit of its targets
    several_kernels: ClassVar[bool] = False  # whether a dictionary may have atoms of several
    shares_rows: ClassVar[bool] = False  # problems of several classes must all see all rows
    sparser_by_C: ClassVar[bool] = (
        False  # a smaller C leaves fewer prototypes: see `size_tolerance`
    )

    def check(self, task: Task) -> None:
        """Raise a `ValueError` for settings that make no sense whatever the data."""
        if task not in self.tasks:
            raise ValueError(
                f"task: expected {' or '.join(map(repr, self.tasks))} with {type(self).__name__}, "
                f"got {task!r}"
            )

    def settled(self, shape: Shape) -> "Method":
        """The method with every setting a value, or a `ValueError` if one does not suit the rows.

        Called before any work on the rows.
        """
        return self

    def capped(self, shape: Shape) -> "Method":
        """The method with numbers of points lowered to what the rows allow.

        For callers that fit to many subsets of rows; `settled` raises an error for such numbers.
        """
        return self

    def metric(self, task: Task) -> Metric:
        """Return the metric in which errors are reported by default."""
        return "misclassification" if task == "classification" else "mse"

    def criterion(self, task: Task) -> Metric:
        """Return the metric that the search minimises by default; only paths may have another."""
        return self.metric(task)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of points of which cross-validation is to choose one; empty for one size."""
        return ()

    @property
    def size_tolerance(self) -> float:
        """The smallest machine is chosen within so many standard errors of the best."""
        return 0.0

    def kept(self, fitted: Any) -> Int[np.ndarray, " k"] | None:
        """Numbers of the points that the machine needs; None for all of them."""
        return None

    @property
    def grows(self) -> bool:
        """Whether it is to try more and more prototypes, as long as that pays."""
        return False

    @property
    def memory(self) -> int | Literal["all"] | None:
        """Features whose sums are in memory, "all" for a kernel matrix, None if neither."""
        return None

    def surrogate(self) -> "Method | None":
        """What the kernel is tuned for in its place; None where it is itself cheap enough."""
        return None

    @property
    def surrogate_sees(self) -> Literal["rows", "points", "some points"]:
        """Whether the surrogate is fitted to all rows or to those that are points alone.

        "some points": it is a smaller machine of the same kind, of the first of the points.
        """
        return "rows"

    @abc.abstractmethod
    def points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Points that may carry the model."""

    @abc.abstractmethod
    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> Any:
        """Fit to weighted rows; a row of weight 0 is absent.

        Args:
            kernel: kernel of two points.
            points: from `points`.
            C: weight of the data-fit term; with a code also one for each problem.
            X: inputs, in the units of the points.
            y: targets; with a code, class numbers.
            weights: row weights.
            code: several classes as several problems.
            key: decides what is drawn at random.

        Returns:
            A NamedTuple with a `status`, and `expansion`; or for a path, `at`, `status_at` and
            `values`, see `SparsePath`.
        """


class PathMethod(Method):
    """A method that gives machines of every size; `fit` returns a `SparsePath`."""

    is_path: ClassVar[bool] = True
    stopping: Stopping | None = None

    @property
    @abc.abstractmethod
    def longest(self) -> int:
        """The length of the path, once settled."""

    @property
    def path_sizes(self) -> tuple[int, ...]:
        """The sizes of the machines on the path, once settled."""
        return tuple(range(1, self.longest + 1))

    def place_of(self, size: Int[Array, ""]) -> Int[Array, ""]:
        """The place of a size among them."""
        return jnp.searchsorted(jnp.asarray(self.path_sizes, jnp.int32), size).astype(jnp.int32)

    def shortened(self, length: int) -> "PathMethod":
        """The method with paths of that length."""
        return dataclasses.replace(self, max_prototypes=length)


class Additive(Method):
    """A method that needs only sums over rows.

    Streams, several devices, cross-validation by subtraction and `partial_fit` follow from that.
    """

    default_C: ClassVar[Float[np.ndarray, " s"]] = MANY_C
    # Whether `solve` is ridge regression in the features, for which validation has a fast way. Of
    # any other that gives one size, each fold and C is solved for by `solve` itself.
    is_ridge: ClassVar[bool] = False

    @property
    def by_sums(self) -> bool:
        """Whether folds in memory go by sums too, not by fits to the rows that may be others."""
        return True

    @property
    def sums_suffice(self) -> bool:
        """Whether with these settings it needs nothing else; if not, see `informed`."""
        return True

    @abc.abstractmethod
    def features(self, kernel: Kernel, points: Float[Array, "m d"]) -> FeatureMap:
        """What is summed."""

    @abc.abstractmethod
    def solve(
        self,
        features: FeatureMap,
        sums: NormalEquations,
        C: ScalarLike | Float[Array, " l"],
        code: Code | None = None,
        *,
        key: Key | None = None,
    ) -> Any:
        """`fit`, from the sums."""

    def informed(
        self,
        features: FeatureMap,
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"],
        weights: Float[Array, " n"],
    ) -> FeatureMap:
        """The features with what `solve` needs of the rows besides sums; by default nothing.

        Args:
            features: from `features`.
            X: inputs.
            y: targets of every problem.
            weights: row weights.
        """
        return features

    def values(
        self,
        features: FeatureMap,
        sums: NormalEquations,
        C: Float[Array, " s"],
        code: Code | None,
        X: Float[Array, "n d"],
        *,
        key: Key | None = None,
    ) -> tuple[Float[Array, "n s l"], Int[Array, " s"]]:
        """Values of the machines for every `C` at the rows of `X`, and stop codes."""

        def one(C: Float[Array, ""]) -> tuple[Array, Array]:
            fitted = self.solve(features, sums, C, code, key=key)
            return fitted.expansion(X).reshape(len(X), -1), fitted.status

        values, status = map_systems(one, C)
        return jnp.moveaxis(values, 0, 1), status

    def accumulate(
        self,
        features: FeatureMap,
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None,
        code: Code | None,
        mesh: Mesh | None = None,
    ) -> NormalEquations:
        """The sums over rows."""
        if code is None:
            return accumulate(features, X, y, weights, mesh=mesh)
        return accumulate_code(code, features, X, y, weights, mesh=mesh)

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> Any:
        """See `Method.fit`."""
        assert points is not None
        features = self.features(kernel, points)
        sums = self.accumulate(features, X, y, weights, code)
        if not self.sums_suffice:
            targets, _ = each_problem(y, weights, code, X.dtype)
            w = jnp.ones(len(X), X.dtype) if weights is None else weights
            features = self.informed(features, X, targets, w)
        return self.solve(features, sums, C, code, key=key)


def require_additive(method: Method, what: str) -> Additive:
    """The method, if it needs only sums over rows.

    Raises:
        ValueError: naming what was asked of it.
    """
    if not (isinstance(method, Additive) and method.sums_suffice):
        what_of = ", which sees all rows together"
        if isinstance(method, Additive):
            what_of = f" with settings that need the rows themselves, {method}"
        raise ValueError(
            f"{what}: expected a method that needs only sums over rows, such as FixedSize, got "
            f"{type(method).__name__}{what_of}"
        )
    return method


def each_problem(
    y: Float[Array, "n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None,
    code: Code | None,
    dtype: jnp.dtype,
) -> tuple[Float[Array, "n *c"], Float[Array, " n"] | Float[Array, "n l"] | None]:
    """Targets of every problem, and weights, each problem's own if some leave classes out."""
    if code is None:
        return y, weights
    targets = jnp.asarray(code.matrix, dtype)[y]
    if code.shares_all_rows:
        return targets, weights
    seen = jnp.abs(targets)
    return targets, seen if weights is None else seen * weights[:, None]


def expansion_of(fitted: Any, size: int | None = None) -> KernelExpansion:
    """The machine of a fit; of a path, that with so many prototypes."""
    if size is not None and hasattr(fitted, "at"):
        return fitted.at(size)
    return fitted.expansion


def status_of_fit(fitted: Any, size: int | None = None) -> int:
    """The stop code of that machine."""
    if size is not None and hasattr(fitted, "status_at"):
        return int(fitted.status_at(size))
    return int(fitted.status)


def values_of_fit(fitted: Any, X: Float[Array, "n d"]) -> Float[Array, "n k l"]:
    """Values of the machine, or of all machines on a path, at the rows of `X`."""
    if hasattr(fitted, "values"):
        values = fitted.values(X)
        return values if values.ndim == 3 else values[:, :, None]
    return fitted.expansion(X).reshape(len(X), 1, -1)


def check_sizes(sizes: Any, most: int, what: str) -> tuple[int, ...]:
    """Increasing numbers of prototypes, as Python's."""
    return tuple(increasing("n_prototypes", sizes, most, what))


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


def check_tolerance(name: str, tolerance: float) -> None:
    """Raise unless it is a number of at least 0."""
    real(name, tolerance, 0.0)


def as_sizes(sizes: Any) -> Any:
    """Sequences as tuples, which can be hashed; everything else as it is."""
    several = isinstance(sizes, Sequence | np.ndarray) and not isinstance(sizes, str)
    return tuple(sizes) if several and np.ndim(sizes) == 1 else sizes


def stacked(fits: Sequence[Any]) -> Any:
    """Fits of several outputs, each on its own, with a leading axis of outputs."""
    return jax.tree.map(lambda *parts: jnp.stack(parts), *fits)
