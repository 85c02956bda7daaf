"""The configuration of a run, checked before any work on the rows."""

import dataclasses
import difflib
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import ArrayLike, Float

from .._arguments import as_key, numbers, real, whole_number
from .._files import PathLike
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
from ..validation.losses import check_metric
from ..validation.validate import Scoring
from .checkpoint import CHECKPOINT_SECONDS, Checkpoint
from .choices import KernelLike, template_of
from .inputs import ClassWeight
from .plan import SAMPLE_ROWS

Columns = Literal["standard", "ranks", "auto"]
NO_FOLD_MACHINES = (
    "out_of_fold: expected True or False for a stream or on several devices, as the machines of "
    "the folds are kept for rows in memory on one device; for intervals see Model.calibrated"
)


@dataclasses.dataclass(frozen=True)
class Multiclass:
    """The division of more than two classes into binary problems, and the decoding of the values.

    Args:
        scheme: "one_versus_rest", "one_versus_one", "minimum_output" or a matrix of codes, see
            `multiclass.output_code`.
        decoding: how the values of the binary problems give a class, see `multiclass.distances`.
        C_per_problem: choose the best `C` of the grid for each binary problem separately. All
            problems share the kernel.
        classes: all labels, if rows of some classes will only come later; by default the labels in
            `y`. Only methods that need no more than sums over rows can miss rows of a class.
    """

    scheme: Scheme | ArrayLike = "one_versus_rest"
    decoding: Decoding = "loss"
    C_per_problem: bool = False
    classes: Sequence[Any] | ArrayLike | None = None

    def check(self, method: Method) -> None:
        """Raise a `ValueError` for an unknown scheme, or settings that the method cannot take."""
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
    """The memory, time and devices that a run may use.

    Args:
        memory: bytes; by default the free memory of the device, or the least of all processes of
            the mesh. See `plan`.
        max_seconds: time limit of the search; no evaluation starts later.
        mesh: devices that share the rows, for methods that need only sums. The model equals the
            model of one device to rounding. If the mesh spans several processes, each process calls
            `train` with the same settings, without `max_seconds`, and with the same rows or its own
            `Shards`. If checksums of the rows or settings differ, `train` raises an error.
        sample_rows: rows of a stream that are kept to choose points from and to score.
        checkpoint: a file that holds the state of the run: the search's evaluations, the points,
            and the sums of a stream with the unfinished pass. If the process is killed, the same
            call resumes from the file and gives the same result. The file is removed at the end,
            unless Ctrl-C or `max_seconds` stopped the search, which the same call then continues.
            The file of a call with other arguments, data or versions is refused.
        checkpoint_seconds: least time between two writes of the file. It becomes longer if writing
            would take more than a twentieth of the time.
    """

    memory: int | None = None
    max_seconds: float = math.inf
    mesh: Mesh | None = None
    sample_rows: int = SAMPLE_ROWS
    checkpoint: PathLike | Checkpoint | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def check(self, method: Method, search: Search) -> None:
        """Raise a `ValueError` for numbers out of range, or a mesh that cannot be used."""
        whole_number("sample_rows", self.sample_rows, 2, 2**31 - 1, "the largest number")
        if self.memory is not None:
            real("memory", self.memory, 0.0)
        if self.mesh is None:
            return
        check_mesh(self.mesh)
        method.check_sums("mesh")
        if spans_processes(self.mesh) and self.max_seconds < math.inf:
            raise ValueError(
                "max_seconds: expected no limit in several processes, whose clocks would stop "
                f"their searches at different evaluations, got {self.max_seconds}"
            )
        if not search.runs_on_mesh:
            raise ValueError(
                "search: expected Profile(..) or Annealing(..) with a mesh, got a "
                f"{type(search).__name__}"
            )


@dataclasses.dataclass(frozen=True)
class HoldOut:
    """Validation of a stream on one held-out share of its rows, instead of folds.

    Each kernel needs one decomposition instead of one for each fold (De Brabanter 2010, Algorithm
    4).

    Args:
        share: fraction of the rows that is held out, between 0 and 1.
    """

    share: float

    def check(self) -> None:
        """Raise a `ValueError` unless the share is between 0 and 1."""
        if not real("holdout", self.share, 0.0, above=True) < 1:
            raise ValueError(f"holdout: expected a share between 0 and 1, got {self.share}")


class Keys(NamedTuple):
    """PRNG keys of the random draws of a run."""

    points: Key  # choice of prototypes or candidates
    folds: Key
    search: Key
    method: Key  # random draws of the fits
    sample: Key  # sample of a stream
    kernel: Key  # sample of rows that chooses the family and the directions of the kernel

    __repr__ = short_repr


class Settings(NamedTuple):
    """The method, kernel, search and scaling of the columns of a run."""

    method: Method
    kernel: KernelLike
    search: Search | Literal["auto"]
    columns: Columns

    __repr__ = short_repr


class Stated(NamedTuple):
    """The settings that a caller states; None for a setting that a preset chooses."""

    method: Method | None
    kernel: KernelLike | None
    search: Search | Literal["auto"] | None
    columns: Columns | None

    __repr__ = short_repr

    def completed(self, others: Settings) -> Settings:
        """Return the stated settings, with the settings of `others` in place of None."""
        stated = {name: value for name, value in self._asdict().items() if value is not None}
        return others._replace(**stated)


