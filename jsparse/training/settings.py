"""The configuration of a run, checked before any work."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import ArrayLike, Float

from .._arguments import as_key, numbers, real, whole_number
from .._mesh import check_mesh, spans_processes
from .._programs import compiled
from .._repr import short_repr
from .._types import Key, KeyLike
from ..machines.method import Method, Metric, Task
from ..multiclass import Decoding, Scheme
from ..search.gradient import Automatic
from ..search.run import Progress
from ..search.strategies import Profile, Search, check_search
from ..search.tune import check_settings
from ..validation.folds import Folds
from ..validation.validate import Scoring
from .choices import KernelLike, template_of
from .inputs import ClassWeight
from .plan import SAMPLE_ROWS

NO_FOLD_MACHINES = (
    "out_of_fold: expected True or False for a stream or on several devices, as the machines of "
    "the folds are kept for rows in memory on one device; for intervals see Model.calibrated"
)


@dataclasses.dataclass(frozen=True)
class Multiclass:
    """How more than two classes become problems of two, and their values a class again.

    Args:
        scheme: "one_versus_rest", "one_versus_one", "minimum_output" or a matrix of codes, see
            `multiclass.output_code`.
        decoding: how the values of the problems become a class; see `multiclass.distances`.
        C_per_problem: let each problem have the `C` of the grid that is best for it, with the
            kernel they share.
        classes: all labels, should there be some of which no rows have come yet; by default those
            of `y`. For methods that need only sums.
    """

    scheme: Scheme | ArrayLike = "one_versus_rest"
    decoding: Decoding = "loss"
    C_per_problem: bool = False
    classes: Sequence[Any] | ArrayLike | None = None

    def check(self, method: Method) -> None:
        """Raise a `ValueError` for a scheme that is none, or settings that the method lacks."""
        if isinstance(self.scheme, str):
            if self.scheme not in get_args(Scheme):
                raise ValueError(
                    f"multiclass: expected one of {get_args(Scheme)}, a matrix of codes or a "
                    f"Multiclass, got {self.scheme!r}"
                )
        elif numbers("multiclass", self.scheme).ndim != 2:
            raise ValueError(f"multiclass: expected a matrix of codes, got {self.scheme!r}")
        if self.C_per_problem:
            method.check_C_per_problem()


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a run may take.

    Args:
        memory: bytes; by default what the device has left. See `plan`.
        max_seconds: no evaluation of the search starts later.
        mesh: devices that share the rows; the model is that of one device to rounding. For methods
            that need only sums. If they are devices of several processes, each of these processes
            calls `train` with the same rows and settings, and without `max_seconds`; `train`
            compares checksums of them, and refuses what differs. Without `memory` the least that
            any process has left counts.
        sample_rows: rows of a stream that are kept to choose points from and to score.
    """

    memory: int | None = None
    max_seconds: float = math.inf
    mesh: Mesh | None = None
    sample_rows: int = SAMPLE_ROWS

    def check(self, method: Method, search: Search) -> None:
        """Raise a `ValueError` for numbers out of range, or a mesh that is of no use."""
        whole_number("sample_rows", self.sample_rows, 2, 2**31 - 1, "the largest number")
        if self.memory is not None:
            real("memory", self.memory, 0.0)
        if self.mesh is None:
            return
        check_mesh(self.mesh)
        method.check_sums("mesh")
        if spans_processes(self.mesh) and self.max_seconds < math.inf:
            raise ValueError(
                "max_seconds: expected none in several processes, whose clocks could part them, "
                f"got {self.max_seconds}"
            )
        if not search.runs_on_mesh:
            raise ValueError(
                "search: expected Profile(..) or Annealing(..) with a mesh, got a "
                f"{type(search).__name__}"
            )


@dataclasses.dataclass(frozen=True)
class HoldOut:
    """A share of the rows of a stream that is held out to validate, instead of folds.

    De Brabanter 2010, Algorithm 4: one decomposition for each kernel instead of one for each fold.

    Args:
        share: of the rows, between 0 and 1.
    """

    share: float

    def check(self) -> None:
        """Raise a `ValueError` unless the share is between 0 and 1."""
        if not real("holdout", self.share, 0.0, above=True) < 1:
            raise ValueError(f"holdout: expected a share between 0 and 1, got {self.share}")


