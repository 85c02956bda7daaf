"""Constructors and documentation of the estimators, generated from the methods' settings."""

import dataclasses
import functools
import inspect
import math
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union

import numpy as np

from .._repr import short_repr
from .._types import CountLike, ScalarLike
from ..kernels import Kernel
from ..search.strategies import Search

# The names of method settings that scikit-learn spells otherwise.
_RENAMED = {"max_iterations": "max_iter"}


@dataclasses.dataclass
class SharedParameters:
    """The parameters of the estimators that do not depend on the method.

    Args:
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic", "linear",
            "polynomial", or "auto" for the family with the lowest error on a sample of the rows),
            or a `jsparse.kernels` object in units of standardised inputs. For pursuits also a list
            of kernels; every candidate then has one atom for each kernel.
        lengthscale: "auto" to tune the kernel; a number, or one for each column, to set the
            lengthscale; None to use a kernel object without tuning.
        categories: how a table's categories become inputs: "indicators" makes a column for each
            category, "kernel" compares categories in the kernel, see `jsparse.kernels.Mixed`.
        columns: scaling of input columns: "standard" to mean 0 and variance 1; "ranks" to normal
            scores of their ranks, which suits heavy tails; "auto" for the scaling with the lower
            error on a sample of the rows.
        C: "auto" to tune the weight of the data-fit term, or a number.
        multiclass: how several classes become binary problems: "one_versus_rest",
            "one_versus_one", "minimum_output", or a matrix with the code of a class in each row.
        class_weight: weight factors by class label; "balanced" for equal total weights; None for 1.
        cv: number of folds, a splitter, or a list of splits that hold out each row once; "auto" for
            10 or, with methods that take much longer for each fold, 5; at most the number of rows.
        out_of_fold: whether to keep the held-out errors, which calibrate probabilities, intervals
            and sets; "machines" also keeps the machines of the folds, see `jsparse.train`.
        search: "profile" (one lengthscale), "gradient" or "recursive" (a lengthscale for every
            column), "annealing", "auto" ("gradient" from 100 rows on, else "profile"), or a search
            such as `jsparse.Gradient(...)`.
        max_evaluations: limit of the evaluations of the search; None for the default of the search.
        max_seconds: time limit of the search in seconds; no evaluation starts later.
        warm_start: start the search where the search of the last `fit` ended.
        verbose: 1 to print the progress of the search on standard error.
        random_state: random seed of the prototypes, folds and search.
    """

    kernel: str | Kernel | Sequence[Kernel] = "rbf"
    lengthscale: Any = "auto"
    categories: Literal["indicators", "kernel"] = "indicators"
    columns: Literal["standard", "ranks", "auto"] = "standard"
    C: float | str = "auto"
    multiclass: Any = "one_versus_rest"
    class_weight: str | Mapping[Any, float] | None = None
    cv: Any = "auto"
    out_of_fold: bool | Literal["machines"] = True
    search: str | Search = "profile"
    max_evaluations: int | None = None
    max_seconds: float = math.inf
    warm_start: bool = False
    verbose: int = 0
    random_state: int | np.random.RandomState | None = None


_ATTRIBUTES = {
    "classes_": "labels in sorted order.",
    "prototypes_": "shape `(n_prototypes, n_features)`, in the units of the inputs.",
    "prototype_indices_": "row numbers of the prototypes, if they are rows chosen before the fit.",
    "n_prototypes_": "the chosen number of prototypes, if several were compared.",
    "sizes_": "the compared numbers of prototypes.",
    "errors_": "cross-validated error of each of `sizes_`.",
    "standard_errors_": "standard error of each of `errors_`.",
    "dual_coef_": "coefficients, shape `(n_prototypes,)`; or a column for each problem or target.",
    "intercept_": "intercept, one number for each problem or target.",
    "model_": "the model to deploy, a `jsparse.Model`.",
    "expansion_": "the machine of `model_`, a `KernelExpansion`.",
    "kernel_": "the tuned kernel.",
    "C_": "the tuned C; None for a method without C.",
    "cv_error_": "cross-validated error.",
    "oob_prediction_": "held-out prediction of each row.",
    "oob_decision_function_": "held-out class probabilities of each row.",
    "n_iter_": "number of evaluations in the search.",
    "tuning_history_": "all evaluations of the search.",
    "n_features_in_": "number of columns.",
    "feature_names_in_": "names of the columns, if the inputs had names.",
}