class Config(NamedTuple):
    """The arguments of `train`, checked as far as is possible without the rows."""

    task: Task
    keys: Keys
    method: Method
    kernel: KernelLike
    C: Float[np.ndarray, " s"]
    metric: Metric | None  # to minimise and report; None for the method's defaults
    search: Search
    folds: int | Folds | HoldOut | None  # None for the default number, see `Method.default_folds`
    multiclass: Multiclass
    class_weight: ClassWeight
    out_of_fold: bool | Literal["machines"]
    resources: Resources
    progress: Progress | None
    columns: Columns = "standard"
    student: Method | None = None  # the method that distils the machine, checked for the same codes

    __repr__ = short_repr

    @property
    def methods(self) -> tuple[Method, ...]:
        """The method, and the `student` if there is one; both must fit the output code."""
        return (self.method,) if self.student is None else (self.method, self.student)

    @property
    def compared(self) -> dict[str, Any]:
        """The settings that must be equal in all processes of a mesh, by argument."""
        settings = self._asdict()
        del settings["keys"], settings["progress"]
        # Each process has its own file, or none has one.
        settings["resources"] = dataclasses.replace(self.resources, checkpoint=None)
        stated = self.resources.checkpoint is not None
        return {**settings, "checkpoint is stated": stated, "key": self.keys.points}

    @property
    def resumed(self) -> dict[str, Any]:
        """The settings that must be equal in a call that resumes, by argument."""
        resources = dataclasses.replace(
            self.resources, checkpoint=None, checkpoint_seconds=0.0, max_seconds=math.inf
        )
        return {**self.compared, "resources": resources}


def check_method(method: Any, example: str) -> None:
    """Raise a `ValueError` unless `method` is a `Method`.

    The message suggests the class with the nearest name; if none is near, the class `example`.
    """
    if isinstance(method, Method):
        return
    from ..machines import METHODS  # imported late, as it imports every method

    if method in METHODS.values():
        example = method.__name__
    elif isinstance(method, str):
        classes = {name: kind.__name__ for name, kind in METHODS.items()}
        classes |= {name.lower(): name for name in classes.values()}
        nearest = difflib.get_close_matches(method.lower(), classes, 1)
        example = classes[nearest[0]] if nearest else example
    got = method.__name__ if isinstance(method, type) else repr(method)
    raise ValueError(f"method: expected a method, such as jsparse.{example}(), got {got}")


def configure(
    task: Task,
    keys: Keys,
    settings: Settings,
    C: ArrayLike | None,
    folds: int | Folds | HoldOut | Literal["auto"],
    metric: Metric | None,
    multiclass: Scheme | ArrayLike | Multiclass,
    class_weight: ClassWeight,
    out_of_fold: bool | Literal["machines"],
    resources: Resources,
    progress: Progress | None,
    student: Method | None = None,
) -> Config:
    """Return the configuration of a run from completed settings and the arguments of `train`.

    A `student` is a method that will distil the machine. It must take the same output codes. For
    the first argument that is out of range or contradicts another, raise a `ValueError`.
    """
    if task not in ("classification", "regression"):
        raise ValueError(f"task: expected 'classification' or 'regression', got {task!r}")
    method, kernel, search, columns = settings
    check_method(method, "FixedSize")
    method.check(task)
    if not isinstance(multiclass, Multiclass):
        multiclass = Multiclass(multiclass)
    for learner in (method, student):
        if learner is not None:
            multiclass.check(learner)
    if not isinstance(resources, Resources):
        raise ValueError(f"resources: expected a Resources, got {resources!r}")
    values_of_C = method.values_of_C(C)
    if isinstance(search, str) and search == "auto":
        search = Automatic()
    check_search(search)
    scoring = Scoring(method.metric(task) if metric is None else metric, multiclass.decoding)
    grid = check_settings(scoring, values_of_C, search, resources.max_seconds, progress)
    check_metric(scoring.metric, method.quantiles)
    if task == "regression" and metric == "misclassification":
        raise ValueError("metric: expected 'mse' or 'mae' for regression")
    classification_only = {"class_weight": class_weight, "classes": multiclass.classes}
    for name, value in classification_only.items():
        if task == "regression" and value is not None:
            raise ValueError(f"{name}: expected None for regression")
    checked_folds = _check_folds(folds)
    if not (isinstance(out_of_fold, bool) or out_of_fold == "machines"):
        raise ValueError(f"out_of_fold: expected True, False or 'machines', got {out_of_fold!r}")
    if out_of_fold == "machines" and resources.mesh is not None:
        raise ValueError(NO_FOLD_MACHINES)
    resources.check(method, search)
    search.check_method(method)
    method.check_kernel(template_of(kernel, 1, Profile()))
    if columns not in get_args(Columns):
        raise ValueError(f"columns: expected one of {get_args(Columns)}, got {columns!r}")
    return Config(
        task, keys, method, kernel, grid, metric, search, checked_folds, multiclass, class_weight,
        out_of_fold, resources, progress, columns, student,
    )  # fmt: skip


def _check_folds(folds: Any) -> int | Folds | HoldOut | None:
    """Return the argument `folds`, or None for "auto"; if it is invalid, raise a `ValueError`."""
    if isinstance(folds, str) and folds == "auto":
        return None
    if isinstance(folds, HoldOut):
        folds.check()
    elif not isinstance(folds, Folds):
        return whole_number("folds", folds, 2)
    return folds


def keys_of(key: KeyLike) -> Keys:
    """Return the keys of the random draws of a run, from the caller's key."""
    return Keys(*_keys(as_key(key)))


@functools.partial(compiled, quickly=True)
def _keys(key: Key) -> list[Key]:
    """Split the caller's key into the fields of `Keys`."""
    points, folds, search, method, sample = jax.random.split(key, 5)
    return [points, folds, search, method, sample, jax.random.fold_in(search, 1)]
