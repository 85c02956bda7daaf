"""`jsparse demo`, `jsparse fit`, `jsparse compare` and `jsparse predict`."""

import argparse
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _status
from ..data import demo_set
from ..search.sizes import SIZE_TOLERANCE
from ..serialization import OutputError, load, save
from ..training.path import PATH_TOLERANCE, TrainedPath, train_path
from ..training.stream import train_stream
from ..training.train import train
from ..training.trained import Trained
from . import report
from .files import check_fits_memory, check_output, tell_counts
from .interrupts import Interrupts, Result
from .options import command_line

if TYPE_CHECKING:
    from ..data.schema import Schema

DONE, UNTRUSTED = 0, 3


def run(arguments: Sequence[str] | None, interrupts: Interrupts) -> int:
    """Parse and run a command; returns the exit code."""
    commands = {"demo": _demo, "fit": _fit, "compare": _compare, "predict": _predict}
    options = command_line(commands).parse_args(arguments)
    options.interrupts = interrupts
    _configure(options.precision, getattr(options, "devices", None))
    with warnings.catch_warnings():
        # Lost precision and exhausted steps are told in the report and by the exit code.
        warnings.simplefilter("ignore", _status.PrecisionWarning)
        warnings.simplefilter("ignore", _status.ConvergenceWarning)
        return options.run(options)


