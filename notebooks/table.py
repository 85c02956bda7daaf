# %% [markdown]
# # From a table to a small model
#
# A table with numbers and categories, a model of a few prototypes, and what to ask of it: how the
# error falls with the size, which columns matter, and how sure a prediction is.

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
import pandas as pd

import jsparse
from jsparse import Frame, plotting
from jsparse.kernels import RBF

print("device:", jax.devices()[0].device_kind)
SMOKE = "SMOKE" in os.environ  # a quick run, to see that everything works

# %% [markdown]
# ## The table
#
# Rents of flats in three towns. The rent depends on the area and the town, falls with the distance
# to the centre, and does not depend on the house number.

# %%
rng = np.random.default_rng(0)
n = 400 if SMOKE else 1500
town = rng.choice(["Ghent", "Leuven", "Antwerp"], n)
flats = pd.DataFrame(
    {
        "town": town,
        "area": rng.uniform(20, 140, n).round(),
        "distance": rng.exponential(3.0, n).round(1),
        "house_number": rng.integers(1, 200, n),
    }
)
base = pd.Series(town).map({"Ghent": 12.0, "Leuven": 14.0, "Antwerp": 11.0}).to_numpy()
spread = 10 + 0.2 * flats["area"]
flats["rent"] = (
    base * flats["area"] ** 0.9 * np.exp(-0.05 * flats["distance"])
    + spread * rng.standard_normal(n)
).round()
learn, test = flats[: -n // 4], flats[-n // 4 :]
learn.head()

# %% [markdown]
# ## Train
#
# `train` standardises, makes indicators of the categories, chooses prototypes, tunes lengthscale
# and `C` by cross-validation, and fits. `key` is the random seed.

# %%
trained = jsparse.train(
    learn, "rent", task="regression", method=jsparse.FixedSize(100), search="auto", key=0
)
trained

# %%
errors = trained.predict(test) - test["rent"].to_numpy()
print(f"cross-validated {trained.cv_error**0.5:.0f}, on new rows {np.mean(errors**2) ** 0.5:.0f}")

# %% [markdown]
# ## How many prototypes are worth having?
#
# `SCDP` selects prototypes one after another, and cross-validation scores every size on the way.

# %%
path = jsparse.train(
    learn,
    "rent",
    task="regression",
    method=jsparse.SCDP(max_prototypes=60),
    search=jsparse.Profile(4 if SMOKE else 8),
    key=0,
)
print("least error with", path.curve.size, "prototypes;", end=" ")
print("within one standard error", path.curve.smallest_within(1.0))
plotting.error_curve(path)

# %% [markdown]
# ## Which columns matter?
#
# A kernel with one lengthscale for each column shows along which columns the rent changes fast: the
# relevance is the inverse lengthscale. The house number's is the smallest. The area's is small too,
# as the rent changes slowly and almost linearly with it. `Frame(..., categories="kernel")` compares
# towns as they are, in place of indicator columns.

# %%
relevant = jsparse.train(
    Frame(learn, categories="kernel"),
    "rent",
    task="regression",
    method=jsparse.FixedSize(100),
    kernel=RBF(jnp.ones(4)),
    search=jsparse.Gradient(max_evaluations=10 if SMOKE else 60),
    key=0,
)
print(relevant.relevance())
plotting.relevance(relevant)

# %% [markdown]
# ## How sure is a prediction?
#
# The errors that tuning left out of fold calibrate intervals.

# %%
ends = trained.interval(test, coverage=0.9)
rent = test["rent"].to_numpy()
inside = (ends[:, 0] <= rent) & (rent <= ends[:, 1])
print(f"{100 * inside.mean():.0f} % of {len(test)} new rents are inside their 90 % intervals")
order = np.argsort(trained.predict(test))
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.fill_between(range(len(test)), *ends[order].T, alpha=0.25, label="90 % interval")
axes.plot(rent[order], ".", ms=3, label="rent")
axes.set(xlabel="new flats, by predicted rent", ylabel="rent")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## Keep it
#
# The file holds arrays and a JSON document; loading executes nothing.

# %%
trained.save("rents.jsparse")
model = jsparse.load("rents.jsparse")
print(os.path.getsize("rents.jsparse"), "bytes;", model.predict(test[:2]))
os.remove("rents.jsparse")
