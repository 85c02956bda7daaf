"""The deployed model: a trained machine that maps raw inputs to predictions."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._arguments import finite_rows, finite_targets, numbers_of_labels, on_host, whole_number
from ._compilations import Compiled, count_compilations
from ._files import PathLike
from ._numerics import as_array, is_concrete, is_traced
from ._repr import few_lines
from .calibration import decisions, probabilities
from .conformal import (
    ConformalScores,
    errors_of_classes,
    errors_of_numbers,
    intervals,
    kept_errors,
    margin_deficit,
    sets,
)
from .data.frames import as_frame
from .data.schema import Schema
from .expansion import KernelExpansion
from .machines.family import Family
from .model_contents import Contents, write
from .multiclass import Code, Decoding
from .novelty import Novelty, calibration, novelty
from .prediction import Scorer
from .relevance import Relevance, relevance_of


def _without_diagnostics(family: Family | None) -> Family | None:
    """Return the family without its diagnostics, which programs do not need."""
    return None if family is None else dataclasses.replace(family, info={})


class Model(eqx.Module):
    """A trained machine that maps raw inputs to values, labels and probabilities.

    The model is a pytree. It may be part of a larger JAX model, and is differentiable in the inputs
    and in every floating leaf. `jax.jit(model)` works, and so does `jax.export` with a symbolic
    number of rows. `model(X)` returns the expansion's values; a classifier has a value for each
    binary problem. Users deploy `model.predict_proba`, `model.decision_function` or, for a
    regression, `model.predict`. Outside of JAX's transformations these take and return NumPy
    arrays. Within `jit`, `vmap`, `grad` and `jax.export` they take arrays or tracers, and return
    JAX arrays in the model's dtype without checking that values are finite.

    Attributes:
        expansion: the machine, which takes raw inputs.
        path: the machines of all sizes, including `expansion`, in standardised units and without
            the diagnostics of their fit.
        inverse_temperatures: a factor of the scores for each predicted class, see
            `predict_proba`.
        conformal: errors on held-out rows, see `interval` and `predict_set`.
        novelties: distances of rows from the span of the prototypes, see `novelty`.
        code: output code of more than two classes.
        decoding: name of the distance that decodes the values of the code's problems (static).
        labels: the classes in sorted order. Of two classes, a value >= 0 decides for the second
            (static).
        label_dtype: NumPy's name of the dtype of the labels (static).
        columns: schema that encodes a table as inputs, if the model was trained on one (static).
        about: record of the training, such as method, metric and error, in JSON types (static).
    """

    expansion: KernelExpansion
    path: Family | None = eqx.field(default=None, converter=_without_diagnostics)
    inverse_temperatures: Float[Array, " k"] | Float[np.ndarray, " k"] | None = None
    conformal: ConformalScores | None = None
    novelties: ConformalScores | None = None
    code: Code | None = None
    decoding: Decoding = eqx.field(default="loss", static=True)
    labels: tuple[Any, ...] | None = eqx.field(default=None, static=True)
    label_dtype: str = eqx.field(default="", static=True)
    columns: Schema | None = eqx.field(default=None, static=True)
    about: "About" = eqx.field(default_factory=lambda: About(), static=True)

    # `jax.jit` identifies a model by object identity, not by its numbers.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    @property
    def classes(self) -> np.ndarray | None:
        """Return the labels in sorted order."""
        return None if self.labels is None else np.array(self.labels, dtype=self.label_dtype)

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype in which the model computes."""
        return np.dtype(self.expansion.prototypes.dtype)

    @property
    def size(self) -> int:
        """Return the number of prototypes."""
        return self.expansion.prototypes.shape[0]

    def __call__(self, X: Float[Array, "n d"] | Float[np.ndarray, "n d"]) -> Float[Array, " n *c"]:
        """Return the expansion's values at raw inputs, shape `n` or `n c`; differentiable."""
        return self.expansion(X)

    def at(self, size: int) -> "Model":
        """Return the model of another size, without probabilities, intervals, sets and novelty.

        Raises:
            ValueError: if there is no machine of this size.
        """
        if self.path is None:
            whole_number("size", size, self.size, self.size, "the only size, as there is no path")
            return self
        with jax.enable_x64(self.dtype == np.float64):
            expansion = dataclasses.replace(self.path.at(size), scaling=self.expansion.scaling)
        about = About({**self.about, "n_prototypes": expansion.prototypes.shape[0]})
        return dataclasses.replace(
            self, expansion=expansion, inverse_temperatures=None, conformal=None, novelties=None,
            about=about,
        )  # fmt: skip

    def decision_function(self, X: Any) -> Any:
        """Return scores, which are largest for the predicted class, or the values of a regression.

        Differentiable in `X`, except for the signs that "hamming" decoding counts.

        Args:
            X: raw inputs of shape `n d`, or one row of shape `d`; or a table with the columns of
                training, in any order.

        Returns:
            For two classes shape `n`, positive for the second class. For more classes shape `n k`,
            the negative distances from the classes' codes. For one row without the axis of rows.

        Raises:
            ValueError: for inputs that are not finite, or that have other columns.
            NumericalError: if a value of the model is not finite; the message names the row.
        """
        return self._answer(X, self._scorer(), lambda scores, xp: scores)

    def predict(self, X: Any) -> Any:
        """Return predicted labels or values; see `decision_function` for the arguments.

        Raises:
            ValueError: under JAX's transformations, for labels that JAX's arrays cannot hold.
        """

        def decide(scores: Any, xp: Any) -> Any:
            classes = self.classes
            if classes is None:
                return scores
            return (classes if xp is np else _jax_labels(classes))[decisions(scores)]

        return self._answer(X, self._scorer(), decide)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes in their order, shape `n k`.

        They are the softmax of the scores times a slope. Each predicted class has a slope, fitted
        to the held-out scores of cross-validation. The predicted class is the most probable class.
        See `decision_function` for the arguments. Differentiable in `X` where the decision does not
        change.

        Raises:
            ValueError: for a regression, or a model without out-of-fold scores.
        """
        inverse_temperatures = self.inverse_temperatures
        if inverse_temperatures is None:
            hint = "train with out_of_fold=True; only the selected size has calibrated scores"
            hint = "this model has no classes" if self.labels is None else hint
            raise ValueError(f"predict_proba: expected a model with calibrated scores; {hint}")
        return self._answer(
            X, self._scorer(), lambda scores, xp: probabilities(scores, inverse_temperatures, xp)
        )

    def interval(self, X: Any, coverage: float = 0.9) -> Any:
        """Return the ends of intervals that hold a new row's target with probability `coverage`.

        The intervals come from errors on held-out rows. If rows are exchangeable:

        - for a model `calibrated` on separate rows, the probability is at least `coverage` (split
          conformal prediction);
        - for a model trained with `out_of_fold="machines"`, it is at least `2 coverage - 1` up to a
          term of order `1 / sqrt(n)`, and usually close to `coverage` (CV+, Barber et al. 2021,
          Theorem 4; for the dual, jackknife+, Theorem 1). The guarantee is approximate: kernel,
          `C`, prototypes and scaling were chosen on the same rows. The centres are the values of
          the folds' machines, so the value of the model may rarely lie outside its interval;
        - otherwise nothing is guaranteed. The probability is close to `coverage` if the machine of
          all rows differs little from the folds' machines.

        Each of several targets has separate intervals. The model keeps some hundred quantiles of
        the errors. If `1 - coverage` has at most two significant digits, as for 0.9, 0.95 and
        0.999, these quantiles give the intervals that all errors would give (with machines of the
        folds, for up to 99 rows each). Other coverages get the intervals of the next larger such
        coverage, so they are never too short.

        Args:
            X: raw inputs or a table, see `decision_function`.
            coverage: between 0 and 1, at most `n / (n + 1)` with the errors of n rows.

        Returns:
            Lower and upper ends, shape `n 2`, or `n c 2` for several targets; for one row without
            the axis of rows.

        Raises:
            ValueError: for a classifier, or a model without errors on held-out rows.
        """
        if self.labels is not None:
            raise ValueError("interval: expected a regression; of classes see `predict_set`")
        conformal = self._conformal_scores("interval")
        return self._answer(
            X,
            self._machines(conformal),
            lambda values, xp: intervals(_by_machine(values, conformal), conformal, coverage, xp),
        )

    def predict_set(self, X: Any, coverage: float = 0.9) -> Any:
        """Return sets of classes that hold a new row's class with probability `coverage`.

        The margin deficit of a class is the best score of the other classes less the score of the
        class. A class is in the set unless its deficit exceeds the deficits of the true class on
        most held-out rows. `interval` states the guarantees (for CV+, Romano et al. 2020, Theorem
        3). If mistakes are rare, a set may be empty where several classes have similar scores.

        Args:
            X: raw inputs or a table, see `decision_function`.
            coverage: between 0 and 1, at most `n / (n + 1)` with the errors of n rows.

        Returns:
            Whether each class is in the set, in the order of `classes`, shape `n k`; for one row
            without the axis of rows.

        Raises:
            ValueError: for a regression, or a model without errors on held-out rows.
        """
        if self.labels is None:
            raise ValueError("predict_set: expected a classifier; of numbers see `interval`")
        conformal, k = self._conformal_scores("predict_set"), len(self.labels)

        def in_set(scores: Any, xp: Any) -> Any:
            scores = _by_machine(scores, conformal)
            n, machines = scores.shape[:2]
            deficits = margin_deficit(scores.reshape(n * machines, *scores.shape[2:]), xp)
            return sets(deficits.reshape(n, machines, k), conformal, coverage, xp)

        return self._answer(X, self._machines(conformal), in_set)

    def warm_up(self) -> Compiled:
        """Compile the programs for predictions of any number of NumPy rows.

        Rows are padded to one of six numbers, each of which has a program. The machines of the
        folds have six more programs, for intervals and sets. Later predictions in this process
        compile nothing. Models with similar numbers of prototypes share programs.

        Returns:
            The number of compiled programs, and the seconds taken.

        Raises:
            UnusableJaxError: in a process forked after JAX had started.
        """
        with count_compilations() as compiled:
            self._scorer().warm_up()
            if self.conformal is not None and self.conformal.machines is not None:
                self._machines(self.conformal).warm_up()
        return compiled

    def calibrated(self, X: Any, y: Any) -> "Model":
        """Return the model with intervals and sets calibrated on rows that it was not trained on.

        This is split conformal prediction, which is exact for exchangeable rows and any model.

        Args:
            X: raw inputs or a table, see `decision_function`.
            y: targets or classes, shape `n` or `n c`.

        Raises:
            ValueError: for targets that do not fit the rows or the model.
        """
        inputs, single = self._inputs(X)
        truth = on_host("y", y)[None] if single else on_host("y", y)
        scores = self.scores(inputs)
        if self.labels is None:
            errors = errors_of_numbers(scores, finite_targets(truth, scores.shape))
        else:
            errors = errors_of_classes(scores, numbers_of_labels(truth, self.labels, len(inputs)))
        return dataclasses.replace(self, conformal=kept_errors(errors, held_out=True))

    def with_novelty(self, X: Any) -> "Model":
        """Return the model with the distribution of novelty in rows that are not novel.

        Args:
            X: raw inputs or a table, see `decision_function`; a hundred rows or more, best rows
                that the model was not trained on. A row that is a prototype counts with its
                distance from the other prototypes, as if it had been held out.

        Raises:
            ValueError: as `decision_function` for the inputs; for a `Mixture` of kernels.
        """
        inputs, _ = self._inputs(X)
        return dataclasses.replace(self, novelties=calibration(self.expansion, inputs))

    def novelty(self, X: Any) -> Novelty:
        """Return how novel rows are: far, in feature space, from the span of the prototypes.

        The p-value is the share of the rows of `with_novelty` that are at least as novel. It is
        valid if the new rows are exchangeable with these rows. If these rows include prototypes
        that were chosen for their distance from others, as by entropy, it is too large. A call
        factorises the prototypes' Gram matrix, in time `m^3 / 3`, and takes
        `m^2` operations for each row. Rounding limits distances to the root of epsilon: 1e-8, and
        3e-4 in float32.

        Args:
            X: raw inputs or a table, see `decision_function`. The distances are differentiable.

        Returns:
            Distances from 0 to 1 and p-values, shape `n`; for one row without the axis of rows.

        Raises:
            ValueError: for a model without the distribution of novelty.
        """
        if self.novelties is None:
            raise ValueError("novelty: expected a model of `with_novelty`, which calibrates it")
        traced = is_traced(self, X)
        inputs, single = self._traced_inputs(X) if traced else self._inputs(X)
        result = novelty(self.expansion, self.novelties, inputs, jnp if traced else np)
        return Novelty(*(a[0, ...] for a in result)) if single else result

    def standardised(self, X: Any) -> Float[Array, "n d"]:
        """Return rows in the units of the kernel and the prototypes, as a JAX array.

        See `decision_function` for the arguments.
        """
        inputs, _ = self._traced_inputs(X) if is_traced(self, X) else self._inputs(X)
        scaling = self.expansion.scaling
        with jax.enable_x64(self.dtype == np.float64):
            rows = as_array(inputs, self.dtype)
            return rows if scaling is None else scaling.apply(rows)

    def relevance(self, names: Sequence[Any] | None = None) -> Relevance:
        """Return the relevance of each column in the kernel: 1 for the most relevant, 0 for none.

        Columns that share one lengthscale are listed in `shared`; the kernel does not distinguish
        them. Columns in `switched_off`, of relevance 0, have a lengthscale more than 50 times the
        shortest. Each other column has a different lengthscale.

        Relevance is the inverse of a column's lengthscale, divided by the largest inverse.
        Lengthscales are in units of the columns' standard deviations. The relevance of a column of
        categories is the root of the sum of squares over its indicators, its share in the mean
        squared distance of two rows. For a product of kernels squares are added. For a sum they are
        averaged, weighted by the variances of the parts.

        Args:
            names: names of the inputs; by default the columns of the table used in training, or
                x0, x1, ..

        Returns:
            A dict of name to relevance, in the order of the columns.

        Raises:
            ValueError: for a kernel with one common lengthscale, or without lengthscales.
        """
        expansion = self.expansion
        return relevance_of(expansion.kernel, expansion.prototypes.shape[1], self.columns, names)

    def _conformal_scores(self, what: str) -> ConformalScores:
        if self.conformal is None:
            raise ValueError(
                f"{what}: expected a model with errors on held-out rows; train with "
                "out_of_fold=True or see `calibrated`; only the selected size has such errors"
            )
        return self.conformal

    def _scorer(self) -> Scorer:
        """Return the scorer of the model."""
        matrix = None if self.code is None else self.code.matrix
        return Scorer(self.expansion, matrix, self.decoding)

    def _machines(self, conformal: ConformalScores) -> Scorer:
        """Return the scorer of the folds' machines, or of the model without such machines."""
        if conformal.machines is None:
            return self._scorer()
        machines = dataclasses.replace(conformal.machines, scaling=self.expansion.scaling)
        outputs = self.expansion.intercept.shape
        return self._scorer()._replace(expansion=machines, outputs=outputs)

    def scores(self, inputs: Float[np.ndarray, "n d"], *, first: int = 0) -> np.ndarray:
        """Return the scores of an array; error messages count rows from `first`."""
        return self._scorer().on_host(inputs, first=first)

    def _answer(self, X: Any, scorer: Scorer, answer: Callable[[Any, Any], Any]) -> Any:
        """Return `answer(scores, numpy)`, or `answer(scores, jax.numpy)` while JAX is tracing."""
        if is_traced(self, X):
            inputs, single = self._traced_inputs(X)
            result = answer(scorer(inputs), jnp)
        else:
            inputs, single = self._inputs(X)
            result = answer(scorer.on_host(inputs), np)
        return result[0, ...] if single else result

    def _traced_inputs(self, X: Any) -> tuple[Any, bool]:
        """Return the rows of a traced input, and whether the input was one row."""
        if not isinstance(X, jax.Array):  # a table, or rows of NumPy
            return self._inputs(X)
        single = X.ndim == 1
        return X[None] if single else X, single

    def _inputs(self, X: Any) -> tuple[np.ndarray, bool]:
        """Return the rows of an input as an array, and whether the input was one row."""
        frame = as_frame(X)
        if frame is not None and self.columns is not None:
            return frame.encode(self.columns, self.dtype.name), False
        X = X if frame is None else np.asarray(frame.table)  # columns in the order of training
        single = frame is None and np.ndim(X) == 1
        with jax.enable_x64(self.dtype == np.float64):
            table = finite_rows(on_host("X", X)[None] if single else X)
        d = self.expansion.prototypes.shape[1]
        if table.shape[1] != d:
            raise ValueError(f"X: expected {d} columns, as in training, got {table.shape[1]}")
        return table, single

    def save(self, path: PathLike) -> None:
        """Write the model to a file for `jsparse.load`; `jsparse.save` describes the contents.

        Raises:
            ValueError: see `jsparse.save`.
            OutputError: if the file cannot be written.
        """
        contents = Contents(
            self.expansion, self.path, self.inverse_temperatures, self.conformal, self.novelties,
            self.code, self.decoding, self.labels, self.label_dtype, self.columns, self.about,
        )  # fmt: skip
        write(path, contents)

    def __repr__(self) -> str:
        d = self.expansion.prototypes.shape[1]
        what = "regression" if self.labels is None else f"{len(self.labels)} classes"
        lines = [
            f"Model: {what}, {d} inputs, {self.size} prototypes, "
            f"{type(self.expansion.kernel).__name__} kernel, {self.dtype}"
        ]
        if self.path is not None:
            lines.append(f"  path: {_sizes_in_words(self.path)}")
        if self.columns is not None:
            lines.append(f"  columns: {', '.join(c.name for c in self.columns.columns)}")
        if self.labels is not None:
            proba = "" if self.inverse_temperatures is not None else "; no probabilities"
            lines.append(f"  classes: {', '.join(map(str, self.labels[:10]))}{proba}")
        if self.conformal is not None:
            what = "intervals" if self.labels is None else "sets"
            lines.append(f"  {what}: by {_EVIDENCE[self.conformal.guarantee]}")
        lines += [f"  {name}: {value}" for name, value in self.about.items() if value is not None]
        return few_lines(lines)


