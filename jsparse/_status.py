"""Stop codes, each with a sentence of advice, and their warnings and errors on the host.

Every iterative or ill-conditioned computation returns an int32 status. A larger code is a worse
status, so `jnp.maximum` joins the statuses of parts. Up to `TRUNCATED` the result is sound; above,
it is wrong or may be wrong.
"""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from .predictor.checks import NumericalError as NumericalError
from .predictor.checks import warn_caller

RUNNING = 0
CONVERGED = 1
COMPLETED = 2
TRUNCATED = 3
VANISHED = 4
EXHAUSTED = 5
PRECISION_LOST = 6
NOT_FINITE = 7
INDEFINITE = 8

NAMES = (
    "RUNNING", "CONVERGED", "COMPLETED", "TRUNCATED", "VANISHED", "EXHAUSTED", "PRECISION_LOST",
    "NOT_FINITE", "INDEFINITE",
)  # fmt: skip
ADVICE = {
    RUNNING: "still running; go on until the status is another.",
    CONVERGED: "converged.",
    COMPLETED: "complete: all the atoms, prototypes, steps or evaluations that were asked for.",
    TRUNCATED: (
        "features too small for this floating-point precision were left out, and would have been "
        "used; the result is sound, but float64 (jax.config.update('jax_enable_x64', True)) may "
        "give a better model."
    ),
    VANISHED: (
        "no prototype is left, and the machine is a constant; take a larger C, or more prototypes "
        "to begin with."
    ),
    EXHAUSTED: (
        "stopped at its cap on steps before the stopping rule was met; raise the cap (of a fit "
        "max_iterations, which named estimators call max_iter; of a pursuit by stages max_stages; "
        "of a choice of prototypes max_trials) or the tolerance."
    ),
    PRECISION_LOST: (
        "the result is not determined by the data in this floating-point precision; use float64 "
        "(jax.config.update('jax_enable_x64', True)), a smaller C, or a shorter lengthscale."
    ),
    NOT_FINITE: "NaN or infinity arose; look for huge inputs, overflow in the kernel, or C <= 0.",
    INDEFINITE: "the matrix is not positive semi-definite; add to its diagonal or mend its sums.",
}


def trusted(status: int) -> bool:
    """Return whether a result with this stop code is sound, within the precision."""
    return CONVERGED <= status <= TRUNCATED


class PrecisionWarning(UserWarning):
    """A warning that rounding, not the data, decided the result; the message says what to do."""


class ConvergenceWarning(UserWarning):
    """A warning that the steps ran out, or that a machine has no prototypes, with advice."""


def status_of(failed: Bool[Array, "*b"], imprecise: Bool[Array, "*b"]) -> Int[Array, "*b"]:
    """Return `NOT_FINITE` if a solve failed, `PRECISION_LOST` if imprecise, else `CONVERGED`."""
    code = jnp.where(imprecise, jnp.int32(PRECISION_LOST), jnp.int32(CONVERGED))
    return jnp.where(failed, jnp.int32(NOT_FINITE), code)


def check(
    status: Int[Array, "*b"] | Int[np.ndarray, "*b"] | int, what: str = "the computation"
) -> None:
    """Raise NumericalError for statuses of failure, and warn of other bad ones; outside `jit` only.

    Args:
        status: one code or an array of codes. The message has the number of codes of each bad
            kind, and the indices of the first three.
        what: name of the computation, for the message.

    Raises:
        ValueError: for a status that JAX traces, or anything but stop codes.
        NumericalError: if any code is `NOT_FINITE` or `INDEFINITE`, after the warnings.

    Warns:
        PrecisionWarning: for `PRECISION_LOST`, or else for `TRUNCATED`.
        ConvergenceWarning: for `EXHAUSTED`, or else for `RUNNING`; and for `VANISHED`.
    """
    if isinstance(status, Tracer):
        raise ValueError(
            "status: expected numbers, got an array that JAX traces; return the status from jit, "
            "vmap or grad, and check it outside"
        )
    statuses = np.asarray(status)
    if statuses.size and statuses.dtype.kind not in "iu":
        raise ValueError(
            "status: expected stop codes, such as trained.status or many.statuses['fit'], got "
            f"{type(status).__name__}"
        )
    codes_present = {int(code) for code in np.unique(statuses)}
    for category, codes in (
        (PrecisionWarning, (PRECISION_LOST, TRUNCATED)),
        (ConvergenceWarning, (EXHAUSTED, RUNNING)),
        (ConvergenceWarning, (VANISHED,)),
    ):
        code = next((code for code in codes if code in codes_present), None)
        if code is not None:
            message = f"{what}: {ADVICE[code]}{_places(statuses, code)}"
            warn_caller(message, category)
    worst = max(codes_present, default=CONVERGED)
    if worst >= NOT_FINITE:
        raise NumericalError(f"{what}: {ADVICE[worst]}{_places(statuses, worst)}")


def _places(statuses: Int[np.ndarray, "*b"], code: int) -> str:
    """Return a sentence on how many of several statuses are `code`, and the first three indices."""
    if statuses.size <= 1:
        return ""
    indices = np.argwhere(statuses == code)
    first = [str(i[0] if len(i) == 1 else tuple(i.tolist())) for i in indices[:3]]
    return f" This concerns {len(indices)} of {statuses.size} (first {', '.join(first)})."
