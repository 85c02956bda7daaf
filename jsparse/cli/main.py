"""`jsparse demo`, `jsparse fit` and `jsparse predict`.

Exit codes: 0 done, 1 a computation failed, 2 bad input or arguments, 3 done but not to be trusted
in this precision, 130 interrupted before there was a result.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import __version__, _status
from ..data import demo_set
from ..serialization import atomic_path, check_writable, load, save
from ..tuning.pipeline import KERNELS, Trained, train
from . import report

DONE, FAILED, BAD_INPUT, UNTRUSTED, INTERRUPTED = 0, 1, 2, 3, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    _configure(options.precision)
    try:
        with warnings.catch_warnings():
            # Lost precision is told in the report and by the exit code.
            warnings.simplefilter("ignore", _status.PrecisionWarning)
            return options.run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"jsparse: error: {error}", file=sys.stderr)
        return BAD_INPUT
    except _status.NumericalError as error:
        print(f"jsparse: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("jsparse: interrupted before there was a result", file=sys.stderr)
        return INTERRUPTED


def _configure(precision: str) -> None:
    """A program may do what a library may not: set JAX's precision and its compilation cache."""
    jax.config.update("jax_enable_x64", precision == "float64")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(base / "jsparse" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jsparse", description="Sparse kernel machines: fixed-size LS-SVM on tables of data."
    )
    parser.add_argument("--version", action="version", version=f"jsparse {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train and test a model on bundled real data")
    demo.add_argument(
        "--set", default="breast_cancer", choices=["breast_cancer", "diabetes"], dest="name"
    )
    demo.set_defaults(run=_demo)
    _training_options(demo, prototypes=100)

    fit = commands.add_parser("fit", help="train a model on a CSV or Parquet file")
    fit.add_argument("file", metavar="FILE", help="CSV or Parquet file with a header")
    fit.add_argument("--target", required=True, metavar="COLUMN", help="the column to predict")
    fit.add_argument("--task", choices=["classification", "regression"], help="default: inferred")
    fit.add_argument("--out", default="model.jsparse", metavar="MODEL", help="file to write")
    fit.add_argument("--impute", action="store_true", help="fill missing inputs in")
    fit.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")
    fit.add_argument(
        "--categorical", nargs="+", default=[], metavar="COLUMN", help="numbers that are codes"
    )
    fit.add_argument(
        "--missing", nargs="+", default=[], metavar="TEXT", help="CSV cells that mean missing"
    )
    fit.add_argument("--max-categories", type=int, default=100, metavar="N")
    fit.set_defaults(run=_fit)
    _training_options(fit, prototypes=None)

    predict = commands.add_parser("predict", help="apply a model to a CSV or Parquet file")
    predict.add_argument("model", metavar="MODEL")
    predict.add_argument("file", metavar="FILE")
    predict.add_argument("--out", metavar="FILE", help="CSV file to write; default: to the screen")
    predict.add_argument("--precision", choices=["float32", "float64"], default="float64")
    predict.set_defaults(run=_predict)
    return parser


def _training_options(parser: argparse.ArgumentParser, prototypes: int | None) -> None:
    add = parser.add_argument
    default = "min(500, a third of the rows)" if prototypes is None else str(prototypes)
    add("--prototypes", type=int, default=prototypes, metavar="M", help=f"default: {default}")
    add("--kernel", choices=[*KERNELS, "linear", "polynomial"], default="rbf")
    add("--folds", type=int, default=10, metavar="V")
    add("--search", choices=["profile", "csa"], default="profile")
    add("--evaluations", type=int, metavar="N", help="default: 10 (profile), 160 (csa)")
    add("--seconds", type=float, default=float("inf"), help="stop tuning after this long")
    add("--seed", type=int, default=0)
    add("--precision", choices=["float32", "float64"], default="float64")
    add("--quiet", action="store_true", help="no progress bar")


