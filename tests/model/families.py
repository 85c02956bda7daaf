"""Families of every kind, made without a fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jsparse import Model
from jsparse._status import COMPLETED, CONVERGED, PRECISION_LOST
from jsparse.kernels import RBF, Linear, Mixture
from jsparse.machines.family import Family
from jsparse.multiclass import output_code
from jsparse.scaling import standardize

# Outputs of each kind. Nested machines have the prototypes of all smaller ones.
KINDS = {"nested": (), "joint": (3,), "separate": (3,), "sizes": (3,), "dictionary": ()}
LONGEST = 6  # prototypes of the largest nested machine
SIZES = (2, 4)  # of the machines that are not nested


def family(kind, d, dtype="float64"):
    """Return a family of a kind; some of its points are used by no machine."""
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
        active = rng.permutation(M)[:size]
        coefficients[0, place, active] = rng.normal(size=(size, c))
    intercepts = rng.normal(size=(1, len(SIZES), c))
    return None, coefficients, intercepts, SIZES, [CONVERGED, PRECISION_LOST]


def model_of_sizes(kind, d=3):
    """Return a model of a family with its standardisation, as training returns it, and raw rows."""
    X = 7 + 3 * np.random.default_rng(0).normal(size=(60, d))
    machines = family(kind, d)
    expansion = dataclasses.replace(
        machines.at(4 if kind != "joint" else 3), scaling=standardize(jnp.asarray(X))
    )
    code = output_code("one_versus_rest", 3) if KINDS[kind] else None
    labels = ("a", "b", "c") if KINDS[kind] else ("a", "b")
    inverse_temperatures = np.arange(1.0, 1 + len(labels))
    model = Model(
        expansion, machines, inverse_temperatures, code=code, labels=labels, label_dtype="<U1"
    )
    return model, X
