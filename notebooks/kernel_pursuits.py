# %% [markdown]
# # Exactly K atoms: denoising by kernel pursuits
#
# The signals of Donoho and Johnstone (1994), as Kabbara and Psaromiligkos (2015) take them, learnt
# by kernel subspace pursuit (KSP), matching pursuit (KMP) and basis pursuit (KBP).

# %%
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("jsparse") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "jsparse[notebooks]"], check=True)

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jsparse
from jsparse.kernels import RBF
from jsparse.machines import pursuits

print("device:", jax.devices()[0].device_kind)
SMOKE = "SMOKE" in os.environ  # a quick run, to see that everything works


def heavisine(x):
    return 4 * np.sin(4 * np.pi * x) - np.sign(x - 0.3) - np.sign(0.72 - x)


def doppler(x):
    return np.sqrt(x * (1 - x)) * np.sin(2 * np.pi * 1.5 / (x + 0.5))


def blocks(x):
    a = np.array([4, -5, 3, -4, 5, -4.2, 2.1, 4.3, -3.1, 2.1, -4.2])
    b = np.array([10, 13, 15, 23, 25, 40, 44, 65, 76, 78, 81]) / 100
    return ((1 + np.sign(x[:, None] - b)) / 2) @ a


rng = np.random.default_rng(0)
x = np.sort(rng.uniform(size=200)).astype(np.float32)
line = np.linspace(0.002, 0.998, 400, dtype=np.float32)
noise = np.sqrt(0.15) * rng.standard_normal(200)

# %% [markdown]
# ## A curve over K
#
# `train` tunes the width, and cross-validation says which of the sizes asked for is worth having.
# The model of every other size is there too: `at`.

# %%
figure = plt.figure(figsize=(11, 7), layout="constrained")
axes = figure.subplots(2, 3)
sizes = (4, 8, 16, 24)
for column, g in enumerate((heavisine, doppler, blocks)):
    y = (g(x) + noise).astype(np.float32)
    trained = jsparse.train(
        x[:, None],
        y,
        task="regression",
        key=0,
        method=jsparse.KSP(n_prototypes=sizes, size_tolerance=0.0),
        search=jsparse.Profile(max_evaluations=2 if SMOKE else 5),
        folds=5,
    )
    errors = [np.mean((trained.at(k).predict(line[:, None]) - g(line)) ** 2) for k in sizes]
    print(g.__name__, "K chosen", trained.size, "errors without noise", np.round(errors, 4))
    top, bottom = axes[:, column]
    top.plot(x, y, ".", markersize=3, color="grey")
    top.plot(line, g(line), label="signal")
    top.plot(line, trained.predict(line[:, None]), label=f"KSP, {trained.size} atoms")
    top.set_title(g.__name__)
    top.legend()
    bottom.plot(trained.curve.sizes, trained.curve.errors, "o-", label="five folds")
    bottom.plot(sizes, np.array(errors) + 0.15, "x--", label="new rows, with noise")
    bottom.set_xlabel("atoms")
    bottom.legend()
plt.show()

# %% [markdown]
# ## Three pursuits with the same atoms to choose from
#
# A matching pursuit keeps what it has taken, subspace pursuit exchanges it, basis pursuit shrinks
# its coefficients. A dictionary may have atoms of several widths at once.

# %%
X, y = jnp.asarray(x[:, None]), jnp.asarray((blocks(x) + noise).astype(np.float32))
for kernel, what in ((RBF(0.05), "one width"), ((RBF(0.2), RBF(0.05), RBF(0.01)), "three widths")):
    for method in (
        jsparse.KSP(n_prototypes=20),
        jsparse.KMP(n_prototypes=20),
        jsparse.KBP(n_prototypes=20),
    ):
        machine = pursuits.fit(method, kernel, X, X, y).at(20)
        error = np.mean((np.asarray(machine(line[:, None])) - blocks(line)) ** 2)
        atoms = np.bincount(getattr(machine.kernel, "which", np.zeros(20, int))).tolist()
        print(f"{method.title}, {what}: error {error:.3f}, atoms of each width {atoms}")

# %% [markdown]
# ## Gradients on the atoms selected
#
# Which atoms are selected is a discrete choice; the least squares that follows is not. `refit` is
# that last step, differentiable in the width, the inputs and the targets: here the width and a
# warp of the inputs are learnt by gradient through it, with the atoms held still.

# %%
half = np.arange(200) % 2 == 0
y = jnp.asarray((doppler(x) + 0.3 * noise).astype(np.float32))
machine = pursuits.fit(jsparse.KSP(n_prototypes=10), RBF(0.08), X[half], X[half], y[half]).at(10)


@jax.jit
def loss(params, prototypes, X, y, X_new, y_new):
    def warped(X):
        return X + params["warp"] * jnp.sin(jnp.pi * X)

    kernel = RBF(jnp.exp(params["log_width"]))
    model = pursuits.refit(kernel, warped(prototypes), warped(X), y)
    return jnp.mean(jnp.square(model(warped(X_new)) - y_new))


params = {"log_width": jnp.log(0.08), "warp": jnp.zeros(())}
data = (machine.prototypes, X[half], y[half], X[~half], y[~half])
adam = optax.adam(0.02)
state = adam.init(params)
before = loss(params, *data)
for _ in range(4 if SMOKE else 40):
    gradient = jax.grad(loss)(params, *data)
    updates, state = adam.update(gradient, state)
    params = optax.apply_updates(params, updates)
print("error on the other half", before, "->", loss(params, *data))
print("width", jnp.exp(params["log_width"]), "warp", params["warp"])
by_targets = jax.grad(loss, 3)(params, *data)
print("the target that counts most is at", x[half][np.argmax(np.abs(by_targets))])