def _train(options: argparse.Namespace, X: np.ndarray, y: np.ndarray, task: Any) -> Trained:
    m = options.prototypes
    with report.progress(quiet=options.quiet) as progress:
        return train(
            X,
            y,
            task=task,
            key=jax.random.key(options.seed),
            n_prototypes=max(1, min(500, len(X) // 3)) if m is None else m,
            kernel=options.kernel,
            folds=options.folds,
            search_method=options.search,
            max_evaluations=options.evaluations,
            max_seconds=options.seconds,
            progress=progress,
        )


def _exit_code(trained: Trained) -> int:
    status = int(trained.fit.status)
    _status.check(status, "the fit")
    return UNTRUSTED if status == _status.PRECISION_LOST else DONE


def _demo(options: argparse.Namespace) -> int:
    data = demo_set(options.name)
    order = np.random.default_rng(options.seed).permutation(len(data.X))
    cut = 2 * len(order) // 3
    rows, held_out = order[:cut], order[cut:]
    trained = _train(options, data.X[rows], data.y[rows], data.task)
    predicted = trained.predict(data.X[held_out])
    report.training(trained, f"scikit-learn's {data.name}", len(rows), data.X.shape[1])
    report.test_error(trained, data.y[held_out], predicted)
    return _exit_code(trained)


def _fit(options: argparse.Namespace) -> int:
    from ..data.encoding import encode, encode_target, fit_schema, infer_task
    from ..data.tables import NULL_VALUES, read_table

    check_writable(options.out)
    table = read_table(options.file, null_values=(*NULL_VALUES, *options.missing))
    task, reason = infer_task(table, options.target)
    if options.task is not None:
        task, reason = options.task, "as asked"
    schema = fit_schema(
        table,
        options.target,
        task=task,
        impute=options.impute,
        categorical=options.categorical,
        drop=options.drop,
        max_categories=options.max_categories,
    )
    X = encode(schema, table, dtype=options.precision).X
    y = encode_target(schema, table)
    trained = _train(options, X, y, task)
    metadata = {
        "schema": schema.to_json(),
        "task": task,
        "classes": None if trained.classes is None else trained.classes.tolist(),
        "cv_error": trained.cv_error,
        "metric": trained.metric,
        "C": trained.C,
        "rows": len(X),
    }
    save(options.out, trained.expansion, metadata)
    report.training(trained, f"{options.file} ({task}: {reason})", len(X), X.shape[1])
    report.line("model", options.out)
    return _exit_code(trained)


def _predict(options: argparse.Namespace) -> int:
    from ..data.encoding import encode, encode_target
    from ..data.schema import Schema
    from ..data.tables import TableError, read_table

    if options.out:
        check_writable(options.out)
    expansion, metadata = load(options.model, dtype=options.precision)
    if "schema" not in metadata:
        raise ValueError(
            f"{options.model}: expected a model written by `jsparse fit`; this one has no columns"
        )
    schema = Schema.from_json(metadata["schema"])
    table = read_table(options.file, schema=schema)
    encoded = encode(schema, table, dtype=options.precision)
    values = np.asarray(expansion(jnp.asarray(encoded.X)))
    if metadata["classes"] is None:
        predictions = values
    else:
        predictions = np.asarray(metadata["classes"])[(values >= 0).astype(int)]
    for column, count in encoded.unseen.items():
        print(f"jsparse: column {column!r}: {count} rows of unseen category", file=sys.stderr)

    import pyarrow as pa
    import pyarrow.csv

    columns: dict[str, Any] = {schema.target: predictions.tolist()}
    if metadata["classes"] is not None:
        columns["decision_value"] = values
    output = pa.table(columns)
    if options.out:
        with atomic_path(options.out) as path:
            pyarrow.csv.write_csv(output, path)
    else:
        pyarrow.csv.write_csv(output, sys.stdout.buffer)

    if schema.target in table.column_names and table[schema.target].null_count == 0:
        try:
            truth = encode_target(schema, table)
        except TableError as error:
            print(f"jsparse: not scored: {error}", file=sys.stderr)
        else:
            name, error = report.error_of(metadata["classes"], truth, predictions)
            print(f"jsparse: {name} on {len(truth)} rows: {error:.4g}", file=sys.stderr)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
