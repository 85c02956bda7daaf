"""Machines of several sizes on shared points: derivatives, statuses and sizes of a `Family`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsparse._status import COMPLETED, CONVERGED, PRECISION_LOST
from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF, Laplacian, Mixture
from jsparse.machines.family import Family, single

POINTS, NEW = (np.random.default_rng(seed).standard_normal((5, 2)) for seed in (0, 1))


def family(groups, *, atoms=5, outputs=2, kernel=None, support=None):
    """Return machines of three sizes; without a support, coefficients of unused atoms are 0."""
    rng, c, sizes = np.random.default_rng(2), outputs // groups, np.array([1, 2, 3], np.int32)
    q = atoms if support is None else 3
    coefficients = rng.standard_normal((groups, 3, q, c))
    for place, size in enumerate(sizes):
        coefficients[:, place, size:] = 0
    return Family(
        kernel=RBF(1.3) if kernel is None else kernel,
        points=jnp.asarray(POINTS),
        support=None if support is None else jnp.asarray(support, jnp.int32),
        coefficients=jnp.asarray(coefficients),
        intercepts=jnp.asarray(rng.standard_normal((groups, 3, c))),
        sizes=jnp.asarray(sizes),
        statuses=jnp.asarray([CONVERGED, COMPLETED, PRECISION_LOST], jnp.int32),
        info={},
        outputs=(outputs,),
    )


FAMILIES = {
    "one selection": lambda: family(1, support=[[4, 0, 2]]),
    "a selection for each output, one of which ended early": lambda: family(
        2, support=[[4, 0, 2], [0, 3, -1]]
    ),
    "a dictionary": lambda: family(1, atoms=10, kernel=Mixture((RBF(1.3), Laplacian(0.7)))),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_values_have_derivatives_in_rows_and_leaves(name):
    machines, direction, step = FAMILIES[name](), np.ones((5, 2)), 1e-6

    def total(shift, scale):
        kernel = jax.tree.map(lambda leaf: leaf * scale, machines.kernel)
        changed = Family(
            kernel, machines.points * scale, machines.support, machines.coefficients * scale,
            machines.intercepts * scale, machines.sizes, machines.statuses, {}, machines.outputs,
        )  # fmt: skip
        return jnp.sum(jnp.sin(changed.values(jnp.asarray(NEW + shift * direction))))

    slopes = [jax.jit(derive(total, (0, 1)))(0.0, 1.0) for derive in (jax.grad, jax.jacfwd)]
    total = jax.jit(total)
    for place, (ahead, behind) in enumerate(
        [((step, 1.0), (-step, 1.0)), ((0.0, 1 + step), (0.0, 1 - step))]
    ):
        slope = (total(*ahead) - total(*behind)) / (2 * step)
        for derivatives in slopes:
            np.testing.assert_allclose(derivatives[place], slope, rtol=1e-6)


def test_statuses_and_sizes():
    machines = FAMILIES["one selection"]()
    assert [machines.status_at(size) for size in (1, 2, 3)] == [
        CONVERGED,
        COMPLETED,
        PRECISION_LOST,
    ]
    assert int(machines.status) == COMPLETED  # digits that only the largest has lost
    with pytest.raises(ValueError, match="size: expected one of 1 to 3, got 4"):
        machines.at(4)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda m: m.at(2).coefficients)(machines)


def test_one_machine_is_a_family_of_one_size():
    beta = jnp.asarray([1.0, 0, 2, 0, 3])
    machine = KernelExpansion(RBF(1.0), jnp.asarray(POINTS), beta, jnp.asarray(0.5))
    whole = single(machine, jnp.asarray(CONVERGED), {"steps": 3})
    assert whole.at(5).prototypes.shape == (5, 2)
    np.testing.assert_array_equal(whole.expansion.coefficients, beta)
    sparse = single(machine, jnp.asarray(CONVERGED), count=jnp.asarray(3))
    assert sparse.active_points(3).tolist() == [0, 2, 4]
    np.testing.assert_allclose(
        sparse.at(3)(jnp.asarray(NEW)), machine(jnp.asarray(NEW)), rtol=1e-12
    )
