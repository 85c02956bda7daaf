"""The deployed model: a trained machine that maps raw inputs to predictions."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._arguments import finite_targets, numbers_of_labels, whole_number
from ._compilations import Compiled, count_compilations
from ._files import PathLike
from ._numerics import as_array, is_concrete, is_traced
from ._repr import few_lines
from .conformal import ConformalScores, conformal_scores, errors_of_numbers, errors_of_scores
from .expansion import KernelExpansion
from .machines.family import Family
from .model_answers import (
    ModelAnswers,
    inputs_of,
    scorer_of,
    scores_of_rows,
    targets_of,
    traced_inputs,
)
from .model_contents import Contents, write
from .model_exports import ModelExports
from .multiclass import Code, Decoding
from .novelty import Novelty, calibration, novelty
from .predictor.checks import NameRow, row_index
from .predictor.schema import Schema
from .relevance import Relevance, relevance_of
from .serialization import caster


def _without_diagnostics(family: Family | None) -> Family | None:
    """Return the family without its diagnostics, which programs do not need."""
    return None if family is None else dataclasses.replace(family, info={})


class Model(eqx.Module, ModelAnswers, ModelExports):
    """A trained machine that maps raw inputs to values, labels and probabilities.

    The model is a pytree. It may be part of a larger JAX model, and is differentiable in the inputs
    and in every floating leaf. `jax.jit(model)` works, and so does `jax.export` with a symbolic
    number of rows. `model(X)` returns the expansion's values, sorted if they are quantiles; a
    classifier has a value for each binary problem. Users deploy `model.predict_proba`,
    `model.decision_function` or, for a regression, `model.predict`. Outside of JAX's
    transformations these take and return NumPy arrays. Within `jit`, `vmap`, `grad` and
    `jax.export` they take arrays or tracers, and return JAX arrays in the model's dtype without
    checking that values are finite.

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
        quantiles: the quantiles of the target that the values estimate, in increasing order; empty
            for a model of means or classes. Several are the columns of the values, which are
            sorted in each row, so that they never cross (static).
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
    quantiles: tuple[float, ...] = eqx.field(default=(), static=True)
    columns: Schema | None = eqx.field(default=None, static=True)
    about: "About" = eqx.field(default_factory=lambda: About(), static=True)

    # `jax.jit` identifies a model by object identity, not by its numbers.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    @property
    def classes(self) -> np.ndarray | None:
        """Return the labels in sorted order; None for a regression."""
        return None if self.labels is None else np.array(self.labels, dtype=self.label_dtype)

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype in which the model computes."""
        return np.dtype(self.expansion.prototypes.dtype)

    @property
    def size(self) -> int:
        """Return the number of prototypes."""
        return self.expansion.prototypes.shape[0]

    def astype(self, dtype: Literal["float32", "float64"]) -> "Model":
        """Return the model in another dtype, as `jsparse.load(path, dtype=...)` does.

        Raises:
            ValueError: for another dtype, for float64 while it is switched off in JAX, or for a
                value too large for the dtype.
        """
        leaves, structure = jax.tree_util.tree_flatten_with_path(self)
        cast = caster("model", {}, dtype)
        changed = [cast(jax.tree_util.keystr(path), np.asarray(a)) for path, a in leaves]
        model = jax.tree.unflatten(structure, changed)
        # Files hold these in float64, so that probabilities do not depend on the dtype.
        return dataclasses.replace(model, inverse_temperatures=self.inverse_temperatures)

    def __call__(self, X: Float[Array, "*n d"] | Float[np.ndarray, "*n d"]) -> Float[Array, "..."]:
        """Return the expansion's values, shape `n` or `n c`; quantiles are sorted in each row.

        Differentiable. One row of shape `d` gives values without the axis of rows.
        """
        values = self.expansion(X)
        return jnp.sort(values, axis=-1) if self._sorts_quantiles else values

    def at(self, size: int) -> "Model":
        """Return the model of one size, without the `path`; its file holds this size alone.

        Only the selected size keeps probabilities, intervals, sets and novelty.

        Raises:
            ValueError: if `size` is not a whole number, or there is no machine of this size.
        """
        size = whole_number("size", size, 0)
        if self.path is None:
            if size != self.size:
                raise ValueError(
                    f"size: expected {self.size}, the only size of this model, got {size!r}; if it "
                    "came from `at`, take the model before; for every size up to m train with "
                    "n_prototypes=m (jsparse fit --prototypes m), or see jsparse.distil"
                )
            return self
        with jax.enable_x64(self.dtype == np.float64):
            expansion = dataclasses.replace(self.path.at(size), scaling=self.expansion.scaling)
        about = About({**self.about, "n_prototypes": expansion.prototypes.shape[0]})
        model = dataclasses.replace(self, expansion=expansion, path=None, about=about)
        # A path for each class has fewer sizes than prototypes, so compare the machines.
        if np.array_equal(expansion.coefficients, self.expansion.coefficients):
            return model
        about.pop("cv_error", None)  # the recorded error is the error of the selected size
        return dataclasses.replace(model, inverse_temperatures=None, conformal=None, novelties=None)

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
            scorer_of(self).warm_up()
            if self.conformal is not None and self.conformal.machines is not None:
                scorer_of(self, by_fold=True).warm_up()
        return compiled

    def calibrated(self, X: Any, y: Any) -> "Model":
        """Return the model with intervals and sets calibrated on rows that it was not trained on.

        This is split conformal prediction, which is exact for exchangeable rows and any model.

        Args:
            X: raw inputs or a table, see `decision_function`.
            y: targets or classes, shape `n` or `n c`; of a table also the name of a column.

        Raises:
            ValueError: for targets that do not fit the rows or the model.
        """
        inputs, single = inputs_of(self, X)
        truth = targets_of(self, X, y)
        truth = truth[None] if single else truth
        scores = self.scores(inputs)
        if self.labels is None:
            shape = scores.shape[:1] if self._sorts_quantiles else scores.shape
            errors = errors_of_numbers(scores, finite_targets(truth, shape))
        else:
            errors = errors_of_scores(scores, numbers_of_labels(truth, self.labels, len(inputs)))
        return dataclasses.replace(self, conformal=conformal_scores(errors, held_out=True))

    def with_novelty(self, X: Any) -> "Model":
        """Return the model with the distribution of novelty in rows that are not novel.

        Args:
            X: raw inputs or a table, see `decision_function`; a hundred rows or more, best rows
                that the model was not trained on. A row that is a prototype counts with its
                distance from the other prototypes, as if it had been held out.

        Raises:
            ValueError: as `decision_function` for the inputs; for a `Mixture` of kernels.
        """
        inputs, _ = inputs_of(self, X)
        return dataclasses.replace(self, novelties=calibration(self.expansion, inputs))

    def novelty(self, X: Any) -> Novelty:
        """Return how far rows are, in feature space, from the span of the prototypes.

        The p-value is the share of the rows of `with_novelty` that are at least as novel. It is
        valid if the new rows are exchangeable with the rows of `with_novelty`. It is too large if
        these include prototypes that were chosen for their distance from others, as by entropy. A
        call factorises the prototypes' Gram matrix, in time `m^3 / 3`, and takes `m^2` operations
        for each row. Rounding limits distances to the root of epsilon: 1e-8, and 3e-4 in float32.

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
        inputs, single = (traced_inputs if traced else inputs_of)(self, X)
        result = novelty(self.expansion, self.novelties, inputs, jnp if traced else np)
        return Novelty(*(a[0, ...] for a in result)) if single else result

    def standardised(self, X: Any) -> Float[Array, "n d"]:
        """Return rows in the units of the prototypes, as a JAX array; see `decision_function`."""
        inputs, _ = (traced_inputs if is_traced(self, X) else inputs_of)(self, X)
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

    def scores(
        self,
        inputs: Float[np.ndarray, "n d"],
        *,
        name_row: NameRow = row_index,
        by_fold: bool = False,
    ) -> np.ndarray:
        """Return the scores of the classes, or the values of a regression, shape `n *k`.

        Args:
            inputs: raw inputs, finite; a table must be encoded first.
            name_row: names a row in error messages, given its index; by default "row index 4".
            by_fold: return the scores by the machines of `v` folds, shape `n v *k`. A model without
                such machines ignores it.
        """
        return scores_of_rows(self, inputs, name_row=name_row, by_fold=by_fold)

    def save(self, path: PathLike) -> None:
        """Write the model to a file for `jsparse.load`; `jsparse.save` describes the contents.

        Raises:
            ValueError: see `jsparse.save`.
            OutputError: if the file cannot be written.
        """
        write(path, Contents(*(getattr(self, name) for name in Contents._fields)))

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
        if self.quantiles:
            lines.append(f"  quantiles: {', '.join(f'{q:g}' for q in self.quantiles)}")
        if self.conformal is not None:
            what = "intervals" if self.labels is None else "sets"
            lines.append(f"  {what}: by {_EVIDENCE[self.conformal.guarantee]}")
        lines += [f"  {name}: {value}" for name, value in self.about.items() if value is not None]
        return few_lines(lines)


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
