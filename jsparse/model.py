"""What is deployed: a trained machine with all that turns raw inputs into answers."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ._arguments import check_finite, finite_rows, whole_number
from ._blocks import capacity, padded
from ._files import PathLike
from ._numerics import as_array
from ._repr import few_lines
from ._runtime import check_runtime
from ._status import NumericalError
from .calibration import decisions, probabilities
from .conformal import (
    Unseen,
    behind,
    intervals,
    sets,
    unseen_classes,
    unseen_numbers,
)
from .data.schema import Schema
from .expansion import KernelExpansion
from .kernels import Mixture
from .machines.sized_path import SizedPath
from .machines.sparse_path import SparsePath
from .multiclass import Code, Decoding, distances
from .relevance import Relevance, relevance_of

if TYPE_CHECKING:
    from .data.frames import Frame


class Model(eqx.Module):
    """A trained machine that is deployed: from raw inputs to values, labels and probabilities.

    A pytree: it may be part of a larger JAX model, is differentiable in the inputs and in every
    floating leaf, and `jax.jit(model)` works, as does `jax.export` with a symbolic number of rows.

    Attributes:
        expansion: the machine; takes raw inputs.
        path: all machines of a path, of which `expansion` is one; in standardised units.
        slopes: of the probabilities, one for each predicted class, see `predict_proba`.
        unseen: errors on rows not seen, see `interval` and `predict_set`.
        code: of more than two classes.
        decoding: how the values of its problems become a class (static).
        labels: the classes in sorted order; of two, a value >= 0 decides for the second (static).
        label_dtype: NumPy's name of their type (static).
        columns: how a table becomes inputs, if the model was trained on one (static).
        about: how it was trained: method, metric, error; what JSON can hold (static).
    """

    expansion: KernelExpansion
    path: SparsePath | SizedPath | None = None
    slopes: Float[Array, " k"] | Float[np.ndarray, " k"] | None = None
    unseen: Unseen | None = None
    code: Code | None = None
    decoding: Decoding = eqx.field(default="loss", static=True)
    labels: tuple[Any, ...] | None = eqx.field(default=None, static=True)
    label_dtype: str = eqx.field(default="", static=True)
    columns: Schema | None = eqx.field(default=None, static=True)
    about: "About" = eqx.field(default_factory=lambda: About(), static=True)

    # As a function for `jax.jit` a model is itself, whatever numbers it holds.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    @property
    def classes(self) -> np.ndarray | None:
        """Labels in sorted order."""
        return None if self.labels is None else np.array(self.labels, dtype=self.label_dtype)

    @property
    def dtype(self) -> np.dtype:
        """In which it computes."""
        return np.dtype(self.expansion.prototypes.dtype)

    @property
    def size(self) -> int:
        """Number of prototypes."""
        return self.expansion.prototypes.shape[0]

    def __call__(self, X: Float[Array, "n d"] | Float[np.ndarray, "n d"]) -> Float[Array, "n *c"]:
        """Values of the expansion at raw inputs, shape `n` or `n c`; pure and differentiable."""
        return self.expansion(X)

    def at(self, size: int) -> "Model":
        """The model with so many prototypes, of a path; its errors on unseen rows are not known.

        Raises:
            ValueError: if the path is not that long, or there is none.
        """
        if self.path is None:
            whole_number("size", size, self.size, self.size, "the only size, as there is no path")
            return self
        with jax.enable_x64(self.dtype == np.float64):
            chosen = dataclasses.replace(self.path.at(size), scaling=self.expansion.scaling)
        about = About({**self.about, "n_prototypes": chosen.prototypes.shape[0]})
        return dataclasses.replace(self, expansion=chosen, slopes=None, unseen=None, about=about)

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores, the largest for the predicted class; of a regression the values.

        Args:
            X: raw inputs of shape `n d`, or one row of shape `d`; or a table with the columns the
                model was trained on, in any order.

        Returns:
            Shape `n` for two classes, positive for the second; for more `n k`, the negative
            distances from the classes' codes. Of one row an array without the axis of rows.

        Raises:
            ValueError: for inputs that are not finite, or of other columns.
            NumericalError: if a value of the model is not finite, which is no decision, naming the
                row.
        """
        return self._rows(X, self.scores)

    def predict(self, X: Any) -> np.ndarray:
        """Labels of the classes, or values of the regression; arguments as `decision_function`."""

        def decide(inputs: np.ndarray) -> np.ndarray:
            scores, classes = self.scores(inputs), self.classes
            return scores if classes is None else classes[decisions(scores)]

        return self._rows(X, decide)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes in their order, shape `n k`.

        The softmax of the scores times a slope, one for each predicted class, fitted to the scores
        that cross-validation gave for rows the machine had not seen. The most probable class is the
        predicted one. Arguments as `decision_function`.

        Raises:
            ValueError: for a regression, or a model without out-of-fold scores.
        """
        slopes = self.slopes
        if slopes is None:
            why = (
                "this model has no classes"
                if self.labels is None
                else ("train with out_of_fold=True; a size other than the one chosen has none")
            )
            raise ValueError(f"predict_proba: expected a model with calibrated scores; {why}")
        return self._rows(X, lambda inputs: probabilities(self.scores(inputs), np.asarray(slopes)))

    def interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Ends of intervals that hold the target of a new row with probability `coverage`.

        From the errors that were made on rows not seen. If rows are exchangeable:

        - of a model that is `calibrated` by rows of its own: the probability is at least `coverage`
          (split conformal prediction);
        - trained with `out_of_fold="machines"`: at least `2 coverage - 1`, but for a term of order
          `1 / sqrt(n)`, and usually close to `coverage`: CV+ of Barber et al. 2021, Theorem 4, and
          in the dual jackknife+, Theorem 1. Approximate all the same, as kernel, `C`, prototypes
          and scaling were chosen by the same rows. The values of the folds' machines are the
          centres; the value of the model need not be inside, though it nearly always is;
        - else nothing is guaranteed. It is close to `coverage` where a machine of all rows differs
          little from those of the folds. So it is for several targets at once: each has its own.

        Args:
            X: raw inputs or a table, as for `decision_function`.
            coverage: between 0 and 1; with the errors of n rows at most `n / (n + 1)`.

        Returns:
            Lower and upper ends, shape `n 2`, or `n c 2` for several targets; of one row without
            the axis of rows.

        Raises:
            ValueError: for a classifier, or a model whose errors on unseen rows are not known.
        """
        if self.labels is not None:
            raise ValueError("interval: expected a regression; of classes see `predict_set`")
        unseen = self._known("interval")

        def ends(inputs: np.ndarray) -> np.ndarray:
            fold = None if unseen.fold is None else np.asarray(unseen.fold)
            return intervals(self._by_machines(inputs), np.asarray(unseen.errors), fold, coverage)

        return self._rows(X, ends)

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Sets of classes that hold the class of a new row with probability `coverage`.

        A class is in it unless it is further behind the best of the others, by its score, than the
        own classes of most rows not seen. The guarantees are those of `interval` (of CV+, Romano et
        al. 2020, Theorem 3). A set may have no class, where several are as good as each other and
        mistakes are rare.

        Args:
            X: raw inputs or a table, as for `decision_function`.
            coverage: between 0 and 1; with the errors of n rows at most `n / (n + 1)`.

        Returns:
            Whether each class is in the set, in the order of `classes`, shape `n k`; of one row
            without the axis of rows.

        Raises:
            ValueError: for a regression, or a model whose errors on unseen rows are not known.
        """
        if self.labels is None:
            raise ValueError("predict_set: expected a classifier; of numbers see `interval`")
        unseen, k = self._known("predict_set"), len(self.labels)

        def inside(inputs: np.ndarray) -> np.ndarray:
            values = self._by_machines(inputs)
            scores = scores_of(values.reshape(-1, *values.shape[2:]), self.code, self.decoding)
            apart = behind(scores).reshape(*values.shape[:2], k)
            fold = None if unseen.fold is None else np.asarray(unseen.fold)
            return sets(apart, np.asarray(unseen.errors), fold, coverage)

        return self._rows(X, inside)

    def calibrated(self, X: Any, y: Any) -> "Model":
        """The model with intervals and sets by rows that nothing in it has seen.

        Split conformal prediction: exact for exchangeable rows, whatever the model.

        Args:
            X: raw inputs or a table, as for `decision_function`.
            y: their targets or classes, shape `n` or `n c`.

        Raises:
            ValueError: for targets that do not fit the rows or the model.
        """
        inputs, single = self._inputs(X)
        truth = np.asarray(y)[None] if single else np.asarray(y)
        scores = self.scores(inputs)
        if self.labels is None:
            if truth.shape != scores.shape or truth.dtype.kind not in "biuf":
                raise ValueError(
                    f"y: expected numbers of shape {scores.shape}, got {truth.dtype} of shape "
                    f"{truth.shape}"
                )
            check_finite("y", truth)
            return dataclasses.replace(self, unseen=unseen_numbers(scores, truth, held_out=True))
        place = {label: number for number, label in enumerate(self.labels)}
        unknown = set(truth.reshape(-1).tolist()) - set(place)
        if truth.shape != (len(inputs),) or unknown:
            raise ValueError(
                f"y: expected {len(inputs)} labels among {list(place)}, got shape {truth.shape}"
                + (f" with {sorted(unknown, key=str)[:5]}" if unknown else "")
            )
        numbers = np.array([place[label] for label in truth.tolist()], int)
        return dataclasses.replace(self, unseen=unseen_classes(scores, numbers, held_out=True))

    def relevance(self, names: Sequence[Any] | None = None) -> Relevance:
        """How much each column has to say in the kernel: 1 for the most relevant, 0 for none.

        Columns that share one lengthscale are listed in `shared`: the kernel does not tell how they
        differ. Columns in `switched_off`, of relevance 0, have a lengthscale more than 50 times the
        shortest. All others have a lengthscale that no other column has.

        Relevance is the inverse of a column's lengthscale, which is in units of the column's
        standard deviation, over the largest inverse. The categories of a column together have the
        root of the sum of their squares, its part in the mean squared distance of two rows. In a
        product of kernels squares add up, in a sum they are averaged, with the variances of its
        parts as weights.

        Args:
            names: of the inputs; by default those of the table that the model was trained on, or
                x0, x1, ..

        Returns:
            A dict of name to relevance, in the order of the columns.

        Raises:
            ValueError: for a kernel of one lengthscale for all columns, or of none.
        """
        expansion = self.expansion
        return relevance_of(expansion.kernel, expansion.prototypes.shape[1], self.columns, names)

    def _known(self, what: str) -> Unseen:
        if self.unseen is None:
            raise ValueError(
                f"{what}: expected a model whose errors on unseen rows are known; train with "
                "out_of_fold=True or see `calibrated`; a size other than the one chosen has none"
            )
        return self.unseen

    def _by_machines(self, inputs: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n v *l"]:
        """Values of the machines of the folds, or of the one there is, at raw inputs."""
        check_runtime()
        assert self.unseen is not None
        of = self.expansion
        if self.unseen.machines is not None:
            of = dataclasses.replace(self.unseen.machines, scaling=of.scaling)
        values = scores_of(_values(of, inputs), None, self.decoding)
        own = self.expansion.intercept
        return values.reshape(len(inputs), of.intercept.size // own.size, *own.shape)

    def scores(self, inputs: Float[np.ndarray, "n d"], *, first: int = 0) -> np.ndarray:
        """As `decision_function`, of an array; `first` is the number of its first row in errors."""
        check_runtime()
        return scores_of(_values(self.expansion, inputs), self.code, self.decoding, first=first)

    def _rows(self, X: Any, answer: Any) -> np.ndarray:
        inputs, single = self._inputs(X)
        found = answer(inputs)
        return found[0, ...] if single else found

    def _inputs(self, X: Any) -> tuple[np.ndarray, bool]:
        """Rows as the expansion takes them, and whether it was one."""
        from .data.frames import as_frame

        frame: Frame | None = as_frame(X)
        if frame is not None and self.columns is not None:
            return frame.encode(self.columns, self.dtype.name), False
        X = X if frame is None else np.asarray(frame.table)  # columns in their order
        single = frame is None and np.ndim(X) == 1
        with jax.enable_x64(self.dtype == np.float64):
            table = finite_rows(np.asarray(X)[None] if single else X)
        d = self.expansion.prototypes.shape[1]
        if table.shape[1] != d:
            raise ValueError(f"X: expected {d} columns, as in training, got {table.shape[1]}")
        return table, single

    def save(self, path: PathLike) -> None:
        """Write the model to a file, for `jsparse.load`; see `jsparse.save`."""
        from .model_files import save

        save(path, self)

    def __repr__(self) -> str:
        d = self.expansion.prototypes.shape[1]
        what = "regression" if self.labels is None else f"{len(self.labels)} classes"
        lines = [
            f"Model: {what}, {d} inputs, {self.size} prototypes, "
            f"{type(self.expansion.kernel).__name__} kernel, {self.dtype}"
        ]
        if self.path is not None:
            lines.append(f"  path: {_extent(self.path)}")
        if self.columns is not None:
            lines.append(f"  columns: {', '.join(c.name for c in self.columns.columns)}")
        if self.labels is not None:
            proba = "" if self.slopes is not None else "; no probabilities"
            lines.append(f"  classes: {', '.join(map(str, self.labels[:10]))}{proba}")
        if self.unseen is not None:
            what = "intervals" if self.labels is None else "sets"
            lines.append(f"  {what}: by {_EVIDENCE[self.unseen.guarantee]}")
        lines += [f"  {name}: {value}" for name, value in self.about.items() if value is not None]
        return few_lines(lines)


def _values(
    expansion: KernelExpansion, inputs: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n *l"]:
    """Values at raw inputs, by programs for a few numbers of rows."""
    dtype = np.dtype(expansion.prototypes.dtype)
    with np.errstate(over="ignore"), jax.enable_x64(dtype == np.float64):
        rows = padded(np.asarray(inputs, dtype), capacity(len(inputs)))
        return np.asarray(_padded(expansion)(rows))[: len(inputs)]


def _padded(expansion: KernelExpansion) -> KernelExpansion:
    """The same function with prototypes of weight 0 up to a size that many models share."""
    prototypes, coefficients = map(np.asarray, (expansion.prototypes, expansion.coefficients))
    m, kernel = capacity(len(prototypes)), expansion.kernel
    if isinstance(kernel, Mixture):
        which = as_array(padded(np.asarray(kernel.which), m))
        kernel = dataclasses.replace(kernel, which=which)
    return dataclasses.replace(
        expansion,
        kernel=kernel,
        prototypes=as_array(padded(prototypes, m)),
        coefficients=as_array(padded(coefficients, m, "constant")),
    )


def _extent(path: SparsePath | SizedPath) -> str:
    """Which sizes there are."""
    if isinstance(path, SparsePath):
        return f"at(1) to at({path.support.shape[-1]})"
    sizes = np.asarray(path.sizes)
    if len(sizes) == sizes[-1]:
        return f"at(1) to at({sizes[-1]})"
    return f"at(n) for n of {', '.join(map(str, sizes))}"


_EVIDENCE = {
    "held out": "rows held out",
    "folds": "the machines of the folds",
    "none": "errors out of fold",
}


class About(dict[str, Any]):
    """How a model was trained; as a static part of it told apart by identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__  # type: ignore[assignment]


_distances = jax.jit(distances, static_argnames="decoding")


def scores_of(
    values: Float[np.ndarray, "n *l"], code: Code | None, decoding: Decoding, *, first: int = 0
) -> np.ndarray:
    """Scores of the classes from the values of the machine.

    Raises:
        NumericalError: if a value is not finite, or too large to be compared with a code, with its
            row, of which the first has number `first`.
    """
    usable = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    scores = values
    if code is not None:
        with jax.enable_x64(values.dtype == np.float64):
            rows = padded(values, capacity(len(values)))
            matrix = np.asarray(code.matrix, values.dtype)
            scores = -np.asarray(_distances(matrix, rows, decoding))[: len(values)]
        usable &= np.isfinite(scores).all(axis=1)
    if not usable.all():
        row = int(np.argmin(usable)) + first
        raise NumericalError(
            f"the model's value at row {row} is not finite, or too large; the inputs are huge?"
        )
    return scores