def _configure(precision: str, devices: int | Literal["all"] | None) -> None:
    """A program may do what a library may not: set JAX's precision, devices, compilation cache."""
    jax.config.update("jax_enable_x64", precision == "float64")
    if isinstance(devices, int):
        # A CPU is cut into as many virtual devices; not if JAX has started, nor are other devices.
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", devices)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # "~" stays where no home is known, such as that of a container's nameless user.
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if not base.startswith("~"):
            jax.config.update("jax_compilation_cache_dir", os.path.join(base, "jsparse", "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _mesh(devices: int | Literal["all"] | None) -> Mesh | None:
    if devices is None:
        return None
    found = jax.devices()
    count = len(found) if devices == "all" else devices
    if count > len(found):
        raise ValueError(
            f"--devices: expected at most {len(found)}, as many as JAX finds "
            f"({found[0].platform}), got {count}"
        )
    return Mesh(np.array(found[:count]), ("rows",))


def _train(options: argparse.Namespace, train: Callable[..., Any], task: Any) -> Any:
    if task == "regression" and options.multiclass != "one-versus-rest":
        raise ValueError("--multiclass: expected nothing for regression")
    with report.progress(quiet=options.quiet) as show:

        def progress(done: int, planned: int, best: float) -> None:
            if show is not None:
                show(done, planned, best)
            options.interrupts.check()

        options.interrupts.check()
        trained = train(
            task=task,
            key=jax.random.key(options.seed),
            kernel=options.kernel,
            multiclass=options.multiclass.replace("-", "_"),
            class_weight="balanced" if options.balanced else None,
            search_method=options.search,
            max_evaluations=options.evaluations,
            max_seconds=options.seconds,
            progress=progress,
        )
    options.interrupts.settled()
    return trained


def _train_table(options: argparse.Namespace, X: np.ndarray, y: np.ndarray, task: Any) -> Trained:
    call = functools.partial(
        train,
        X,
        y,
        n_prototypes=_prototypes(
            options, len(X), len(np.unique(y)) if task == "classification" else 1
        ),
        size_tolerance=_tolerance(options, SIZE_TOLERANCE),
        folds=10 if options.folds is None else options.folds,
        loss=options.loss,
        mesh=_mesh(options.devices),
    )
    return _train(options, call, task)


def _train_path(
    options: argparse.Namespace, X: np.ndarray, y: np.ndarray, task: Any
) -> TrainedPath:
    for name, usual in (("loss", "squared"), ("devices", None), ("prototypes", None)):
        if getattr(options, name) != usual:
            raise ValueError(f"--{name}: expected nothing with --method scdp, which has none")
    call = functools.partial(
        train_path,
        X,
        y,
        max_prototypes=options.max_prototypes,
        candidates=options.candidates,
        subset=options.subset,
        tolerance=_tolerance(options, PATH_TOLERANCE),
        folds=10 if options.folds is None else options.folds,
    )
    return _train(options, call, task)


def _tolerance(options: argparse.Namespace, usual: float) -> float:
    return usual if options.size_tolerance is None else options.size_tolerance


def _prototypes(options: argparse.Namespace, n: int, classes: int) -> Any:
    """As asked, or a third of the rows, but one of every class and not more than 500."""
    default = max(classes, min(500, n // 3))
    return default if options.prototypes is None else options.prototypes


def _exit_code(trained: Trained | TrainedPath) -> int:
    """0 or 3.

    Raises:
        NumericalError: if the fit failed.
    """
    statuses = trained.statuses
    for what, status in statuses.items():
        _status.check(status, f"the {what}")
    return DONE if all(map(_status.trusted, statuses.values())) else UNTRUSTED


def _demo(options: argparse.Namespace) -> int:
    _check_tolerance(options)
    data = demo_set(options.name)
    order = np.random.default_rng(options.seed).permutation(len(data.X))
    cut = 2 * len(order) // 3
    rows, held_out = order[:cut], order[cut:]
    trained = _train_table(options, data.X[rows], data.y[rows], data.task)
    predicted = trained.predict(data.X[held_out])
    report.training(
        trained, f"scikit-learn's {data.name}", len(rows), data.X.shape[1], _mesh(options.devices)
    )
    report.test_error(trained, data.y[held_out], predicted)
    return _exit_code(trained)


def _fit(options: argparse.Namespace) -> int:
    check_output(options.out, options.file)
    _mesh(options.devices)  # said before the file is read
    if options.holdout is not None and not options.stream:
        raise ValueError("--holdout: expected together with --stream")
    if options.stream and options.method == "scdp":
        raise ValueError("--stream: expected without --method scdp")
    of_paths = (options.max_prototypes, options.candidates, options.subset)
    if options.method != "scdp" and of_paths != (None, None, None):
        raise ValueError(
            "--max-prototypes, --candidates, --subset: expected together with --method scdp"
        )
    _check_tolerance(options)
    _check_columns(options, "drop", "categorical")
    trained, schema, reason = (_fit_stream if options.stream else _fit_table)(options)
    code = _exit_code(trained)
    metadata = {
        "schema": schema.to_json(),
        "task": schema.task,
        "classes": None if trained.classes is None else trained.classes.tolist(),
        "cv_error": trained.cv_error,
        "metric": trained.metric,
        "C": np.asarray(trained.C).tolist(),
        "code": None if trained.code is None else trained.code.matrix.tolist(),
        "decoding": trained.decoding,
        "rows": trained.n_rows,
    }
    with options.interrupts.held(), _failures_of_output():
        save(options.out, trained.expansion, metadata)
        options.interrupts.result = Result(code, f"the model is in {options.out!r}")
    source = f"{options.file} ({schema.task}: {reason})"
    if isinstance(trained, TrainedPath):
        report.path(trained, source, len(schema.features))
    else:
        columns = len(schema.features)
        report.training(trained, source, trained.n_rows, columns, _mesh(options.devices))
    report.line("model", options.out)
    return code


def _fit_table(options: argparse.Namespace) -> tuple[Trained | TrainedPath, "Schema", str]:
    from ..data.encoding import encode, encode_target, fit_schema, infer_task
    from ..data.tables import NULL_VALUES, read_table

    check_fits_memory(options.file)
    table = read_table(options.file, null_values=(*NULL_VALUES, *options.missing))
    task, reason = infer_task(table, options.target)
    if options.task is not None:
        task, reason = options.task, "as asked"
    schema = fit_schema(table, options.target, task=task, drop=options.drop, **_columns(options))
    encoded = encode(schema, table, dtype=options.precision)
    tell_counts(encoded.imputed, "missing values filled in")
    tell_counts(encoded.parsed, "texts read as numbers")
    train = _train_path if options.method == "scdp" else _train_table
    return train(options, encoded.X, encode_target(schema, table), task), schema, reason


def _fit_stream(options: argparse.Namespace) -> tuple[Trained, "Schema", str]:
    from ..data.table_streams import TableFile, TableStream, stream_schema
    from ..data.tables import NULL_VALUES

    if options.loss != "squared":
        raise ValueError(f"--loss: expected 'squared' with --stream, got {options.loss!r}")
    if isinstance(options.prototypes, list):
        raise ValueError("--prototypes: expected one number with --stream, got several")
    labels = () if options.task == "regression" else (options.target,)
    file = TableFile(
        options.file,
        null_values=(*NULL_VALUES, *options.missing),
        keep=(*labels, *options.categorical),
        drop=options.drop,
    )
    columns = _columns(options)
    columns["categorical"] = [name for name in options.categorical if name not in options.drop]
    schema, reason, n = stream_schema(file, options.target, task=options.task, **columns)
    stream = TableStream(file, schema, options.precision)
    call = functools.partial(
        train_stream,
        stream,
        n_prototypes=_prototypes(options, n, len(schema.classes or [0])),
        folds=options.folds,
        holdout=options.holdout,
        mesh=_mesh(options.devices),
    )
    trained = _train(options, call, schema.task)
    tell_counts(stream.imputed, "missing values filled in")
    tell_counts(stream.parsed, "texts read as numbers")
    return trained, schema, reason


def _compare(options: argparse.Namespace) -> int:
    from ..data.encoding import encode, encode_target, fit_schema, infer_task
    from ..data.tables import read_table
    from . import compare

    _check_columns(options, "drop")
    table = read_table(options.file)
    task, reason = infer_task(table, options.target)
    if options.task is not None:
        task, reason = options.task, "as asked"
    schema = fit_schema(table, options.target, task=task, drop=options.drop)
    X = encode(schema, table, dtype=options.precision).X
    print(f"{options.file} ({task}: {reason})")
    lines = compare.run(
        X,
        encode_target(schema, table),
        task,
        test=options.test,
        max_prototypes=options.max_prototypes,
        max_evaluations=options.evaluations,
        seed=options.seed,
        folder=Path(options.out),
        quiet=options.quiet,
        check=options.interrupts.check,
    )
    return DONE if all(line.trusted for line in lines) else UNTRUSTED


@contextmanager
def _failures_of_output() -> Iterator[None]:
    """What could be written to when it was asked for has failed since, as a full disk does."""
    try:
        yield
    except OutputError as error:
        raise OSError(str(error)) from error


def _check_tolerance(options: argparse.Namespace) -> None:
    path, several = getattr(options, "method", "") == "scdp", isinstance(options.prototypes, list)
    if options.size_tolerance is not None and not (path or several):
        raise ValueError(
            "--size-tolerance: expected together with several --prototypes or with --method scdp"
        )


def _check_columns(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        if options.target in getattr(options, name):
            advice = "; for classes give --task classification" if name == "categorical" else ""
            raise ValueError(
                f"--{name}: expected other columns than the target {options.target!r}{advice}"
            )


def _columns(options: argparse.Namespace) -> dict[str, Any]:
    names = ("impute", "categorical", "max_categories")
    return {name: getattr(options, name) for name in names}


def _predict(options: argparse.Namespace) -> int:
    from . import predict

    if options.out is not None:
        check_output(options.out, options.file, options.model)
    expansion, metadata = load(options.model, dtype=options.precision)
    if "schema" not in metadata:
        raise ValueError(
            f"{options.model}: expected a model written by `jsparse fit`; this one has no columns"
        )
    with _failures_of_output():
        predict.run(options, expansion, metadata)
    return DONE
