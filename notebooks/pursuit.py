# %% [markdown]
# # Sparse solutions of linear systems, and a kernel machine as small as it can be
#
# `jsparse.pursuit` solves `A w = b` with few non-zero `w`. It knows matrices, not kernels.

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
from sklearn.datasets import load_breast_cancer

import jsparse
from jsparse import plotting, pursuit

print("device:", jax.devices()[0].device_kind)
SMOKE = "SMOKE" in os.environ  # a quick run, to see that everything works

# %% [markdown]
# ## Compressed sensing
#
# A signal of 1024 numbers, 32 of them not zero, from 256 measurements (Karsmakers 2011, Figure 5,
# on a quarter of the scale). Orthogonal matching pursuit finds atoms and values; the path says
# after how many the measurements are explained.

# %%
rng = np.random.default_rng(0)
n, D, spikes = 256, 1024, 32
X = np.linalg.qr(rng.standard_normal((D, n)))[0].T.astype(np.float32)  # orthonormal rows
w = np.zeros(D, np.float32)
w[rng.permutation(D)[:spikes]] = rng.choice([-1.0, 1.0], spikes)
y = X @ w + 0.01 * rng.standard_normal(n).astype(np.float32)

path = pursuit.omp(X, y, max_atoms=48)
recovered = np.asarray(path.dense(D, spikes))
print("recovered", set(np.flatnonzero(recovered)) == set(np.flatnonzero(w)))
print("largest error of a value", np.abs(recovered - w).max())
print("residual norm with 31, 32, 33 atoms", path.residual_norm[spikes - 1 : spikes + 2])
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
axes.plot(w, "o", mfc="none", ms=5, label="signal")
axes.plot(recovered, ".", ms=4, label="omp, 32 atoms")
axes.legend(frameon=False, loc="upper right")
plt.show()

# %% [markdown]
# ## Normal equations, formed or not
#
# `scdp` takes `A w = b`. A may be a matrix, a batch of them that goes in step, or a function that
# gives columns, of which a short path needs few. The LASSO's path is there to compare with.

# %%
X = rng.standard_normal((500, 200))
truth = np.where(np.arange(200) < 10, 1.0, 0.0)
y = X @ truth + rng.standard_normal(500)
A, b = jnp.asarray(X.T @ X), jnp.asarray(X.T @ y)
formed = pursuit.scdp(A, b, max_atoms=20)
by_columns = pursuit.scdp(
    pursuit.GramColumns(jnp.asarray(X)), b, diagonal=jnp.sum(jnp.square(X), axis=0), max_atoms=20
)
print("the same atoms", bool((formed.support == by_columns.support).all()))
lasso = pursuit.lasso(A, b, max_atoms=20)
at_ten = int(np.flatnonzero(np.asarray(lasso.cardinality) == 10)[-1])
total = float(np.sum(np.square(y)))
print("squared error with 10 atoms, SCDP ", total - float(formed.explained[10]))
print("squared error with 10 atoms, LASSO", total - float(lasso.explained[at_ten]))

# %% [markdown]
# ## A kernel machine of every size
#
# Prototypes are selected one after another, and cross-validation of the whole path says how many
# are worth having: the least number within a tenth of a standard error of the best.

# %%
X, y = load_breast_cancer(return_X_y=True)
order = rng.permutation(len(y))
rows, test = order[:400], order[400:]
trained = jsparse.train(
    X[rows],
    y[rows],
    task="classification",
    key=0,
    method=jsparse.SCDP(max_prototypes=60),
    search=jsparse.Profile(max_evaluations=5),
    metric="misclassification",
)
size = trained.curve.size
sizes = np.arange(1, 61)
new = np.array([(trained.at(int(k)).predict(X[test]) != y[test]).mean() for k in sizes])
print("prototypes", size, "of", trained.n_points, "candidates")
print("cross-validated error", trained.cv_error, "on new rows", new[size - 1])
print("by the one-standard-error rule", trained.curve.smallest_within(1.0), "prototypes")

# %%
figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
plotting.error_curve(trained, axes, test_errors=new)
axes.set_title("breast cancer")
plt.show()