def _by_machine(values: Any, conformal: ConformalScores) -> Any:
    """Return values with an axis of machines after the axis of rows."""
    return values[:, None] if conformal.machines is None else values


def _sizes_in_words(family: Family) -> str:
    if not is_concrete(family.sizes):
        return f"{family.n_sizes} sizes"
    sizes = np.asarray(family.sizes)
    if len(sizes) == sizes[-1]:
        return f"at(1) to at({sizes[-1]})"
    return f"at(n) for n of {', '.join(map(str, sizes))}"


_EVIDENCE = {
    "held out": "rows held out",
    "folds": "the machines of the folds",
    "none": "errors out of fold",
}


class About(dict[str, Any]):
    """A record of how a model was trained; compared by identity, as a static part of the model."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__  # type: ignore[assignment]


def _jax_labels(classes: np.ndarray) -> jax.Array:
    """Return labels as a JAX array.

    Raises:
        ValueError: if they are not numbers, or JAX's dtypes do not hold them.
    """
    labels = None
    if classes.dtype.kind in "biuf":
        held = classes.astype(jax.dtypes.canonicalize_dtype(classes.dtype))
        labels = jnp.asarray(held) if np.array_equal(held, classes) else None
    if labels is None:
        raise ValueError(
            f"predict: expected labels that JAX's arrays hold, as it is traced by jit, vmap, grad "
            f"or jax.export, got labels of dtype {classes.dtype}; use decision_function or "
            "predict_proba there, and Model.classes outside"
        )
    return labels
