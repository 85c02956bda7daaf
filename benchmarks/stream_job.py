"""Train from a folder of Parquet files, in a process that measures its memory."""

import hashlib
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

import jsparse
from jsparse.data.table_files import TableFile
from jsparse.data.table_streams import TableStream, stream_schema


def main(folder: str, settings: dict) -> None:
    """Train, and print times, memory and a digest of the coefficients as JSON."""
    start = time.perf_counter()
    file = TableFile(folder, keep=("y",))
    schema, *_ = stream_schema(file, "y", task="classification")
    schema_seconds = time.perf_counter() - start
    jax.block_until_ready(jax.numpy.zeros(1))
    before = _peak()
    search = jsparse.Profile(settings.get("max_evaluations"), settings.get("tune_kernel", True))
    folds = settings.get("folds", 10)
    model = jsparse.train(
        TableStream(file, schema, "float32"),
        task="classification",
        key=0,
        method=jsparse.FixedSize(settings["n_prototypes"]),
        search=search,
        folds=folds,
        out_of_fold=False,
        resources=jsparse.Resources(checkpoint=settings.get("checkpoint")),
    )
    coefficients = np.asarray(model.model.expansion.coefficients)
    result = {
        "digest": hashlib.sha256(coefficients.tobytes()).hexdigest(),
        "rows": model.n_rows,
        "schema": schema_seconds,
        **model.seconds,
        "run": model.seconds["total"] - model.seconds["compile"],
        "cv_error": model.cv_error,
        "before_bytes": before,
        "peak_bytes": _peak(),
        "planned_bytes": jsparse.plan(
            model.n_rows,
            len(schema.features),
            settings["n_prototypes"],
            folds=folds,
            streamed=True,
            n_parameters=int(search.tune_kernel),
            search=search,
        ).peak,
    }
    print(json.dumps(result))


def _peak() -> int:
    # `ru_maxrss` would not do: a process inherits it from its parent.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
