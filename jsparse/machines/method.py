"""The interface of a learner: settings, points, fit, held-out predictions and tuning stages."""

import abc
import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from .._arguments import check_flags, real
from .._numerics import as_array, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._runtime import on_cpu
from .._status import CONVERGED
from .._types import CLike, Key, PointTable, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture
from ..multiclass import Code
from ..scaling import Scaling
from .family import Family
from .fold_machines import join_machines
from .held_out import HeldOut, OnFold, Sums, each_fold_and_C
from .rows import FoldLayout, Rows
from .stages import Stages, single_stage

Task = Literal["classification", "regression"]
Metric = Literal["mse", "mae", "pinball", "misclassification"]
METRIC_NAMES: dict[Metric, str] = {
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "pinball": "mean pinball loss",
    "misclassification": "misclassification",
}
# A regularisation path of a least-squares machine costs hardly more than one solution.
MANY_C = np.geomspace(1e-2, 1e6, 25)
FEW_C = np.geomspace(1e-2, 1e6, 9)  # for machines with a separate fit for each value


class Shape(NamedTuple):
    """The numbers of rows, columns and classes, known before any work on the rows."""

    n: int  # number of rows from which points are chosen
    n_present: int  # number of rows with a weight above 0; `n` in training on a table
    training: int  # `n_present` less the rows of the largest fold; `n_present` for a stream
    d: int  # number of columns
    classes: int | None  # number of classes; None for regression
    linear: bool  # whether the kernel is the linear one, which needs no points
    room: int | None = None  # number of points that memory has room for; None if all fit

    __repr__ = short_repr


class TrainingRows(NamedTuple):
    """Standardised rows, from which a method chooses its points.

    The first `n` rows are data. The others have weight 0: they pad the table, so that tables of
    similar size share compiled programs.
    """

    X: Float[Array, "r d"]
    labels: Int[np.ndarray, " r"] | None  # class numbers; None for regression
    weights: Float[np.ndarray, " r"]  # a row of weight 0 is never chosen
    scaling: Scaling  # maps raw inputs to `X`
    n: int  # number of rows without the padding
    # Inputs of the kernel, in which a category is a number, if `X` has indicator columns instead.
    coded: Float[Array, "r e"] | None = None

    __repr__ = short_repr

    @property
    def kernel_inputs(self) -> Float[Array, "r e"]:
        """The rows as inputs of the kernel: `coded`, or `X` if there are no indicator columns."""
        return self.X if self.coded is None else self.coded

    def points_at(self, numbers: Int[np.ndarray, " m"], status: int = CONVERGED) -> "Points":
        """Return the rows with the given numbers as points."""
        return Points(rows_at(self.X, numbers), numbers, status)


def rows_at(X: Float[Array, "r d"], numbers: Int[np.ndarray, " m"]) -> Float[Array, "m d"]:
    """Return the rows with the given numbers. On a CPU, NumPy selects them: nothing compiles."""
    if on_cpu():
        return as_array(np.asarray(X)[numbers])
    return _rows_at(X, numbers)


_rows_at = compiled(lambda X, numbers: X[numbers])


class Points(NamedTuple):
    """The points that may become prototypes."""

    X: Float[Array, "m d"] | None  # None if every row is a point
    rows: Int[np.ndarray, " m"] | None  # row number of each point; None if points are not rows
    status: int = CONVERGED  # stop code of the choice

    __repr__ = short_repr


def option(
    default: Any,
    help: str,
    *,
    kind: str = "text",
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    static: bool = True,
    **field: Any,
) -> Any:
    """Return a dataclass field that is also an option of the command line.

    Args:
        default: the field's default value.
        help: the help text on the command line.
        kind: how the option is parsed: "sizes", "count", "count or auto", "not negative",
            "shares" or "text".
        metavar: the placeholder for the value in the help text.
        choices: the allowed values of a "text" option; None for any.
        static: whether changing the value compiles programs again.
        **field: further arguments of `dataclasses.field`, such as `kw_only`.
    """
    described = {"help": help, "kind": kind, "metavar": metavar, "choices": choices}
    return eqx.field(default=default, static=static, metadata={"option": described}, **field)


