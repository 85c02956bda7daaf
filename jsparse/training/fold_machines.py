"""The machines of the folds, which have not seen them, kept for intervals and sets."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import as_array
from .._programs import compiled
from .._status import NumericalError
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.dual import Dual
from ..machines.method import Additive, each_problem, expansion_of
from ..normal_equations import NormalEquations
from ..search.problem import InMemory, Problem
from ..validation.folds import Folds
from .target_units import TargetUnits


def fold_machines(
    problem: Problem,
    kernel: Kernel,
    C: Float[Array, ""] | Float[Array, " l"],
    size: int | None,
    summed: tuple[FeatureMap, NormalEquations] | None,
    units: TargetUnits,
    n: int,
) -> tuple[KernelExpansion, Int[np.ndarray, " n"]]:
    """A machine for each fold, in the units of the caller, and the fold of each row.

    Ridge machines by subtraction, those in the dual by leave-one-out from one factorisation, all
    others by a fit for each fold.

    Returns:
        An expansion of standardised inputs with a column for each fold and each output of the
        model, fold by fold; and which fold a row is in.
    """
    source, method = problem.source, problem.method
    assert isinstance(source, InMemory)
    w = np.asarray(source.weights)
    if isinstance(method, Dual):
        return _without_each(source, kernel, np.asarray(C), w, units, n), np.arange(
            n, dtype=np.int32
        )
    assert isinstance(source.folds, Folds)
    index, valid = np.asarray(source.folds.index), np.asarray(source.folds.valid)
    machines, fold = [], np.zeros(n, np.int32)
    for k, (rows, own) in enumerate(zip(index, valid, strict=True)):
        fold[rows[own]] = k
        if summed is not None and isinstance(method, Additive):
            features, total = summed
            X, y = _rows_of(source.X, source.y, rows)
            own_w = as_array(np.where(own, w[rows], 0).astype(w.dtype))
            held_out = method.accumulate(features, X, y, own_w, source.code)
            fitted = method.solve(features, total - held_out, C, source.code, key=problem.key)
        else:
            left = w.copy()
            left[rows[own]] = 0
            part = dataclasses.replace(source, weights=as_array(left))
            fitted, _, _ = part.fit(dataclasses.replace(problem, source=part), kernel, C)
        machines.append(expansion_of(units.fit(fitted), size))
    return _joined(machines), fold


@compiled
def _rows_of(X: Array, y: Array, rows: Int[Array, " r"]) -> tuple[Array, Array]:
    return X[rows], y[rows]


def _joined(machines: list[KernelExpansion]) -> KernelExpansion:
    """Machines as the columns of one, on all the prototypes that any of them has."""
    points = [np.asarray(machine.prototypes) for machine in machines]
    prototypes, place = np.unique(np.concatenate(points), axis=0, return_inverse=True)
    of = np.split(place.reshape(-1), np.cumsum([len(Z) for Z in points])[:-1])
    outputs = machines[0].intercept.size
    columns = np.zeros((len(prototypes), len(machines), outputs), prototypes.dtype)
    for k, machine in enumerate(machines):
        own = np.asarray(machine.coefficients).reshape(-1, outputs)
        np.add.at(columns[:, k], of[k], own)
    used = np.any(columns != 0, axis=(1, 2))
    used[0] = True  # a machine that is constant
    intercepts = np.concatenate([np.asarray(machine.intercept).reshape(-1) for machine in machines])
    return _expansion(
        machines[0].kernel, prototypes[used], columns[used].reshape(used.sum(), -1), intercepts
    )


def _expansion(
    kernel: Kernel, prototypes: np.ndarray, coefficients: np.ndarray, intercept: np.ndarray
) -> KernelExpansion:
    parts = (
        jax.device_put(a.astype(prototypes.dtype)) for a in (prototypes, coefficients, intercept)
    )
    return KernelExpansion(kernel, *parts)


def _without_each(
    source: InMemory,
    kernel: Kernel,
    C: np.ndarray,
    w: np.ndarray,
    units: TargetUnits,
    n: int,
) -> KernelExpansion:
    """LS-SVMs in the dual without each row in turn (Cawley and Talbot 2004).

    With `A` the system of `dual.fit`, the solution without row i is that of all rows less column i
    of `A^(-1)` times the leave-one-out residual `alpha_i / [A^(-1)]_ii`.
    """
    K = np.asarray(_gram(kernel, source.X))[:n, :n]
    targets, weights = each_problem(source.y, source.weights, source.code, source.dtype)
    y = np.asarray(targets)[:n].reshape(n, -1)
    each_w = np.broadcast_to(np.asarray(weights)[:n].reshape(n, -1), y.shape)
    each_C = np.broadcast_to(C.reshape(-1), y.shape[1:])
    columns, intercepts = np.zeros((n, n, y.shape[1]), K.dtype), np.zeros(y.shape, K.dtype)
    P = of = None
    for j in range(y.shape[1]):
        if P is None or of != (each_C[j], each_w[:, j].tobytes()):
            P, of = _inverse(K, each_w[:, j], each_C[j]), (each_C[j], each_w[:, j].tobytes())
        share = P.sum(axis=1) / P.sum()
        alpha, b = P @ y[:, j] - P.sum(axis=1) * (share @ y[:, j]), share @ y[:, j]
        B = P - np.outer(P.sum(axis=1), share)
        own = np.diagonal(B)
        residual = np.where(own > 0, alpha / np.where(own > 0, own, 1), 0)  # 0: the row is absent
        columns[:, :, j] = alpha[:, None] - B * residual
        intercepts[:, j] = b - share * residual
    machine = _expansion(kernel, np.asarray(source.X)[:n], columns, intercepts)
    machine = units.expansion(machine)
    return dataclasses.replace(
        machine,
        coefficients=machine.coefficients.reshape(n, -1),
        intercept=machine.intercept.reshape(-1),
    )


_gram = compiled(lambda kernel, X: kernel.gram(X))


def _inverse(K: np.ndarray, w: np.ndarray, C: Any) -> np.ndarray:
    """`(K + W^(-1) / C)^(-1)`, 0 for rows of weight 0."""
    from scipy.linalg import cho_factor, cho_solve  # dear to import, and seldom needed

    root = np.sqrt(w)
    system = root[:, None] * K * root + np.eye(len(K), dtype=K.dtype) / C
    try:
        inverse = cho_solve(cho_factor(system, lower=True), np.eye(len(K), dtype=K.dtype))
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "out_of_fold: the machines without each row cannot be told apart in this precision, as "
            "1 / C is below the rounding of the kernel matrix; use float64 or a smaller C"
        ) from error
    return root[:, None] * inverse * root
