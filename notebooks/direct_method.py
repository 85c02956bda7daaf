# %% [markdown]
# # The direct method: the best machine of a few prototypes
#
# Wu, Schoelkopf and Bakir (2006) add one constraint to a convex kernel machine, that its `w` is a
# combination of a few expansion vectors, and find these by descent. Here handwritten digits, 3
# against 8: first the twelve expansion vectors as images (their Figure 1), then the same descent
# through a small network, whose features and prototypes are found together.

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
from sklearn.datasets import load_digits

import jsparse
from jsparse import direct, reduced_set
from jsparse.kernels import RBF

print("device:", jax.devices()[0].device_kind)
SMOKE = "SMOKE" in os.environ  # a quick run, to see that everything works

# %%
X, label = load_digits(return_X_y=True)  # eight by eight pixels
X, width = X / 8 - 1, 32.0
train, test = np.arange(300 if SMOKE else 1000), np.arange(1000, len(X))
side = round(X.shape[1] ** 0.5)


def of_two(rows):
    rows = rows[np.isin(label[rows], (3, 8))]
    targets = np.where(label[rows] == 3, 1, -1)
    return jnp.asarray(X[rows], jnp.float32), jnp.asarray(targets, jnp.float32)


(X_train, y_train), (X_test, y_test) = of_two(train), of_two(test)
print(len(X_train), "rows of", X_train.shape[1], "pixels")

# %% [markdown]
# ## Twelve expansion vectors
#
# They start as means of clusters. What is minimised is the support vector machine's own objective.

# %%
kernel, C = RBF(np.float32((width / 2) ** 0.5)), 10.0
start = jsparse.prototypes.k_means(0, X_train, 12).centres
problem = direct.LargeMargin(kernel, X_train, y_train, C)
descent = direct.minimise(problem, start, max_iterations=10 if SMOKE else 100)
machine = problem.expansion(descent.Z, descent.solved)
reached = descent.history[: int(descent.steps) + 1]
wrong = jnp.mean((machine(X_test) >= 0) != (y_test > 0))
print(f"W from {reached[0]:.1f} to {reached[-1]:.1f} in {int(descent.steps)} steps,", end=" ")
print(f"{int(descent.evaluations)} inner problems; test error {100 * wrong:.1f} %")

figure = plt.figure(figsize=(9, 3.4), layout="constrained")
order = np.argsort(-np.asarray(machine.coefficients))
for axes, i in zip(figure.subplots(2, 6).ravel(), order, strict=True):
    axes.imshow(np.asarray(machine.prototypes[i]).reshape(side, side), cmap="gray")
    axes.set_title(f"{machine.coefficients[i]:+.1f}", fontsize=8)
    axes.axis("off")
figure.suptitle("the twelve expansion vectors and their coefficients, 3 positive")
plt.show()

# %% [markdown]
# The reduced set method approximates a whole machine afterwards, whatever that does to the margin.

# %%
reduced = reduced_set.fit(kernel, start, C, X_train, y_train)
values = reduced.expansion(X_test)
wrong = jnp.mean((values >= 0) != (y_test > 0))
print(f"reduced set: |w - w'| / |w| = {float(reduced.error):.2f}, test error {100 * wrong:.1f} %")

# %% [markdown]
# ## As a layer
#
# `marginal(problem)(Z)` is a function of the prototypes and of all that the problem is made of.
# With inputs that a network gives, its gradient is that of the network too, by Lemma 1 and without
# a derivative of the solver's steps. Features are bounded: else they would go apart for ever.

# %%
WIDTHS = (X_train.shape[1], 16, 2)
keys = jax.random.split(jax.random.key(0), len(WIDTHS) - 1)
layers = [
    jax.random.normal(key, (n, m), jnp.float32) / n**0.5
    for key, n, m in zip(keys, WIDTHS, WIDTHS[1:], strict=False)
]


def features(layers, X):
    for layer in layers:
        X = jnp.tanh(X @ layer)
    return X


def objective(params, X, y):
    layers, Z = params
    inner = direct.LargeMargin(RBF(jnp.float32(0.5)), features(layers, X), y, C)
    value, solved = direct.marginal(inner)(Z)
    return value + 5 * sum(jnp.sum(layer**2) for layer in layers), solved


@jax.jit
def step(params, state, X, y):
    (value, _), gradient = jax.value_and_grad(objective, has_aux=True)(params, X, y)
    updates, state = adam.update(gradient, state)
    return optax.apply_updates(params, updates), state, value


@jax.jit
def score(params, X, y, X_test, y_test):
    layers, Z = params
    inner = direct.LargeMargin(RBF(jnp.float32(0.5)), features(layers, X), y, C)
    model = inner.expansion(Z, objective(params, X, y)[1])
    return jnp.mean((model(features(layers, X_test)) >= 0) != (y_test > 0))


params = layers, jax.random.uniform(jax.random.key(1), (4, 2), jnp.float32, -1, 1)
adam = optax.adam(0.02)
state, values = adam.init(params), []
before = score(params, X_train, y_train, X_test, y_test)
for _ in range(5 if SMOKE else 60):
    params, state, value = step(params, state, X_train, y_train)
    values.append(float(value))
after = score(params, X_train, y_train, X_test, y_test)
print(f"objective {values[0]:.0f} to {values[-1]:.0f}; test error", end=" ")
print(f"{100 * before:.1f} to {100 * after:.1f} % with 4 prototypes in 2 learnt features")

figure = plt.figure(figsize=(5, 4), layout="constrained")
axes = figure.subplots()
U = np.asarray(features(params[0], X_test))
for digit, sign in ((3, 1), (8, -1)):
    axes.plot(*U[np.asarray(y_test) == sign].T, ".", markersize=3, label=f"{digit}")
axes.plot(*np.asarray(params[1]).T, "k*", markersize=10, label="prototypes")
axes.legend()
axes.set_title("learnt features of the test rows")
plt.show()
