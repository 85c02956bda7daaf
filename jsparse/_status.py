"""Stop codes, each with a sentence of advice, and what the host does about them.

Every iterative or ill-conditioned computation returns an int32 status. Failure outranks
convergence, which outranks exhaustion: the larger code wins, so statuses of parts are joined
by `jnp.maximum`.
"""

import warnings

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

RUNNING = 0
EXHAUSTED = 1
CONVERGED = 2
TRUNCATED = 3
PRECISION_LOST = 4
NOT_FINITE = 5
INDEFINITE = 6

ADVICE = {
    RUNNING: "still running.",
    EXHAUSTED: "stopped at its cap on steps before the stopping rule was met; raise the cap.",
    CONVERGED: "converged.",
    TRUNCATED: (
        "features too small for this floating-point precision were left out, and would have been "
        "used; the result is sound, but float64 (jax.config.update('jax_enable_x64', True)) may "
        "give a better model."
    ),
    PRECISION_LOST: (
        "the result is not determined by the data in this floating-point precision; use float64 "
        "(jax.config.update('jax_enable_x64', True)), a smaller C, or a shorter lengthscale."
    ),
    NOT_FINITE: "NaN or infinity arose; look for huge inputs, overflow in the kernel, or C <= 0.",
    INDEFINITE: "the matrix is not positive semi-definite; add to its diagonal or mend its sums.",
}


class NumericalError(ArithmeticError):
    """A computation failed; the message says what to do."""


class PrecisionWarning(UserWarning):
    """This precision decided the result, not the data; the message says what to do."""


def status_of(failed: Bool[Array, "*b"], imprecise: Bool[Array, "*b"]) -> Int[Array, "*b"]:
    """Status of a finished solve: failure first, then lost precision, else converged."""
    code = jnp.where(imprecise, jnp.int32(PRECISION_LOST), jnp.int32(CONVERGED))
    return jnp.where(failed, jnp.int32(NOT_FINITE), code)


def check(status: Int[Array, "*b"] | int, what: str = "the computation") -> None:
    """Raise on failure, warn on lost precision; call it on the host, outside `jit`.

    Args:
        status: one code or any array of codes; the worst decides.
        what: named in the message.

    Raises:
        NumericalError: if any code is `NOT_FINITE` or `INDEFINITE`.
    """
    worst = int(np.max(np.asarray(status), initial=RUNNING))
    if worst >= NOT_FINITE:
        raise NumericalError(f"{what}: {ADVICE[worst]}")
    if worst in (TRUNCATED, PRECISION_LOST):
        warnings.warn(f"{what}: {ADVICE[worst]}", PrecisionWarning, stacklevel=2)
