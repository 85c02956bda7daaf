# %% [markdown]
# # Large data: a stream, a mesh, a plan and its progress
#
# Everything a fixed-size machine needs of the rows is a sum over rows. So rows may come in batches
# from a disk, in blocks on several devices, or both, and memory does not grow with their number.

# %%
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if importlib.util.find_spec("jsparse") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "jsparse[notebooks]"], check=True)

import jax
import numpy as np
from jax.sharding import Mesh

import jsparse
from jsparse.data.streams import ArrayStream
from jsparse.features import Nystroem
from jsparse.machines import fixed_size

print("devices:", len(jax.devices()), "x", jax.devices()[0].device_kind)
SMOKE = "SMOKE" in os.environ  # a quick run, to see that everything works

# %% [markdown]
# ## Rows on a disk
#
# A memory map of two million rows of ten columns; it is read in batches, never whole.

# %%
n, d, m = (20_000 if SMOKE else 2_000_000), 10, 100
folder = tempfile.TemporaryDirectory()
X = np.lib.format.open_memmap(
    Path(folder.name) / "X.npy", mode="w+", dtype=np.float32, shape=(n, d)
)
y = np.lib.format.open_memmap(Path(folder.name) / "y.npy", mode="w+", dtype=bool, shape=(n,))
rng = np.random.default_rng(0)
for start in range(0, n, 100_000):
    block = rng.standard_normal((min(100_000, n - start), d), np.float32)
    X[start : start + len(block)] = block
    noise = 0.5 * rng.standard_normal(len(block))
    y[start : start + len(block)] = np.sin(2 * block[:, 0]) + block[:, 1] + noise > 0
print(f"{X.nbytes / 2**20:.0f} MiB on the disk")
stream = ArrayStream(X, y, batch_rows=65_536)

# %% [markdown]
# ## What will it take?
#
# `plan` says before any work what memory a run will use.

# %%
print(jsparse.plan(n, d, m, streamed=True))

# %% [markdown]
# ## Train on all devices, with a report of progress
#
# On a mesh every device sums its own rows, and only the sums travel. With one device the mesh is of
# one device, and the model is the same to rounding.


# %%
def report(done, planned, best):
    print(f"  {done} of {planned} kernels scored, least error {100 * best:.2f} %", flush=True)


mesh = Mesh(np.array(jax.devices()), ("rows",))
start = time.perf_counter()
trained = jsparse.train(
    stream,
    task="classification",
    method=jsparse.FixedSize(m),
    search=jsparse.Profile(max_evaluations=2 if SMOKE else 6),
    folds=jsparse.HoldOut(0.1),
    resources=jsparse.Resources(mesh=mesh, max_seconds=600),
    progress=report,
    key=0,
)
seconds = time.perf_counter() - start
print(f"{n} rows in {seconds:.0f} s; error {100 * trained.cv_error:.2f} %")
print({part: round(seconds, 1) for part, seconds in trained.seconds.items()})

# %% [markdown]
# ## Stop and resume
#
# The history of a search is all that is needed to take it up again, in this process or another.

# %%
history = Path(folder.name) / "search"
jsparse.save_history(history, trained.tuning.history)
search = jsparse.Profile(max_evaluations=3 if SMOKE else 8, history=jsparse.load_history(history))
again = jsparse.train(
    stream,
    task="classification",
    method=jsparse.FixedSize(m),
    search=search,
    folds=jsparse.HoldOut(0.1),
    key=0,
)
print(len(trained.tuning.history), "kernels before,", len(again.tuning.history), "after")

# %% [markdown]
# ## Rows that come later
#
# Sums are additive. The machine of all rows needs the sums of the old rows, not the rows.

# %%
prototypes, kernel, C = trained.expansion.prototypes, trained.kernel, trained.C
scaling = trained.expansion.scaling
features = Nystroem(kernel, prototypes)
scaled = scaling.apply(X[: n // 2]), scaling.apply(X[n // 2 :])
signs = np.where(y, np.float32(1), np.float32(-1))
old = jsparse.accumulate(features, scaled[0], signs[: n // 2])
new = jsparse.accumulate(features, scaled[1], signs[n // 2 :])
machine = fixed_size.solve(features, old + new, np.float32(C)).expansion
same = np.max(np.abs(machine(scaled[0][:1000]) - trained.expansion(X[:1000])))
print("largest difference from the trained machine:", same)
folder.cleanup()
