"""The machines of a `Family` as arrays of a file, and back."""

import math
from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Array

from ._files import shown
from ._status import COMPLETED, INDEFINITE, PRECISION_LOST, TRUNCATED
from .expansion import KernelExpansion
from .kernels import Mixture
from .machines.family import Family, kernels_of
from .pursuit.path import LOST
from .serialization import check_keys

_NAMES = ("points", "support", "coefficients", "intercepts", "sizes", "statuses")
# Files up to format version 2 have one of two kinds of paths: machines of given sizes, or of every
# size up to a length, with the stop codes of the whole path and of each system.
_SIZED = ("candidates", "coefficients", "intercepts", "sizes", "statuses")
_NESTED = (
    "candidates", "support", "coefficients", "intercepts", "condition", "coefficient_error",
    "coefficient_status", "size", "status",
)  # fmt: skip
_WHOLE_NUMBERS = {"support", "sizes", "statuses", "coefficient_status", "size", "status"}


def family_arrays(family: Family) -> dict[str, np.ndarray]:
    """Return the arrays of a family without the points that no machine uses; on the host."""
    compact = family.compact()
    arrays = {name: getattr(compact, name) for name in _NAMES}
    return {
        name: np.asarray(array, np.int32 if name in _WHOLE_NUMBERS else None)
        for name, array in arrays.items()
        if array is not None
    }


def family_of(expansion: KernelExpansion, arrays: Mapping[str, Array]) -> Family:
    """Return the family that a file's arrays describe.

    Args:
        expansion: the model's machine, which says what the kernels and the outputs are.
        arrays: from `family_arrays`, or of a file of an earlier format version.

    Raises:
        ValueError: if the arrays do not fit the expansion or each other.
    """
    names = set(_NAMES) if "support" in arrays else set(_NAMES) - {"support"}
    if "candidates" in arrays:
        names = set(_SIZED if "sizes" in arrays else _NESTED)
    check_keys("path", arrays, names)
    for name, array in arrays.items():
        dtype = np.dtype(np.int32 if name in _WHOLE_NUMBERS else expansion.prototypes.dtype)
        if array.dtype != dtype:
            raise ValueError(f"path.{name}: expected {dtype}, got {array.dtype}")
    if "candidates" in arrays:
        arrays = _from_earlier_format(arrays, n_axes=expansion.intercept.ndim)
    _check_shapes(expansion, arrays)
    if "support" in arrays:
        _check_support(np.asarray(arrays["support"]), len(arrays["points"]))
    sizes = np.asarray(arrays["sizes"])
    if sizes[0] < 1 or (sizes[1:] <= sizes[:-1]).any():  # differences may overflow
        raise ValueError("path.sizes: expected increasing numbers of at least 1")
    kernel = expansion.kernel
    family = Family(
        kernel=Mixture(kernel.kernels) if isinstance(kernel, Mixture) else kernel,
        support=arrays.get("support"),
        info={},
        outputs=expansion.intercept.shape,
        **{name: arrays[name] for name in _NAMES if name != "support"},
    )
    return family.compact()  # coefficients may become 0 in float32


def _check_shapes(expansion: KernelExpansion, arrays: Mapping[str, Array]) -> None:
    """Raise a `ValueError` unless shapes are those of `k` machines, in `g` groups of outputs."""
    shapes = {name: array.shape for name, array in arrays.items()}
    points, d = shapes.pop("points"), expansion.prototypes.shape[1]
    if len(points) != 2 or points[0] == 0 or points[1] != d:
        raise ValueError(f"path.points: expected shape m {d}, got {points}")
    g, q = 1, len(kernels_of(expansion.kernel)) * points[0]
    if "support" in shapes:
        if isinstance(expansion.kernel, Mixture) or len(shapes["support"]) != 2:
            raise ValueError(f"path.support: expected shape g q of one kernel, got {shown(shapes)}")
        g, q = shapes.pop("support")
    k, outputs = math.prod(shapes["sizes"]), math.prod(expansion.intercept.shape)
    c = outputs // max(g, 1)
    expected = {"coefficients": (g, k, q, c), "intercepts": (g, k, c), "sizes": (k,)}
    expected["statuses"] = (k,)
    if shapes != expected or g * c != outputs or 0 in (k, q):
        raise ValueError(f"path: expected arrays of shapes {expected}, got {shown(shapes)}")


def _check_support(support: np.ndarray, n_points: int) -> None:
    if support.min() < -1 or support.max() >= n_points:
        raise ValueError(f"path.support: expected -1 or numbers of {n_points} points")
    ordered = np.sort(support, axis=1)
    if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
        raise ValueError("path.support: expected each point once")


def _from_earlier_format(arrays: Mapping[str, Array], n_axes: int) -> dict[str, Array]:
    """Return the arrays of today's format, for outputs of so many axes; shapes are not checked."""
    host = {name: np.asarray(array) for name, array in arrays.items()}
    if "support" in host and host["support"].ndim == 2:
        n_axes = 0  # there is an axis of groups in their place
    else:
        host = {name: a if name == "candidates" else a[None] for name, a in host.items()}
    if host["coefficients"].ndim != 3 + n_axes or host["intercepts"].ndim != 2 + n_axes:
        raise ValueError("path: expected arrays of shapes g k q c and g k c")
    converted = {
        "points": host["candidates"],
        "coefficients": host["coefficients"].reshape(*host["coefficients"].shape[:3], -1),
        "intercepts": host["intercepts"].reshape(*host["intercepts"].shape[:2], -1),
    }
    if "sizes" in host:
        converted |= {name: host[name][0] for name in ("sizes", "statuses")}
    else:
        sizes = np.arange(1, host["support"].shape[-1] + 1, dtype=np.int32)
        statuses = _statuses(host, sizes)
        converted |= {"support": host["support"], "sizes": sizes, "statuses": statuses}
    return jax.device_put(converted)


def _statuses(host: Mapping[str, np.ndarray], sizes: np.ndarray) -> np.ndarray:
    """Return the stop code of the machine of every size on the paths of `g` groups."""
    g, k = len(host["support"]), len(sizes)
    shapes = {
        name: host[name].shape
        for name in ("condition", "coefficient_error", "coefficient_status", "status", "size")
    }
    if list(shapes.values()) != [(g, k)] * 3 + [(g,)] * 2:
        raise ValueError(
            f"path: expected arrays of shapes {(g, k)} and {(g,)}, got {shown(shapes)}"
        )
    path_status, length = host["status"][:, None], host["size"][:, None]
    # What ended a path, or was passed over, came after the last machine.
    ended = (path_status == TRUNCATED) | (path_status == INDEFINITE)
    path_status = np.where(ended & (sizes < length), COMPLETED, path_status)
    lost = np.where(host["coefficient_error"] > LOST, PRECISION_LOST, 0)
    statuses = np.maximum(np.maximum(path_status, lost), host["coefficient_status"])
    return statuses.max(axis=0).astype(np.int32)
