# %% [markdown]
# # How few prototypes will do
#
# Mall and Suykens (2015) drive most prototypes out of an LS-SVM by ridge systems that are
# reweighted again and again. Here their Figures 1 and 2 are drawn anew, and the error against the
# number of prototypes by every method of this package that leaves some out.
# The data sets are read from the folder that the environment variable `JSPARSE_DATA` names.

# %%
import os
import sys
import tempfile
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import jsparse
from jsparse.data import benchmark_set

if "JSPARSE_DATA" not in os.environ:
    print("nothing is run: JSPARSE_DATA names no folder with the data sets")
    sys.exit(0)
jax.config.update("jax_enable_x64", True)
figures = Path(os.environ.get("FIGURES", tempfile.mkdtemp()))
figures.mkdir(parents=True, exist_ok=True)
print("device", jax.devices()[0].device_kind, "figures in", figures)

MACHINES = {
    "PFS-LSSVM": lambda M: jsparse.FixedSize(M),
    "SPFS-LSSVM": lambda M: jsparse.SparseReduction(M),
    "SSD-LSSVM": lambda M: jsparse.SparseReduction(M, initialization="dual"),
}

# %% [markdown]
# ## Figure 1: ripley's two classes
#
# 250 rows to train on and 1000 to test on. The fixed-size machine keeps all of its 58 prototypes;
# the reductions begin with as many, and the few they leave are drawn as circles.

# %%
data = benchmark_set("ripley")
train, test = data.train[0], data.test[0]
X, y = data.X[train], data.y[train]
low, high = X.min(axis=0) - 0.1, X.max(axis=0) + 0.1
grid = np.stack(np.meshgrid(*(np.linspace(a, b, 80) for a, b in zip(low, high, strict=True))), -1)
figure, axes = plt.subplots(1, 3, figsize=(12, 4), sharex=True, sharey=True, layout="constrained")
for axis, (name, make) in zip(axes, MACHINES.items(), strict=True):
    found = jsparse.train(X, y, task="classification", key=0, method=make(58))
    error = np.mean(found.predict(data.X[test]) != data.y[test])
    values = np.asarray(found.expansion(grid.reshape(-1, 2))).reshape(80, 80)
    axis.scatter(*X.T, c=y, s=6, cmap="coolwarm")
    axis.contour(grid[..., 0], grid[..., 1], values, [0.0], colors="black")
    axis.scatter(*X[found.point_rows].T, s=60, facecolors="none", edgecolors="black")
    axis.set_title(f"{name}: {found.model.size} prototypes, error {error:.3f}")
    print(name, "prototypes", found.model.size, "error", error)
figure.savefig(figures / "ripley.png", dpi=120)

# %% [markdown]
# ## Figure 2: boston, seen along its first principal component
#
# Two thirds of the rows train. The values of each machine are drawn over the rows' projection, and
# its prototypes apart.

# %%
data = benchmark_set("boston")
order = np.random.default_rng(0).permutation(len(data.y))
train, test = order[:338], order[338:]
X, y = data.X[train], (data.y[train] - data.y[train].mean()) / data.y[train].std()
y_test = (data.y[test] - data.y[train].mean()) / data.y[train].std()
Z = (X - X.mean(axis=0)) / X.std(axis=0)
along = Z @ np.linalg.svd(Z, full_matrices=False)[2][0]
figure, axes = plt.subplots(1, 3, figsize=(12, 4), sharex=True, sharey=True, layout="constrained")
for axis, (name, make) in zip(axes, MACHINES.items(), strict=True):
    found = jsparse.train(X, y, task="regression", key=0, method=make(113), out_of_fold=False)
    error = np.mean(np.square(found.predict(data.X[test]) - y_test))
    values, rows = found.predict(X), found.point_rows
    axis.plot(along, y, ".", color="lightgrey", label="rows")
    axis.plot(along, values, ".", color="tab:blue", ms=3, label="values")
    axis.plot(along[rows], values[rows], "o", mfc="none", color="black", label="prototypes")
    axis.set_title(f"{name}: {found.model.size} prototypes, error {error:.3f}")
    axis.set_xlabel("first principal component")
    print(name, "prototypes", found.model.size, "error", error)
axes[0].set_ylabel("standardised price")
axes[0].legend()
figure.savefig(figures / "boston.png", dpi=120)

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
    X, y, method=jsparse.SCDP(max_prototypes=110), search=jsparse.Profile(5), **options
)


def error_of(predict) -> float:
    return float(np.mean(np.square(predict(data.X[test]) - y_test)))


sizes = np.arange(2, len(path.curve.sizes) + 1, 4)
figure, axis = plt.subplots(layout="constrained")
axis.plot(sizes, [error_of(path.at(int(k)).predict) for k in sizes], label="SCDP")
several = [15, 40, 113]
plain = [jsparse.train(X, y, method=jsparse.FixedSize(m), **options) for m in several]
axis.plot(several, [error_of(one.predict) for one in plain], "s-", label="fixed-size LS-SVM")
for initialization, name in (("primal", "SPFS-LSSVM"), ("dual", "SSD-LSSVM")):
    method = jsparse.SparseReduction(113, initialization=initialization)
    kernel = jsparse.train(X, y, method=method, **options).kernel
    points = []
    for C in np.geomspace(1, 1e4, 9):
        given = {"kernel": kernel, "C": np.array([C]), "search": jsparse.Profile(tune_kernel=False)}
        one = jsparse.train(X, y, method=method, folds=2, **given, **options)
        points.append((one.model.size, error_of(one.predict)))
        print(name, "C", round(C, 1), "prototypes", *points[-1])
    axis.plot(*np.array(points).T, "o-", label=name)
axis.set_xscale("log")
axis.set_yscale("log")
axis.set_xlabel("prototypes")
axis.set_ylabel("mean squared error, rows held out")
axis.legend()
figure.savefig(figures / "sizes.png", dpi=120)
