"""The commands `jsparse demo`, `fit`, `compare`, `predict` and `export`."""

import argparse
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _status
from ..compilation import enable_compilation_cache
from ..data import demo_set
from ..data.frames import EncodedFrame
from ..model_files import load
from ..search.gradient import Automatic, Gradient
from ..search.recursive import Recursive
from ..search.strategies import Annealing, Profile, Search
from ..serialization import OutputError
from ..training.checkpoint import Checkpoint
from ..training.settings import HoldOut, Resources
from ..training.train import train
from ..training.trained import Trained
from . import report
from .exporters import EXPORTERS
from .files import check_fits_memory, check_output, print_counts
from .interrupts import Interrupts, Result
from .options import budget_of, command_line, method_of

if TYPE_CHECKING:
    from ..predictor.schema import CsvFormat, Schema

DONE, UNTRUSTED = 0, 3


def run(arguments: Sequence[str] | None, interrupts: Interrupts) -> int:
    """Parse and run a command; return the exit code."""
    commands = {
        "demo": _demo,
        "fit": _fit,
        "compare": _compare,
        "predict": _predict,
        "export": _export,
    }
    options = command_line().parse_args(arguments)
    options.interrupts = interrupts
    _configure(options.precision or "float64", getattr(options, "devices", None))
    with warnings.catch_warnings():
        # The report and the exit code tell of lost precision and exhausted steps.
        warnings.simplefilter("ignore", _status.PrecisionWarning)
        # But nothing else tells of columns whose values are rounded.
        warnings.filterwarnings("default", ".* holds values of this size", _status.PrecisionWarning)
        warnings.simplefilter("ignore", _status.ConvergenceWarning)
        # A cache entry that a full disk truncated is ignored, and its program compiled.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
        return commands[options.command](options)


def _configure(precision: str, devices: int | Literal["all"] | None) -> None:
    """Set JAX's precision, devices and compilation cache, as only a program may."""
    jax.config.update("jax_enable_x64", precision == "float64")
    if isinstance(devices, int):
        # A CPU is divided into virtual devices, unless JAX has started.
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", devices)
    enable_compilation_cache()


def _mesh(devices: int | Literal["all"] | None) -> Mesh | None:
    """Return the mesh of the first `devices` devices; None if the option was not given."""
    if devices is None:
        return None
    devices_present = jax.devices()
    count = len(devices_present) if devices == "all" else devices
    if count > len(devices_present):
        raise ValueError(
            f"--devices: expected at most {len(devices_present)}, as many as JAX finds "
            f"({devices_present[0].platform}), got {count}"
        )
    return Mesh(np.array(devices_present[:count]), ("rows",))


def _search(options: argparse.Namespace) -> Search | None:
    """Return the search that the options state; None for the default of `train`."""
    name, budget = options.search, options.evaluations
    if options.rank is not None and name not in ("gradient", "recursive"):
        stated = "none" if name is None else f"--search {name}"
        raise ValueError(f"--rank: expected --search gradient or recursive, got {stated}")
    if name is None and budget is None:
        return None
    if name is None:  # `train` would choose this search, without the limit of evaluations
        sums_only = getattr(options, "stream", False) or options.devices is not None
        fast = options.method is not None or options.preset == "fast"
        name = "profile" if fast or sums_only else "recursive"
    metric_searches = {"gradient": Gradient, "recursive": Recursive}
    if name in metric_searches:
        return metric_searches[name](max_evaluations=budget, rank=options.rank)
    searches = {"profile": Profile, "annealing": Annealing, "auto": Automatic}
    return searches[name](max_evaluations=budget)


