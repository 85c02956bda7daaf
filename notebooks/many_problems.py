# %% [markdown]
# # A thousand problems at once
#
# The fits of jsparse are pure functions of arrays, so `jax.vmap` makes one program of a thousand
# problems: a machine for each of a thousand data sets, and a grid of hyper-parameters for each.
# On several devices the batch is sharded, and nothing else changes.

# %%
import importlib.util
import os
import subprocess
import sys
import time

if importlib.util.find_spec("jsparse") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "jsparse[notebooks]"], check=True)

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jsparse
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import fixed_size

print("devices:", len(jax.devices()), "x", jax.devices()[0].device_kind)
SMOKE = "SMOKE" in os.environ  # a quick run, to see that everything works

# %% [markdown]
# ## A thousand data sets
#
# A shop in each of a thousand towns: 200 rows of a noisy function of two inputs, which differs from
# shop to shop in its frequency and its noise.

# %%
problems, n, m = (32 if SMOKE else 1000), 200, 25
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (problems, n, 2)).astype(np.float32)
frequency = rng.uniform(0.5, 3.0, problems).astype(np.float32)
noise = rng.uniform(0.05, 0.5, problems).astype(np.float32)


def truth(X, frequency):
    return np.sin(frequency[:, None] * X[..., 0]) + 0.3 * X[..., 1]


y = truth(X, frequency) + noise[:, None] * rng.standard_normal((problems, n), np.float32)

# %% [markdown]
# ## One program: tune and fit all of them
#
# For each problem: six lengthscales, eight values of `C`, five folds, then the fit with the best
# pair. The cross-validated error of all `C` comes from one pass over the rows.

# %%
lengthscales = jnp.asarray(np.geomspace(0.2, 3.0, 6), jnp.float32)
C = jnp.asarray(np.geomspace(0.1, 1e4, 8), jnp.float32)
folds = jsparse.plain_folds(0, n, 5)


def tuned(X, y):
    """Return the machine of least cross-validated error, its lengthscale, C and error."""
    Z = X[:m]  # the rows are in random order

    def errors(lengthscale):
        features = Nystroem(RBF(lengthscale), Z)
        return jsparse.cross_validate(features, C, X, y, folds, metric="mse").scores

    scores = jax.vmap(errors)(lengthscales)
    i, j = jnp.unravel_index(jnp.argmin(scores), scores.shape)
    machine = fixed_size.fit(RBF(lengthscales[i]), Z, C[j], X, y).expansion
    return machine, lengthscales[i], C[j], scores[i, j]


mesh = Mesh(np.array(jax.devices()), ("problems",))
sharding = NamedSharding(mesh, P("problems"))
X_all, y_all = (jax.device_put(a, sharding) for a in (X, y))
program = jax.jit(jax.vmap(tuned))
start = time.perf_counter()
compiled = program.lower(X_all, y_all).compile()
middle = time.perf_counter()
machines, best_lengthscale, best_C, error = jax.block_until_ready(compiled(X_all, y_all))
end = time.perf_counter()
print(f"{problems} problems x {len(lengthscales) * len(C)} settings x 5 folds:", end=" ")
print(f"{middle - start:.1f} s of compilation, {end - middle:.2f} s of computation")

# %% [markdown]
# The result is one `KernelExpansion` with a leading axis. `vmap` evaluates all of them, and
# indexing takes one out.

# %%
X_new = rng.uniform(-2, 2, (problems, 100, 2)).astype(np.float32)
values = jax.jit(jax.vmap(lambda machine, X: machine(X)))(machines, X_new)
test_error = np.mean((np.asarray(values) - truth(X_new, frequency)) ** 2, axis=1)
first = jax.tree.map(lambda leaf: leaf[0], machines)
print("median error of the noiseless truth", f"{np.median(test_error):.4f};", "the first:", first)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.scatter(frequency, best_lengthscale, s=4)
left.set(xlabel="frequency of the problem", ylabel="chosen lengthscale", yscale="log")
right.scatter(noise**2, error, s=4)
right.plot([0, 0.25], [0, 0.25], color="grey", lw=1)
right.set(xlabel="variance of the noise", ylabel="cross-validated error")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## Gradients of all of them
#
# The cross-validated error is differentiable in every argument, so the lengthscales of a thousand
# problems can also be tuned by a thousand descents that go in step.

# %%


def descended(X, y, log_lengthscale, steps=8 if SMOKE else 40):
    """Return logs of a lengthscale for each column after steps of normalised gradient descent."""

    def loss(log_lengthscale):
        features = Nystroem(RBF(jnp.exp(log_lengthscale)), X[:m])
        return jsparse.cross_validate(features, jnp.float32([100.0]), X, y, folds).scores[0]

    def step(i, state):
        log_lengthscale, best, best_error = state
        error, slope = jax.value_and_grad(loss)(log_lengthscale)
        better = error < best_error
        best = jnp.where(better, log_lengthscale, best)
        direction = slope / (jnp.linalg.norm(slope) + 1e-12)
        rate = jnp.float32(0.2) * (1 - i / steps)
        return log_lengthscale - rate * direction, best, jnp.minimum(error, best_error)

    return jax.lax.fori_loop(0, steps, step, (log_lengthscale, log_lengthscale, jnp.inf))[1:]


start_at = jnp.log(jnp.stack([best_lengthscale, best_lengthscale], axis=1))
count = min(problems, 200)
ends, end_errors = jax.jit(jax.vmap(descended))(X_all[:count], y_all[:count], start_at[:count])
print("error", float(jnp.mean(error[:count])), "with one lengthscale,", end=" ")
print(float(jnp.mean(end_errors)), "with one for each column; their median ratio", end=" ")
print(float(jnp.median(jnp.exp(ends[:, 1] - ends[:, 0]))))
