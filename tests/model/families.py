"""Families of every kind, made without a fit, and as files up to format version 2 held them."""

import jax
import jax.numpy as jnp
import numpy as np

from jsparse._status import COMPLETED, CONVERGED, EXHAUSTED, PRECISION_LOST, TRUNCATED
from jsparse.kernels import RBF, Linear, Mixture
from jsparse.machines.family import Family

# Outputs of each kind. Nested machines have the prototypes of all smaller ones.
KINDS = {"nested": (), "joint": (3,), "separate": (3,), "sizes": (3,), "dictionary": ()}
LONGEST = 6  # prototypes of the largest nested machine
SIZES = (2, 4)  # of the machines that are not nested


def family(kind, d, dtype="float64"):
    """A family of `kind`, with points that no machine uses."""
    rng = np.random.default_rng(3)
    points = jnp.asarray(rng.normal(size=(12, d)), dtype)
    nested = kind in ("nested", "joint", "separate")
    arrays = (nested_arrays if nested else sized_arrays)(rng, kind)
    support, coefficients, intercepts, sizes, statuses = arrays
    kernel = RBF(jnp.asarray(1.5, dtype))
    return Family(
        kernel=Mixture((kernel, Linear())) if kind == "dictionary" else kernel,
        points=points,
        support=support,
        coefficients=jnp.asarray(coefficients, dtype),
        intercepts=jnp.asarray(intercepts, dtype),
        sizes=np.asarray(sizes, np.int32),
        statuses=jnp.asarray(statuses, jnp.int32),
        info={"condition": jnp.ones(2)},
        outputs=KINDS[kind],
    )


def nested_arrays(rng, kind):
    g = 3 if kind == "separate" else 1
    c = 3 if kind == "joint" else 1
    q = LONGEST
    support = np.stack([rng.permutation(10)[:q] for _ in range(g)]).astype(np.int32)
    coefficients = rng.normal(size=(g, q, q, c)) * np.tri(q)[None, :, :, None]
    intercepts = rng.normal(size=(g, q, c))
    if kind == "separate":  # one path ended after four prototypes
        support[1, 4:] = -1
        coefficients[1, 4:], intercepts[1, 4:] = coefficients[1, 3], intercepts[1, 3]
    statuses = [COMPLETED] * (q - 1) + [PRECISION_LOST]
    return jax.device_put(support), coefficients, intercepts, range(1, q + 1), statuses


def sized_arrays(rng, kind):
    M, c = (24, 1) if kind == "dictionary" else (12, 3)
    coefficients = np.zeros((1, len(SIZES), M, c))
    for place, size in enumerate(SIZES):
        chosen = rng.permutation(M)[:size]
        coefficients[0, place, chosen] = rng.normal(size=(size, c))
    intercepts = rng.normal(size=(1, len(SIZES), c))
    return None, coefficients, intercepts, SIZES, [CONVERGED, PRECISION_LOST]


def in_earlier_format(family):
    """The arrays of a family in a file of version 2, and the stop codes of its machines."""
    family = family.compact()
    coefficients, intercepts = np.asarray(family.coefficients), np.asarray(family.intercepts)
    k, q = coefficients.shape[1:3]
    arrays = {"candidates": np.asarray(family.points)}
    if family.support is None or len(family.support) == 1:
        arrays["coefficients"] = coefficients.reshape(k, q, *family.outputs)
        arrays["intercepts"] = intercepts.reshape(k, *family.outputs)
    else:
        arrays["coefficients"], arrays["intercepts"] = coefficients[..., 0], intercepts[..., 0]
    if family.support is None:
        arrays["sizes"] = np.asarray(family.sizes, np.int32)
        arrays["statuses"] = np.asarray(family.statuses)
        return arrays, arrays["statuses"]
    support = np.asarray(family.support)
    g = len(support)
    shape = (g, q) if g > 1 else (q,)
    # The path of the last group passed over candidates once it had five prototypes; the
    # coefficients of the second machine may be wrong, and those of the third took all steps.
    path_status = np.full(g, COMPLETED, np.int32)
    path_status[-1] = TRUNCATED
    length = (support >= 0).sum(axis=1).astype(np.int32)
    length[-1] = 5
    error, of_coefficients = np.zeros((g, q)), np.full((g, q), CONVERGED, np.int32)
    error[0, 1], of_coefficients[-1, 2] = 1.0, EXHAUSTED
    arrays |= {
        "support": support.reshape(shape),
        "condition": np.ones(shape, coefficients.dtype),
        "coefficient_error": error.reshape(shape).astype(coefficients.dtype),
        "coefficient_status": of_coefficients.reshape(shape),
        "size": length if g > 1 else length[0],
        "status": path_status if g > 1 else path_status[0],
    }
    expected = [COMPLETED, PRECISION_LOST, EXHAUSTED, COMPLETED, TRUNCATED, TRUNCATED]
    return arrays, expected
