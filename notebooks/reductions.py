# %% [markdown]
# # How few prototypes will do
#
# Mall and Suykens (2015) prune an LS-SVM: iteratively reweighted ridge regression drives most
# coefficients to zero. Here are pictures after their Figures 1 and 2, and the error against the
# number of prototypes for every method of jsparse that leaves some out.

# %%
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("jsparse") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "jsparse[notebooks]"], check=True)

import jax
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import jsparse

print("device:", jax.devices()[0].device_kind)
SMOKE = "SMOKE" in os.environ  # a quick run, to see that everything works

LARGEST = 30 if SMOKE else 98

MACHINES = {
    "PFS-LSSVM": lambda M: jsparse.FixedSize(M),
    "SPFS-LSSVM": lambda M: jsparse.SparseReduction(M),
    "SSD-LSSVM": lambda M: jsparse.SparseReduction(M, initialization="dual"),
}

# %% [markdown]
# ## Figure 1: two classes of two normal distributions each
#
# The mixture of Ripley (1994): 250 rows to train on and 1000 to test on; no machine can err less
# than 8 %. The fixed-size machine keeps all of its 58 prototypes. The reductions start with as many
# and leave the few that are drawn as circles.

# %%
rng = np.random.default_rng(0)
centres = np.array([[[-0.7, 0.3], [0.3, 0.3]], [[-0.3, 0.7], [0.4, 0.7]]])


def mixture(n):
    labels, part = rng.integers(2, size=n), rng.integers(2, size=n)
    noise = np.sqrt(0.03) * rng.standard_normal((n, 2))
    return (centres[labels, part] + noise).astype(np.float32), labels


(X, y), (X_test, y_test) = mixture(250), mixture(1000)
low, high = X.min(axis=0) - 0.1, X.max(axis=0) + 0.1
grid = np.stack(np.meshgrid(*(np.linspace(a, b, 80) for a, b in zip(low, high, strict=True))), -1)
figure, axes = plt.subplots(1, 3, figsize=(12, 4), sharex=True, sharey=True, layout="constrained")
for axis, (name, make) in zip(axes, MACHINES.items(), strict=True):
    trained = jsparse.train(X, y, task="classification", key=0, method=make(58))
    error = np.mean(trained.predict(X_test) != y_test)
    values = np.asarray(trained.expansion(grid.reshape(-1, 2))).reshape(80, 80)
    axis.scatter(*X.T, c=y, s=6, cmap="coolwarm")
    axis.contour(grid[..., 0], grid[..., 1], values, [0.0], colors="black")
    axis.scatter(*X[trained.point_rows].T, s=60, facecolors="none", edgecolors="black")
    axis.set_title(f"{name}: {trained.model.size} prototypes, error {error:.3f}")
    print(name, "prototypes", trained.model.size, "error", error)
plt.show()

# %% [markdown]
# ## Figure 2: a regression, seen along its first principal component
#
# Progression of diabetes after a year, of 442 patients with ten columns; two thirds of the rows
# train. Each machine's values are drawn against the first principal component.

# %%
inputs, targets = load_diabetes(return_X_y=True)
order = np.random.default_rng(0).permutation(len(targets))
train, test = order[: 120 if SMOKE else 295], order[295:]
X, X_test = inputs[train].astype(np.float32), inputs[test].astype(np.float32)
unit, centre = targets[train].std(), targets[train].mean()
y, y_test = (((targets[rows] - centre) / unit).astype(np.float32) for rows in (train, test))
Z = (X - X.mean(axis=0)) / X.std(axis=0)
along = Z @ np.linalg.svd(Z, full_matrices=False)[2][0]
figure, axes = plt.subplots(1, 3, figsize=(12, 4), sharex=True, sharey=True, layout="constrained")
for axis, (name, make) in zip(axes, MACHINES.items(), strict=True):
    trained = jsparse.train(X, y, task="regression", key=0, method=make(LARGEST), out_of_fold=False)
    error = np.mean(np.square(trained.predict(X_test) - y_test))
    values, rows = trained.predict(X), trained.point_rows
    axis.plot(along, y, ".", color="lightgrey", label="rows")
    axis.plot(along, values, ".", color="tab:blue", ms=3, label="values")
    axis.plot(along[rows], values[rows], "o", mfc="none", color="black", label="prototypes")
    axis.set_title(f"{name}: {trained.model.size} prototypes, error {error:.3f}")
    axis.set_xlabel("first principal component")
    print(name, "prototypes", trained.model.size, "error", error)
axes[0].set_ylabel("standardised progression")
axes[0].legend()
plt.show()

# %% [markdown]
# ## Error against size
#
# On the same rows: the whole path of SCDP, fixed-size machines of several sizes, and the two
# reductions, which `C` makes smaller or larger. A reduction does not choose its size; it comes to a
# local minimum, and of several values of `C` cross-validation takes the smallest that it cannot
# tell from the best.

# %%
options = {"task": "regression", "key": 0, "out_of_fold": False}
path = jsparse.train(
    X,
    y,
    method=jsparse.SCDP(max_prototypes=LARGEST - 3),
    search=jsparse.Profile(2 if SMOKE else 5),
    **options,
)


def error_of(predict) -> float:
    return float(np.mean(np.square(predict(X_test) - y_test)))


sizes = np.arange(2, len(path.curve.sizes) + 1, 4)
figure, axis = plt.subplots(layout="constrained")
axis.plot(sizes, [error_of(path.at(int(k)).predict) for k in sizes], label="SCDP")
several = [15, LARGEST] if SMOKE else [15, 40, LARGEST]
plain = [jsparse.train(X, y, method=jsparse.FixedSize(m), **options) for m in several]
axis.plot(several, [error_of(one.predict) for one in plain], "s-", label="fixed-size LS-SVM")
for initialization, name in (("primal", "SPFS-LSSVM"), ("dual", "SSD-LSSVM")):
    method = jsparse.SparseReduction(LARGEST, initialization=initialization)
    kernel = jsparse.train(X, y, method=method, **options).kernel
    points = []
    for C in np.geomspace(1, 1e4, 2 if SMOKE else 9):
        fixed = {"kernel": kernel, "C": np.array([C]), "search": jsparse.Profile(tune_kernel=False)}
        one = jsparse.train(X, y, method=method, folds=2, **fixed, **options)
        points.append((one.model.size, error_of(one.predict)))
        print(name, "C", round(C, 1), "prototypes", *points[-1])
    axis.plot(*np.array(points).T, "o-", label=name)
axis.set_xscale("log")
axis.set_yscale("log")
axis.set_xlabel("prototypes")
axis.set_ylabel("mean squared error, rows held out")
axis.legend()
plt.show()