def _train(
    options: argparse.Namespace,
    X: Any,
    y: Any,
    task: Any,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """Train as the options state, on rows in memory or on a stream `X`, for which `y` is None."""
    if task == "regression" and options.multiclass != "one-versus-rest":
        raise ValueError("--multiclass: expected nothing for regression")
    folds = "auto" if options.folds is None else options.folds
    if getattr(options, "holdout", None) is not None:
        if options.folds is not None:
            raise ValueError("--folds, --holdout: expected one of them, got both")
        folds = HoldOut(options.holdout)
    method = method_of(options)
    scheme: Any = options.multiclass.replace("-", "_")
    with report.progress(quiet=options.quiet) as show:

        def progress(completed: int, planned: int, best: float) -> None:
            if show is not None:
                show(completed, planned, best)
            options.interrupts.check()

        options.interrupts.check()
        trained = train(
            X,
            y,
            task=task,
            key=options.seed,
            method=method,
            preset=options.preset,
            n_prototypes=options.n_prototypes if method is None else None,
            kernel=options.kernel,
            search=_search(options),
            columns=options.columns,
            folds=folds,
            multiclass=scheme,
            class_weight="balanced" if options.balanced else None,
            out_of_fold="machines" if getattr(options, "fold_machines", False) else True,
            budget=budget_of(options),
            resources=Resources(
                max_seconds=options.seconds, mesh=_mesh(options.devices), checkpoint=checkpoint
            ),
            progress=progress,
        )
    options.interrupts.mark_handled()
    return trained


def _exit_code(trained: Trained) -> int:
    """Return 0, or 3 if the fit is not to be trusted.

    Raises:
        NumericalError: if the fit failed.
    """
    statuses = trained.statuses
    for what, status in statuses.items():
        _status.check(status, f"the {what}")
    return DONE if all(map(_status.trusted, statuses.values())) else UNTRUSTED


def _demo(options: argparse.Namespace) -> int:
    """Train on two thirds of a bundled set, test on the others, and return the exit code."""
    data = demo_set(options.name)
    order = np.random.default_rng(options.seed).permutation(len(data.X))
    cut = 2 * len(order) // 3
    rows, held_out = order[:cut], order[cut:]
    trained = _train(options, data.X[rows], data.y[rows], data.task)
    predicted = trained.predict(data.X[held_out])
    report.training(trained, data.name, data.X.shape[1], _mesh(options.devices))
    report.test_error(trained, data.y[held_out], predicted)
    return _exit_code(trained)


def _fit(options: argparse.Namespace) -> int:
    """Train on a file, save the model, print the report, and return the exit code."""
    check_output(options.out, options.file)
    _mesh(options.devices)  # raises for bad devices before the file is read
    if options.holdout is not None and not options.stream:
        raise ValueError("--holdout: expected together with --stream")
    method = method_of(options)  # raises for bad options of the method
    _search(options)  # raises for bad options of the search
    if options.stream:
        if method is not None:
            method.check_sums("--stream")
        if options.categories == "kernel":
            raise ValueError("--categories kernel: expected without --stream")
        if options.fold_machines:
            raise ValueError("--fold-machines: expected without --stream")
    if options.devices is not None and method is not None:
        method.check_sums("--devices")
    _check_columns(options)
    fit = _fit_stream if options.stream else _fit_table
    if options.checkpoint is not None and os.path.exists(options.checkpoint):
        report.note(f"resuming from {options.checkpoint!r}")
    with Checkpoint(options.checkpoint) as checkpoint:  # the file stays until the model is saved
        trained, schema, reason = fit(options, checkpoint)
        code = _exit_code(trained)
        with options.interrupts.delayed(), _failures_of_output():
            trained.model.save(options.out)
            options.interrupts.result = Result(code, f"the model is in {options.out!r}")
    source = f"{options.file} ({schema.task}: {reason})"
    report.training(trained, source, len(schema.features), _mesh(options.devices), schema)
    times = [column.name for column in schema.columns if column.origin is not None]
    if times:
        report.line("dates", f"{', '.join(times)}: as numbers, in microseconds")
    report.line("model", options.out)
    return code


def _read_table(
    options: argparse.Namespace,
) -> tuple[np.ndarray, np.ndarray, "Schema", str]:
    """Read the file that `fit` and `compare` train on.

    Return inputs, targets, schema, and the words that say why the task was chosen.
    """
    from ..data.encoding import encode, encode_target, fit_schema, infer_task
    from ..data.table_files import read_table
    from ..data.tables import rows_of_file

    csv = _csv_format(options)
    table = read_table(options.file, csv=csv)
    name_row = rows_of_file(range(table.num_rows))
    task, reason = infer_task(table, options.target, name_row)
    if options.task is not None:
        task, reason = options.task, "as asked"
    coded = options.categories == "kernel"
    columns = _columns(options) | {"drop": options.drop, "coded": coded, "csv": csv}
    schema = fit_schema(table, options.target, task=task, name_row=name_row, **columns)
    encoded = encode(schema, table, options.precision, name_row)
    _warn_if_rounded(schema, table, options.precision)
    print_counts(encoded.imputed, "missing values filled in")
    return encoded.X, encode_target(schema, table, name_row), schema, reason


def _warn_if_rounded(schema: "Schema", table: Any, precision: str) -> None:
    """Warn of columns of an Arrow table that this precision rounds to few steps."""
    from ..data.encoding import encode
    from ..data.tables import rows_of_file
    from ..training.inputs import warn_if_rounded

    if precision == "float32":  # train checks float64
        in_float64 = encode(schema, table, name_row=rows_of_file(range(table.num_rows))).X
        warn_if_rounded("X", in_float64, np.dtype(precision), schema.features)


def _fit_table(
    options: argparse.Namespace, checkpoint: Checkpoint
) -> tuple[Trained, "Schema", str]:
    """Read the file and train; return the result, the schema and the reason for the task."""
    check_fits_memory(options.file)
    X, y, schema, reason = _read_table(options)
    frame = EncodedFrame(None, inputs=X, schema=schema)
    return _train(options, frame, y, schema.task, checkpoint), schema, reason


def _fit_stream(
    options: argparse.Namespace, checkpoint: Checkpoint
) -> tuple[Trained, "Schema", str]:
    """Train on batches of the file; return what `_fit_table` returns."""
    from ..data.table_files import TableFile
    from ..data.table_streams import TableStream, stream_schema

    labels = () if options.task == "regression" else (options.target,)
    file = TableFile(
        options.file,
        csv=_csv_format(options),
        keep=(*labels, *options.categorical),
        drop=options.drop,
    )
    columns = _columns(options)
    columns["categorical"] = [name for name in options.categorical if name not in options.drop]
    schema, reason, _ = stream_schema(file, options.target, task=options.task, **columns)
    _warn_if_rounded(schema, next(iter(file)), options.precision)
    stream = TableStream(file, schema, options.precision)
    trained = _train(options, stream, None, schema.task, checkpoint)
    print_counts(stream.imputed, "missing values filled in")
    return trained, schema, reason


def _compare(options: argparse.Namespace) -> int:
    """Compare the methods on a file, and return the exit code."""
    from . import compare

    _check_columns(options)
    check_fits_memory(options.file, "compare the methods on a part of its rows")
    X, y, schema, reason = _read_table(options)
    print(f"{options.file} ({schema.task}: {reason})", flush=True)
    result = compare.run(
        X,
        y,
        schema.task,
        codes=schema.codes,
        methods=options.methods,
        test=options.test,
        max_prototypes=options.max_prototypes,
        max_evaluations=options.evaluations,
        max_seconds=options.seconds,
        seed=options.seed,
        folder=Path(options.out),
        quiet=options.quiet,
        interrupts=options.interrupts,
    )
    return DONE if result.trusted else UNTRUSTED


@contextmanager
def _failures_of_output() -> Iterator[None]:
    """Raise an OSError for output that became unwritable after the start, as on a full disk."""
    try:
        yield
    except OutputError as error:
        raise OSError(str(error)) from error


def _check_columns(options: argparse.Namespace) -> None:
    """Raise a ValueError if the target is a column of --drop or --categorical."""
    for name in ("drop", "categorical"):
        if options.target in getattr(options, name):
            advice = "; for classes give --task classification" if name == "categorical" else ""
            raise ValueError(
                f"--{name}: expected other columns than the target {options.target!r}{advice}"
            )


def _csv_format(options: argparse.Namespace) -> "CsvFormat":
    from ..predictor.schema import NULL_VALUES, CsvFormat

    return CsvFormat((*NULL_VALUES, *options.missing), options.decimal, options.delimiter)


def _columns(options: argparse.Namespace) -> dict[str, Any]:
    names = ("impute", "categorical", "max_categories")
    return {name: getattr(options, name) for name in names}


def _predict(options: argparse.Namespace) -> int:
    """Write the predictions of a model for a file, and return the exit code."""
    from . import predict

    if options.out is not None:
        check_output(options.out, options.file, options.model)
    model = load(options.model, dtype=options.precision)
    with _failures_of_output():
        predict.run(options, model)
    return DONE


def _export(options: argparse.Namespace) -> int:
    """Write a model in another format, and return the exit code."""
    exporter = EXPORTERS[options.to]
    for name in ("coverage", "outputs"):
        if getattr(options, name) is not None and name not in exporter.takes:
            formats = " or ".join(key for key, each in EXPORTERS.items() if name in each.takes)
            raise ValueError(f"--{name}: expected together with --to {formats}, got {options.to}")
    path = options.out or f"{Path(options.model).with_suffix('')}{exporter.suffix}"
    model = load(options.model, dtype=options.precision)
    if options.size is not None:
        model = model.at(options.size)
    with _failures_of_output():
        exporter.write(model, path, options)
    report.line(options.to, path)
    return DONE