def iteration_limit(default: int, **field: Any) -> Any:
    """Return the field `max_iterations` of a method that iterates; `field` is as for `option`."""
    text = "limit of the iterations of a fit; default: 5 for ksp, else 200"
    return option(default, text, kind="count", metavar="N", **field)


def setting(default: Any, **field: Any) -> Any:
    """Return a static dataclass field; `field` has further arguments of `dataclasses.field`."""
    return eqx.field(default=default, static=True, **field)


class Method(eqx.Module):
    """The settings of a learner, and the operations that training calls.

    The fields of a subclass are its settings. A field that decides shapes or structure is static:
    a new value compiles programs again. Every other field is a number and a leaf of the pytree:
    programs take it as an argument, and `vmap` can run over it.
    """

    name: ClassVar[str]  # name on the command line
    title: ClassVar[str]  # name in tables of results
    max_rows: ClassVar[int | None] = None  # `compare` skips the method if there are more rows
    usual_prototypes: ClassVar[int] = 300  # upper limit of the default number of prototypes
    # Default number of folds: 5 if the method's paper takes 5, or if each fold takes a whole fit.
    usual_folds: ClassVar[int] = 10
    tasks: ClassVar[tuple[Task, ...]] = ("classification", "regression")
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C  # values that tuning chooses from
    has_C: ClassVar[bool] = True  # whether the fit depends on `C`
    shares_C: ClassVar[bool] = False  # whether all binary problems must share one `C`
    several_sizes: ClassVar[bool] = False  # whether one fit gives machines of several sizes
    robust: ClassVar[bool] = False  # whether targets are scaled by a unit that outliers barely move
    shares_rows: ClassVar[bool] = False  # whether every binary problem must see every row
    size_argument: ClassVar[str] = "n_prototypes"  # the setting that holds the number of points
    # Unit of each diagnostic in `Family.info`, as a power of the targets' unit; 0 if not listed.
    info_powers: ClassVar[dict[str, int]] = {}

    __repr__ = short_repr

    def __post_init__(self) -> None:
        # Field converters would hide the types of the arguments from `help`.
        for field in dataclasses.fields(self):
            if field.metadata.get("static", False):
                setattr(self, field.name, as_python(getattr(self, field.name)))

    def check(self, task: Task) -> None:
        """Raise a `ValueError` for settings that are invalid for the task with any data."""
        if task not in self.tasks:
            raise ValueError(
                f"task: expected {' or '.join(map(repr, self.tasks))} with {type(self).__name__}, "
                f"got {task!r}"
            )
        check_flags(self)

    def check_code(self, argument: str, code: Code | None) -> None:
        """Raise a `ValueError`, naming the argument, if the method cannot fit the output code."""
        if self.shares_rows and code is not None and not code.shares_all_rows:
            raise ValueError(
                f"{argument}: expected a scheme in which every problem sees every class, such as "
                f"'one_versus_rest', as {type(self).__name__} solves one system for all problems"
            )

    def check_kernel(self, kernel: Kernel) -> None:
        """Raise a `ValueError` if the method does not work with the kernel."""
        if isinstance(kernel, Mixture):
            raise ValueError(
                f"kernel: expected one with {type(self).__name__}, got {len(kernel.kernels)}; "
                "KSP, KMP and KBP choose from several"
            )

    def check_classes(self, classes: Shaped[np.ndarray, " k"], present: int) -> None:
        """Raise a `ValueError` if only `present` of all classes have rows; `FromSums` does not."""
        if present < len(classes):
            raise ValueError(
                f"classes: expected rows of all of them with {type(self).__name__}, got rows of "
                f"only {present} of the classes {classes.tolist()}"
            )

    def check_movable(self) -> None:
        """Raise a `ValueError` if a search cannot optimise the prototypes; by default, always."""
        raise ValueError(
            "move_prototypes: expected False but for FixedSize(m) with one number of prototypes, "
            f"got {self!r}"
        )

    def default_folds(self, n: int) -> int:
        """Return the default number of folds for `n` rows."""
        return min(self.usual_folds, n)

    def values_of_C(self, C: ArrayLike | None) -> ArrayLike:
        """Return the values of `C` to choose from: the user's `C`, or `default_C` if it is None.

        Without a `C` return the number 1, or raise a `ValueError` if the user states values.
        """
        if self.has_C:
            return self.default_C if C is None else C
        if C is not None:
            raise ValueError(
                f"C: expected None with {type(self).__name__}, whose fit does not depend on C, "
                f"got {C!r}"
            )
        return np.ones(1)

    def reported_C(self, C: Any) -> Any:
        """Return `C`, or None if the method has no `C`."""
        return C if self.has_C else None

    def C_to_validate(
        self, C: Float[np.ndarray, "*l"], together: Float[np.ndarray, " s"]
    ) -> Float[np.ndarray, " t"]:
        """Return the values to validate, to get the held-out predictions of the machines with `C`.

        These are the values that the search has validated `together`, as their program is compiled.
        If they lack a value of `C`, or take longer than `C` alone, return the distinct values of
        `C`, which has one entry for each binary problem or one for all.
        """
        includes_C = np.all(np.isin(C, together))
        return together if self.shares_work_over_C and includes_C else np.unique(C)

    def check_C_per_problem(self) -> None:
        """Raise a `ValueError` if all binary problems must share one `C`."""
        if self.shares_C:
            raise ValueError(
                f"C_per_problem: expected False with {type(self).__name__}, whose problems share "
                "one C"
            )

    def check_sums(self, argument: str) -> Any:
        """Return the method if it needs only sums over rows, else raise a `ValueError`."""
        raise sums_needed(self, argument, ", which needs all rows together")

    def resolve(self, shape: Shape) -> "Method":
        """Return the method with its defaults replaced by values that depend on the shape.

        If the shape does not allow a setting, such as too many prototypes, raise a `ValueError`.
        """
        return self

    def capped(self, shape: Shape) -> "Method":
        """Return the method with its numbers of points limited to what the shape allows.

        Callers fit to many subsets of rows; `resolve` would raise for a subset that is too small.
        """
        return self

    def limited(self, n_prototypes: int) -> "Method":
        """Limit a resolved method to `n_prototypes` prototypes; by default raise a `ValueError`."""
        raise ValueError(
            f"method: expected a method whose number of prototypes can be limited, got {self.title}"
            "; distil its machine, see jsparse.distil"
        )

    def for_distillation(self, prototypes: Float[np.ndarray, "m d"]) -> "Method":
        """Return the method that distils a large machine, given its prototypes in raw units.

        Raise a `ValueError` if the method cannot select few prototypes out of many.
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
    def quantiles(self) -> tuple[ScalarLike, ...]:
        """The quantiles of the target that the outputs estimate, increasing; by default none.

        They are the parameters of the metric "pinball". With several quantiles, each is an output,
        and the predictions of a row are sorted.
        """
        return ()

    def outputs(self, rows: Rows) -> tuple[int, ...]:
        """Return the shape of one row's values: one value for each target, or binary problem."""
        return rows.outputs

    @property
    def size_tolerance(self) -> float:
        """Standard errors by which the error of the chosen size may exceed the smallest error."""
        return 0.0

    @property
    def C_tolerance(self) -> float | None:
        """Standard errors by which the error of the chosen `C` may exceed the smallest error.

        The smallest such `C` is chosen. If None, any `C` of the smallest error is chosen.
        """
        return None

    @property
    def n_features(self) -> int | Literal["all"] | None:
        """The number of features in the normal equations; "all" for a kernel matrix of all rows.

        None if the method stores neither matrix, or if the number is not yet known.
        """
        return None

    def largest_system(self, n_rows: int) -> int:
        """Return the number of unknowns of the largest system of equations that a fit solves.

        The method must be resolved. `n_rows` is the number of training rows.
        """
        return self.n_features if isinstance(self.n_features, int) else 0

    @property
    def plan_arguments(self) -> dict[str, Any]:
        """Arguments of `training.plan.plan`, which estimates memory, by default `n_features`."""
        return {"n_prototypes": self.n_features}

    @property
    def size_text(self) -> str:
        """The setting that decides memory, such as "candidates: 5 candidates", for messages."""
        if self.n_features == "all":
            return f"method: {type(self).__name__}, which keeps all rows,"
        name = self.size_argument
        return f"{name}: {self.n_features} {name.removeprefix('n_')}"

    @property
    def why_alone(self) -> str | None:
        """Why `train_many` trains problems one after another; None if one program trains a batch.

        A batch needs prototypes chosen by entropy before any fit, and one machine for each `C`.
        """
        return f"a batch needs FixedSize, not {type(self).__name__}"

    @property
    def shares_work_over_C(self) -> bool:
        """Whether validating many values of `C` takes hardly longer than validating one."""
        return not self.several_sizes

    def fits_from_fold_sums(self, r: int, s: int) -> bool:
        """Whether a search may keep `FoldSums`, and call `held_out_from_sums` for `held_out`.

        `r` is the number of rows in a fold, `s` the number of values of `C`.
        """
        return False

    def rows_of_part(self, n: int, m: int) -> int | None:
        """Return on how many of `n` rows to compare kernels first; None for all of them.

        `m` is the number of points that may become prototypes.
        """
        return None

    @property
    def fits_each_fold(self) -> bool:
        """Whether `held_out` is the default, which makes a separate fit for each fold and `C`."""
        return type(self).held_out is Method.held_out

    @abc.abstractmethod
    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return the points that may become prototypes, given the untuned kernel."""

    @abc.abstractmethod
    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """Fit machines to weighted rows; a row of weight 0 is absent.

        Args:
            kernel: kernel of two points.
            points: from `choose_points`, shape `m d`; None if every row is a point.
            C: weight of the data-fit term, shape `()`; or one for each problem of a code, `l`.
            rows: the rows, in the units of the points.
            key: decides random draws.
        """

    def fit_and_sum(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None,
        sums: Any = None,
    ) -> tuple[Family, Sums | None]:  # fmt: skip
        """Fit as `fit` does, and return also the sums to which later rows can be added.

        The returned sums are None if the method needs more than sums. The argument `sums`, from
        `HeldOut.total`, saves passes over the rows, or the whole fit.
        """
        return self.fit(kernel, points, C, rows, key), None

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """Predict the rows of each fold by machines fitted without the fold, for every `C`.

        By default there is one fit for each fold and `C`. The function `on_fold` reduces the
        predictions of each fold. Other arguments are as for `fit`.
        """

        def fit(C: Float[Array, ""], fold: Int[Array, ""]) -> Family:
            return self.fit(kernel, points, C, rows.without_fold(folds, fold), key)

        return each_fold_and_C(fit, C, rows.by_fold(folds), on_fold)

    def fits_over_C(
        self, kernel: Kernel, points: PointTable, C: Float[np.ndarray, " s *l"], rows: Rows,
        key: Key | None = None,
    ) -> Iterator[Family]:  # fmt: skip
        """Yield the machine with each of `s` values of `C`, for the validation of one fold.

        The `rows` lack the fold. By default every fit is separate. A method may start a fit from
        machines with smaller `C`. The machine must not depend on the other values in `C`. The
        function runs on the host. Other arguments are as for `fit`.
        """
        for one_C in C:
            yield self.fit(kernel, points, jax.device_put(one_C), rows, key)

    def validation_text(self, folds: int) -> str:
        """Return in words how the method is validated, given the number of folds."""
        return f"{folds} folds" if folds > 1 else "rows held out"

    def solver_text(self, info: Mapping[str, Any]) -> str | None:
        """Return in words how the fit was solved, given `Family.info`; None to say nothing."""
        return None

    def validation_folds(self, folds: Any, n: int) -> Any:
        """Return the folds that `held_out` predicts, out of the `folds` of `n` rows."""
        return folds

    def fold_machines(
        self, kernel: Kernel, points: PointTable, C: CLike, size: int | None, rows: Rows,
        folds: Any, key: Key | None, sums: Any,
    ) -> KernelExpansion:  # fmt: skip
        """Return the machines fitted without each fold, as one expansion; on the host.

        The expansion has a column for each fold and output, fold by fold. By default `fits_over_C`
        fits the machine of each fold, as in validation on a CPU. `size` is the number of
        prototypes, or None if the method fits one size. `folds` are from `validation_folds`. `sums`
        are the sums of all rows, from `fit_and_sum` or `HeldOut.total`, or None. Other arguments
        are as for `fit`.
        """
        machines = []
        for index, valid in zip(np.asarray(folds.index), np.asarray(folds.valid), strict=True):
            one_C = np.asarray(C, rows.dtype)[None]
            (family,) = self.fits_over_C(kernel, points, one_C, rows.without(index[valid]), key)
            machines.append(family.expansion if size is None else family.at(size))
        return join_machines(machines)

    @property
    def fit_sizes(self) -> tuple[int, ...]:
        """The numbers of prototypes for which one fit returns a machine each; valid once resolved.

        Empty if a fit returns a single machine.
        """
        return ()

    def shorter(self) -> "Sequence[Method]":
        """Return methods with longer and longer paths, of which `self` is the last.

        Validation tries them in this order, until `path_end` ends every path. By default `self` is
        the only one.
        """
        return (self,)

    def path_end(self, scores: Float[np.ndarray, " k"]) -> int | None:
        """Return the size at which a path ends, given the error of each size; None for no end."""
        return None

    def error_status(self, status: Int[np.ndarray, " s"]) -> Int[np.ndarray, " s"]:
        """Return stop codes of the held-out errors for each `C`; by default the machines' worst."""
        return status

    def shortened(self, n_sizes: int) -> "Method":
        """Return the method restricted to its first `n_sizes` sizes."""
        return self

    def stages(self, problem: Any, search: Any) -> Stages:
        """Yield the stages of tuning one after another, and return the outcome to keep.

        By default these are the stages for one size.

        Args:
            problem: the tuning problem, see `search.problem.Problem`.
            search: the user's search, see `search.strategies.Search`.
        """
        return self.stages_of_one_size(problem, search)

    def stages_of_one_size(self, problem: Any, search: Any) -> Stages:
        """Yield the stages for machines of one size, as `stages` does; by default one stage."""
        return single_stage(problem, search)

    def at_size(self, m: int) -> tuple["Method", slice]:
        """Return the method of machines with `m` prototypes, and the slice of their points.

        By default their points are the first `m` of the points of all sizes.
        """
        return self, slice(0, m)