class Keys(NamedTuple):
    """Keys of the random decisions of a run."""

    points: Key
    folds: Key
    search: Key
    method: Key
    sample: Key

    __repr__ = short_repr


class Config(NamedTuple):
    """The arguments of `train`, checked as far as they can be without the rows."""

    task: Task
    keys: Keys
    method: Method
    kernel: KernelLike
    C: Float[np.ndarray, " s"]
    metric: Metric | None  # minimised and reported, if the caller named one
    search: Search
    folds: int | Folds | HoldOut | None  # None: as many as suit the number of rows
    multiclass: Multiclass
    class_weight: ClassWeight
    out_of_fold: bool | Literal["machines"]
    resources: Resources
    progress: Progress | None

    __repr__ = short_repr

    @property
    def compared(self) -> dict[str, Any]:
        """The settings that must be the same in all processes of a mesh, by argument."""
        settings = self._asdict()
        del settings["keys"], settings["progress"]
        return {**settings, "key": self.keys.points}


def configure(
    task: Task,
    key: KeyLike,
    method: Method,
    kernel: KernelLike,
    C: ArrayLike | None,
    search: Search | Literal["auto"],
    folds: int | Folds | HoldOut | Literal["auto"],
    metric: Metric | None,
    multiclass: Scheme | ArrayLike | Multiclass,
    class_weight: ClassWeight,
    out_of_fold: bool | Literal["machines"],
    resources: Resources,
    progress: Progress | None,
) -> Config:
    """Return the configuration; raise a `ValueError` for the first setting that makes no sense."""
    if task not in ("classification", "regression"):
        raise ValueError(f"task: expected 'classification' or 'regression', got {task!r}")
    if not isinstance(method, Method):
        raise ValueError(f"method: expected a method, such as FixedSize(..), got {method!r}")
    method.check(task)
    if not isinstance(multiclass, Multiclass):
        multiclass = Multiclass(multiclass)
    multiclass.check(method)
    if not isinstance(resources, Resources):
        raise ValueError(f"resources: expected a Resources, got {resources!r}")
    values_of_C = method.values_of_C(C)
    if isinstance(search, str) and search == "auto":
        search = Automatic()
    check_search(search)
    scoring = Scoring(method.metric(task) if metric is None else metric, multiclass.decoding)
    grid = check_settings(scoring, values_of_C, search, resources.max_seconds, progress)
    if task == "regression" and metric == "misclassification":
        raise ValueError("metric: expected 'mse' or 'mae' for regression")
    for_classes = {"class_weight": class_weight, "classes": multiclass.classes}
    for name, value in for_classes.items():
        if task == "regression" and value is not None:
            raise ValueError(f"{name}: expected None for regression")
    validation = _check_folds(folds)
    if not (isinstance(out_of_fold, bool) or out_of_fold == "machines"):
        raise ValueError(f"out_of_fold: expected True, False or 'machines', got {out_of_fold!r}")
    if out_of_fold == "machines" and resources.mesh is not None:
        raise ValueError(NO_FOLD_MACHINES)
    resources.check(method, search)
    if search.move_prototypes:
        method.check_movable()
    method.check_kernel(template_of(kernel, 1, Profile()))
    keys = Keys(*_five(as_key(key)))
    return Config(
        task, keys, method, kernel, grid, metric, search, validation, multiclass, class_weight,
        out_of_fold, resources, progress,
    )  # fmt: skip


def _check_folds(folds: Any) -> int | Folds | HoldOut | None:
    """Return the folds, None for "auto"; raise a `ValueError` if they are none."""
    if isinstance(folds, str) and folds == "auto":
        return None
    if isinstance(folds, Folds):
        return folds
    if not isinstance(folds, HoldOut):
        return whole_number("folds", folds, 2)
    folds.check()
    return folds


@functools.partial(compiled, quickly=True)
def _five(key: Key) -> list[Key]:
    return list(jax.random.split(key, 5))
