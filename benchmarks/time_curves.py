"""Figure 11 of Karsmakers 2011: error against time, for four selections of prototypes."""

import functools
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jsparse
from jsparse import pursuit
from jsparse.kernels import RBF
from jsparse.machines import scdp_rows
from jsparse.machines.scdp_system import candidate_columns
from jsparse.prototypes import k_center
from jsparse.pursuit.probabilistic import SUBSET

from .paths import thirds
from .report import Report, save, saved_data, timed

PARAMETERS = {"magic": (100.0, 2.0), "adult": (10.0, 4.0)}  # C, lengthscale
VARIANTS = ("SCDP", "SCDP PV", "SCDPP", "SCDPP PV")
SHARE = 0.3  # share of the rows that are candidates of the PV variants
SIZES = (5, 10, 20, 50, 100, 200, 400)


class Part(NamedTuple):
    """A partition of a set in float32, with kernel and C."""

    X: jax.Array
    y: jax.Array
    X_test: jax.Array
    y_test: jax.Array
    kernel: RBF
    C: jax.Array


def run(*, quick: bool, out: Path) -> Report:
    """Run all variants on magic and adult; resume from the folder."""
    name, data = "figure11_scdp", saved_data(out, "figure11_scdp", quick=quick)
    sizes = SIZES[:4] if quick else SIZES
    for one, (C, lengthscale) in PARAMETERS.items():
        X, y, X_test, y_test = (jnp.asarray(a) for a in thirds(one, 0))
        if quick:
            X, y = X[:2000], y[:2000]
        part = Part(X, y, X_test, y_test, RBF(lengthscale), jnp.asarray(C, X.dtype))
        cell = data.setdefault(one, {})
        for variant in VARIANTS:
            if variant not in cell:
                cell[variant] = _variant(part, variant, sizes)
                save(out, name, _report(data, sizes), quick=quick)
    return _report(data, sizes)


def _variant(part: Part, variant: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return the seconds to select each number of prototypes, and the errors of all sizes."""
    X, y, kernel, C = part.X, part.y, part.kernel, part.C
    key, nu, before = jax.random.key(0), jnp.zeros((), X.dtype), 0.0
    Z = X
    if variant.endswith("PV"):
        M = round(SHARE * len(X))
        before, _ = timed(lambda: k_center(key, X, M).indices, 1)
        Z = X[k_center(key, X, M).indices]
    if variant.startswith("SCDPP"):
        select = jax.jit(scdp_rows.pursue, static_argnames=("max_prototypes", "subset"))
        problem = scdp_rows.Problem(kernel, Z, C, X, jnp.ones_like(y), nu)
        arrays = problem, y[:, None], key
        seconds = [
            timed(lambda k=k: select(*arrays, max_prototypes=k, subset=SUBSET), 1)[0] for k in sizes
        ]
        path = select(*arrays, max_prototypes=sizes[-1], subset=SUBSET)[0]
    else:
        # Compile first, then time one run: summing the system may take minutes.
        system = jax.jit(functools.partial(_system, kernel, C=C, nu=nu)).lower(Z, X, y).compile()
        start = time.perf_counter()
        A, b = jax.block_until_ready(system(Z, X, y))
        before += time.perf_counter() - start
        seconds = [timed(lambda k=k: pursuit.scdp(A, b, max_atoms=k), 1)[0] for k in sizes]
        path = pursuit.scdp(A, b, max_atoms=sizes[-1])
    support = np.asarray(path.support)[: int(path.size)]
    return {
        "candidates": len(Z),
        "before": before,
        "seconds": [before + s for s in seconds],
        "errors": _errors(part, np.asarray(Z)[support]).tolist(),
    }


def _system(kernel: RBF, Z: jax.Array, X: jax.Array, y: jax.Array, *, C: jax.Array, nu: jax.Array):
    columns = candidate_columns(kernel, Z)
    return columns.system(jsparse.accumulate(columns, X, y), C, nu)[:2]


def _errors(part: Part, prototypes: np.ndarray) -> np.ndarray:
    """Return test errors in % by number of prototypes, with coefficients in float64."""
    X, y, X_test, Z = (
        jnp.asarray(a, jnp.float64) for a in (part.X, part.y, part.X_test, prototypes)
    )
    kernel, C = RBF(float(part.kernel.lengthscale)), jnp.asarray(float(part.C), X.dtype)
    columns = candidate_columns(kernel, Z)
    sums = jsparse.accumulate(columns, X, y)
    A, b, _, feature_sum = columns.system(sums, C, jnp.asarray(0.0))
    path = pursuit.scdp(A, b, max_atoms=len(Z), initial=np.arange(len(Z)))
    weights = path.coefficients.T  # in the order given
    constant = (sums.target_sum - feature_sum @ weights) / sums.weight_sum
    values = kernel.cross_gram(X_test, Z) @ weights + constant[None]
    return 100 * np.asarray(jnp.mean((values >= 0) != (part.y_test > 0)[:, None], axis=0))


def _report(data: dict[str, Any], sizes: tuple[int, ...]) -> Report:
    rows, notes = [], []
    for one, cell in data.items():
        for variant, curve in cell.items():
            cells = [
                f"{curve['errors'][min(k, len(curve['errors'])) - 1]:.2f} / {s:.3g}"
                for k, s in zip(sizes, curve["seconds"], strict=True)
            ]
            rows.append([one, variant, curve["candidates"], f"{curve['before']:.3g}", *cells])
    notes = [
        "Error on the test third in % / seconds to the selection of so many prototypes, warm, what "
        "comes before it (k-centre, summing the system) included; float32, coefficients in float64 "
        "for all. PV: candidates are 0.3 of the rows by k-centre; the others have all rows. SCDPP "
        "looks at 59 candidates a step and forms no system.",
        "Fixed parameters (C, lengthscale): "
        + ", ".join(f"{name} {C:g}, {scale:g}" for name, (C, scale) in PARAMETERS.items())
        + "; one partition.",
    ]
    columns = ["set", "variant", "candidates", "seconds before", *map(str, sizes)]
    return Report("Figure 11 of Karsmakers 2011", columns, rows, notes, data)