def sums_needed(method: Method, argument: str, why: str) -> ValueError:
    """Return the error for a method that needs more than sums over rows; `why` ends its message."""
    return ValueError(
        f"{argument}: expected a method that needs only sums over rows, such as FixedSize, got "
        f"{type(method).__name__}{why}"
    )


def check_number(
    name: str, value: Any, least: float, *, above: bool = False, finite: bool = True
) -> None:
    """Raise a `ValueError` unless the setting called `name` is a number of at least `least`.

    With `above` it must exceed `least`; with `finite` it must be finite. Traced values pass.
    """
    if is_concrete(value):
        real(name, value, least, above=above, finite=finite)


def at_most(numbers: Any, bound: int) -> Any:
    """Limit a whole number, or each number of a tuple, to a bound; return other values unchanged.

    Equal numbers of a tuple are then merged.
    """
    if isinstance(numbers, tuple):
        lowered = tuple(at_most(number, bound) for number in numbers)
        return numbers if lowered == numbers else tuple(dict.fromkeys(lowered))
    is_count = isinstance(numbers, int | np.integer) and not isinstance(numbers, bool)
    return bound if is_count and numbers > bound else numbers


def as_python(value: Any) -> Any:
    """Convert NumPy and JAX numbers to Python numbers, and sequences to tuples.

    Static fields must be comparable and hashable. Other values are returned unchanged.
    """
    if isinstance(value, np.generic | np.ndarray | jax.Array) and is_concrete(value):
        value = np.asarray(value).tolist()
    if not isinstance(value, Sequence) or isinstance(value, str) or hasattr(value, "_fields"):
        return value
    converted = tuple(as_python(item) for item in value)
    unchanged = isinstance(value, tuple) and all(map(operator.is_, converted, value))
    return value if unchanged else converted


def replaced(method: Any, **changes: Any) -> Any:
    """Return a copy of a method with some settings changed."""
    return dataclasses.replace(method, **changes)