class Parameter(NamedTuple):
    """A parameter of an estimator's constructor."""

    name: str
    default: Any
    type: str  # as written in the stub
    text: str  # the description in the estimator's docstring

    __repr__ = short_repr

    def optional(self, note: str) -> "Parameter":
        """Return the parameter with the default None, whose meaning `note` states."""
        return Parameter(self.name, None, f"{self.type} | None", f"{self.text} None: {note}")


def parameters_of(settings: type, omitted: Iterable[str] = ()) -> dict[str, Parameter]:
    """Return an estimator's parameters by field name, for all fields except names in `omitted`.

    `settings` is a dataclass, a method or `SharedParameters`. Its docstring describes the fields.
    """
    texts = argument_texts(settings)
    return {
        field.name: Parameter(
            _RENAMED.get(field.name, field.name), field.default, type_text(field.type),
            texts[field.name],
        )
        for field in dataclasses.fields(settings)
        if field.name not in omitted
    }  # fmt: skip


def constructor(parameters: list[Parameter], positional: int) -> Callable[..., None]:
    """Return an `__init__` that stores its arguments as attributes, with an explicit signature.

    Args:
        parameters: parameters of the constructor.
        positional: the number of parameters that may be passed by position.
    """
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    instance = inspect.Parameter("self", kinds[0])
    inspected = [
        inspect.Parameter(p.name, kinds[i >= positional], default=p.default, annotation=p.type)
        for i, p in enumerate(parameters)
    ]
    signature = inspect.Signature([instance, *inspected])

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        bound.apply_defaults()
        for parameter in parameters:
            setattr(self, parameter.name, bound.arguments[parameter.name])

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


def documentation(summary: str, parameters: list[Parameter], classifier: bool) -> str:
    """Return the docstring of a classifier or regressor: summary, parameters and attributes."""
    absent = ("oob_prediction_",) if classifier else ("classes_", "oob_decision_function_")
    attributes = {name: text for name, text in _ATTRIBUTES.items() if name not in absent}
    arguments = {parameter.name: parameter.text for parameter in parameters}
    sections = section("Args:", arguments), section("Attributes:", attributes)
    return "\n\n".join([inspect.cleandoc(summary), *sections]) + "\n"


def section(head: str, texts: Mapping[str, str]) -> str:
    """Return a section of a docstring, with an entry for each name and its text."""
    return "\n".join([head, *(_entry(name, text) for name, text in texts.items())])


# Most estimators share most entries, so the cache shortens the import.
@functools.cache
def _entry(name: str, text: str) -> str:
    """Return an entry of a docstring's section, wrapped into lines."""
    return textwrap.fill(
        f"{name}: {text}", 92, initial_indent=" " * 4, subsequent_indent=" " * 8,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


@functools.cache
def argument_texts(settings: type) -> dict[str, str]:
    """Return the description of each field, from the `Args:` of a class and its parents."""
    texts: dict[str, str] = {}
    for parent in reversed(settings.__mro__):
        section = re.search(
            r"\nArgs:\n(.*?)(?:\n\S|\Z)", inspect.cleandoc(parent.__doc__ or ""), re.S
        )
        for entry in re.split(r"\n(?= {4}\w)", section[1]) if section else ():
            name, text = entry.strip().split(":", 1)
            texts[name] = " ".join(text.split())
    return texts


def type_text(kind: Any) -> str:
    """Return a type as text for a stub: `ScalarLike` becomes float, and `CountLike` int."""
    if kind is CountLike:
        return "int"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"Literal[{', '.join(map(_quoted, arguments))}]"
    if origin in (Union, types.UnionType):
        scalar = typing.get_args(ScalarLike)
        if {*scalar} <= {*arguments}:
            arguments = (float, *(each for each in arguments if each not in scalar))
        return " | ".join(map(type_text, arguments))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(type_text, arguments))}]"
    return {None: "None", types.NoneType: "None", Any: "Any"}.get(kind) or kind.__name__


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
