"""The configuration of a run, checked before any work."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
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
from ..kernels import Kernel, Mixture
from ..machines.method import Method, Metric, Task
from ..multiclass import Decoding, Scheme
from ..search.gradient import Automatic
from ..search.run import Progress
from ..search.strategies import Profile, Search, check_search
from ..search.tune import check_settings
from ..validation.folds import Folds
from ..validation.validate import Scoring
from .choices import KernelLike, template_of
from .plan import SAMPLE_ROWS


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


@dataclasses.dataclass(frozen=True)
class HoldOut:
    """A share of the rows of a stream that is held out to validate, instead of folds.

    De Brabanter 2010, Algorithm 4: one decomposition for each kernel instead of one for each fold.

    Args:
        share: of the rows, between 0 and 1.
    """

    share: float


class Keys(NamedTuple):
    """What is decided at random."""

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
    decoding: Decoding
    search: Search
    folds: int | Folds | HoldOut | None  # None: as many as suit the number of rows
    multiclass: Multiclass
    class_weight: Literal["balanced"] | Mapping[Any, float] | None
    resources: Resources
    progress: Progress | None

    __repr__ = short_repr


def compared_settings(config: Config) -> dict[str, Any]:
    """Return the settings that must be the same in all processes of a mesh, by argument."""
    apart = {"keys", "progress"}
    return {
        **{name: value for name, value in config._asdict().items() if name not in apart},
        "key": config.keys.points,
    }


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
    class_weight: Literal["balanced"] | Mapping[Any, float] | None,
    resources: Resources,
    progress: Progress | None,
) -> Config:
    """Check what can be checked without the rows.

    Raises:
        ValueError: for the first that makes no sense.
    """
    if task not in ("classification", "regression"):
        raise ValueError(f"task: expected 'classification' or 'regression', got {task!r}")
    if not isinstance(method, Method):
        raise ValueError(f"method: expected a method, such as FixedSize(..), got {method!r}")
    method.check(task)
    if not isinstance(multiclass, Multiclass):
        multiclass = Multiclass(multiclass)
    scheme = multiclass.scheme
    if isinstance(scheme, str) and scheme not in get_args(Scheme):
        raise ValueError(
            f"multiclass: expected one of {get_args(Scheme)}, a matrix of codes or a Multiclass, "
            f"got {scheme!r}"
        )
    if not isinstance(scheme, str) and numbers("multiclass", scheme).ndim != 2:
        raise ValueError(f"multiclass: expected a matrix of codes, got {scheme!r}")
    if multiclass.C_per_problem and (method.shares_C):
        raise ValueError(
            f"C_per_problem: expected False with {type(method).__name__}, whose problems share one"
        )
    if not isinstance(resources, Resources):
        raise ValueError(f"resources: expected a Resources, got {resources!r}")
    if C is not None and not method.has_C:
        raise ValueError(
            f"C: expected None with {type(method).__name__}, which is tuned by its sizes "
            f"alone, got {C!r}"
        )
    if isinstance(search, str) and search == "auto":
        search = Automatic()
    check_search(search)
    scoring = Scoring(method.metric(task) if metric is None else metric, multiclass.decoding)
    grid = check_settings(
        scoring, method.default_C if C is None else C, search, resources.max_seconds, progress
    )
    if task == "regression" and metric == "misclassification":
        raise ValueError("metric: expected 'mse' or 'mae' for regression")
    if task == "regression" and class_weight is not None:
        raise ValueError("class_weight: expected None for regression")
    if task == "regression" and multiclass.classes is not None:
        raise ValueError("classes: expected None for regression")
    if isinstance(folds, HoldOut) and not real("holdout", folds.share, 0.0, above=True) < 1:
        raise ValueError(f"holdout: expected a share between 0 and 1, got {folds.share}")
    validation = None
    if not (isinstance(folds, str) and folds == "auto"):
        own = isinstance(folds, Folds | HoldOut)
        validation = folds if own else whole_number("folds", folds, 2)
    _check_resources(method, resources)
    if resources.mesh is not None and not search.runs_on_mesh:
        raise ValueError(
            "search: expected Profile(..) or Annealing(..) with a mesh, got a "
            f"{type(search).__name__}"
        )
    if search.move_prototypes and not method.can_move_prototypes:
        raise ValueError(
            "move_prototypes: expected False but for FixedSize(m) with one number of prototypes, "
            f"got {method!r}"
        )
    _check_kernel(method, template_of(kernel, 1, Profile()))
    keys = Keys(*_five(as_key(key)))
    return Config(
        task, keys, method, kernel, grid, metric, multiclass.decoding, search, validation,
        multiclass, class_weight, resources, progress,
    )  # fmt: skip


def _check_kernel(method: Method, kernel: Kernel) -> None:
    if not isinstance(kernel, Mixture):
        return
    if not method.several_kernels:
        raise ValueError(
            f"kernel: expected one with {type(method).__name__}, got {len(kernel.kernels)}; "
            "KSP, KMP and KBP choose from several"
        )
    if kernel.which is not None:
        raise ValueError("kernel: expected kernels of a dictionary, got a Mixture of prototypes")


@functools.partial(compiled, quickly=True)
def _five(key: Key) -> list[Key]:
    return list(jax.random.split(key, 5))


def _check_resources(method: Method, resources: Resources) -> None:
    whole_number("sample_rows", resources.sample_rows, 2, 2**31 - 1, "the largest number")
    if resources.memory is not None:
        real("memory", resources.memory, 0.0)
    mesh = resources.mesh
    if mesh is None:
        return
    check_mesh(mesh)
    method.check_sums("mesh")
    if spans_processes(mesh) and resources.max_seconds < math.inf:
        raise ValueError(
            "max_seconds: expected none in several processes, whose clocks could part them, got "
            f"{resources.max_seconds}"
        )
