"""Run by `test_checkpoints.py` in a process that is killed: `on_kills.py CASE FOLDER [MOMENT]`."""

import json
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np

import jsparse
from jsparse.data.streams import ArrayStream
from jsparse.training import checkpoint

rng = np.random.default_rng(0)
N, BATCH = 400, 50
X = rng.standard_normal((N, 3))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(N)
labels = np.array(["low", "middle", "high"])[np.digitize(y, [-0.5, 0.5])]
OPTIONS = {
    "task": "regression",
    "method": jsparse.FixedSize(10, selection="uniform"),
    "folds": 3,
    "search": jsparse.Profile(4),
}
CLASSES = {"task": "classification", "multiclass": "one_versus_one", "folds": jsparse.HoldOut(0.3)}
CASES = {
    "stream": ([ArrayStream(X, y, batch_rows=BATCH)], {}),
    "classes": ([ArrayStream(X, labels, np.arange(N) % 3.0, batch_rows=BATCH)], CLASSES),
    "path": (
        [ArrayStream(X, y, batch_rows=BATCH)],
        {"method": jsparse.SCDP(4, candidates=X[:20]), "search": jsparse.Annealing(8)},
    ),
    "memory": ([X[:120], y[:120]], {"search": jsparse.Profile(6)}),
    "gradient": ([X[:120], y[:120]], {"search": jsparse.Gradient(max_evaluations=6)}),
    "distilled": (
        [X[:120], y[:120]],
        {"method": None, "search": None, "folds": "auto", "preset": "fast", "n_prototypes": 5},
    ),
}


def trained(case, path, seconds=0.0):
    data, options = CASES[case]
    resources = jsparse.Resources(
        checkpoint=path, checkpoint_seconds=seconds, sample_rows=200, memory=10**9
    )
    return jsparse.train(*data, key=0, resources=resources, **{**OPTIONS, **options})


def result(model):
    """Return every bit of a result except times."""
    tables = {"score": model.cv_error, "C": model.C, "out_of_fold": model.out_of_fold}
    for i, leaf in enumerate(jax.tree.leaves((model.expansion, model.tuning.kernel))):
        tables[f"leaf {i}"] = leaf
    for i, e in enumerate(model.tuning.history):
        tables |= {f"{i} {name}": getattr(e, name) for name in ("theta", "C", "scores", "slope")}
    return {name: np.asarray(a).tobytes().hex() for name, a in tables.items()}


def kill_at(moment):
    """Kill this process at a moment such as "batch 7" or "rename 3", counted from the start."""
    what, number = moment.split()
    count = iter(range(int(number)))

    def now():
        if next(count, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    if what == "batch":
        read = ArrayStream.__iter__

        def killed(self):
            for batch in read(self):
                now()
                yield batch

        ArrayStream.__iter__ = killed
    else:
        owner = {"write": Path, "rename": Path, "fsync": os}[what]
        name = {"write": "write_bytes", "rename": "replace", "fsync": "fsync"}[what]
        function = getattr(owner, name)

        def called(*arguments, **named):
            now()
            return function(*arguments, **named)

        setattr(owner, name, called)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    case, folder = sys.argv[1], Path(sys.argv[2])
    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    checkpoint._SHARE = 0.0  # write the file after every step, however long that takes
    if sys.argv[3:]:
        kill_at(sys.argv[3])
    path = folder / "checkpoint"
    outcome = result(trained(case, path))
    assert not path.exists()
    (folder / "result.json").write_text(json.dumps(outcome))
