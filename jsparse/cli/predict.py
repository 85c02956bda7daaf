"""Predictions of a model for the rows of a file, batch by batch."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np

from ..calibration import decisions, probabilities
from ..conformal import rank_of
from ..data.arrow import pa, pa_csv
from ..data.encoding import encode, encode_target
from ..data.table_files import TableFile, read_table
from ..data.tables import TableError, rows_of_file
from ..model import Model
from ..predictor.schema import Column, Schema
from ..serialization import atomic_path, writing
from . import report
from .files import check_fits_memory, print_counts


def run(options: argparse.Namespace, model: Model) -> None:
    """Write the model's predictions, and print its error if the file has the target.

    Raises:
        ValueError: if probabilities, intervals or sets are requested from a model that lacks the
            calibration for them.
        TableError: as `encode`; the output file is then unchanged.
        NumericalError: if the model's value for a row is not finite.
        OutputError: if the file cannot be written.
    """
    if options.proba and model.inverse_temperatures is None:
        raise ValueError("--proba: expected a classifier with calibrated probabilities")
    if options.interval is not None:
        if model.conformal is None:
            raise ValueError(
                "--interval: expected a model with errors on held-out rows, as the size that "
                "training chose has; in Python, model.calibrated(X, y) adds them to any size"
            )
        rank_of(options.interval, model.conformal.n_rows)
    schema = _schema(options, model) if model.columns is None else model.columns
    names, classes = model.labels, model.classes
    imputed, unseen = Counter[str](), Counter[str]()
    rows, errors, metric, scoring_error, has_target = 0, 0.0, "", None, False
    tables, is_due = _tables(options, schema), report.rate_limiter()
    with _table_writer(options.out) as write_table:
        for table in tables:
            name_row = rows_of_file(range(rows, rows + table.num_rows))
            encoded = encode(schema, table, options.precision, name_row)
            imputed.update(encoded.imputed)
            unseen.update(encoded.unseen)
            scores = model.scores(encoded.X, name_row=name_row)
            predictions = scores if classes is None else classes[decisions(scores)]
            output = _output_table(options, model, schema.target, encoded.X, scores, predictions)
            write_table(output)
            rows += table.num_rows
            if is_due():
                report.note(f"{rows} rows so far")
            has_target = model.columns is not None and schema.target in table.column_names
            if has_target and scoring_error is None:
                try:
                    truth = encode_target(schema, table, name_row)
                except TableError as error:
                    scoring_error = error
                else:
                    metric, error = report.error_of(names, truth, predictions, model.quantiles)
                    errors += error * len(truth)
    print_counts(imputed, "missing values filled in")
    print_counts(unseen, "rows of unseen category")
    if scoring_error is not None:
        report.note(f"not scored: {scoring_error}")
    elif has_target:
        report.note(f"{metric} on {rows} rows: {errors / rows:.4g}")


def _output_table(
    options: argparse.Namespace,
    model: Model,
    target: str,
    X: np.ndarray,
    scores: np.ndarray,
    predictions: np.ndarray,
) -> pa.Table:
    """Return the table to write for a batch of rows: their predictions, and the class scores.

    If the options ask for them, more columns hold the probabilities of the classes, and the ends
    of prediction intervals or the members of prediction sets.
    """
    names = model.labels or ()
    # These are pairs instead of a dict, as the target may have the name of another column.
    columns: list[tuple[str, Any]] = [(target, predictions)]
    if predictions.ndim == 2:  # several targets, or quantiles of one
        numbers = model.quantiles or range(1, predictions.shape[1] + 1)
        columns = [
            (f"{target} {number:g}", prediction)
            for number, prediction in zip(numbers, predictions.T, strict=True)
        ]
    if scores.ndim == 2 and names:
        columns += [(f"decision_value {name}", scores[:, i]) for i, name in enumerate(names)]
    elif names:
        columns += [("decision_value", scores)]
    if options.proba:
        by_class = probabilities(scores, np.asarray(model.inverse_temperatures))
        columns += [(f"probability {name}", by_class[:, i]) for i, name in enumerate(names)]
    if options.interval is not None and names:
        in_set = model.predict_set(X, options.interval)
        columns += [(f"in set {name}", in_set[:, i]) for i, name in enumerate(names)]
    elif options.interval is not None:
        ends = model.interval(X, options.interval).reshape(len(X), -1, 2)
        outputs = [target] if ends.shape[1] == 1 else [name for name, _ in columns]
        for name, (low, high) in zip(outputs, np.moveaxis(ends, 0, -1), strict=True):
            columns += [(f"{name} low", low), (f"{name} high", high)]
    headers, values = zip(*columns, strict=True)
    arrays = [pa.array(values[0].tolist()), *map(pa.array, values[1:])]
    return pa.Table.from_arrays(arrays, names=list(headers))


def _schema(options: argparse.Namespace, model: Model) -> Schema:
    """Return a schema with the columns of the file in their order, for a model without names."""
    d = model.expansion.prototypes.shape[1]
    names = next(iter(TableFile(options.file))).column_names
    if len(names) != d:
        raise ValueError(
            f"{options.file!r}: expected {d} columns, as in the arrays that the model was trained "
            f"on; got {len(names)}"
        )
    report.note("the model has no column names: columns are taken in their order")
    task = "regression" if model.labels is None else "classification"
    target = "prediction"
    while target in names:
        target += "_"
    columns = tuple(Column(name) for name in names)
    return Schema(columns, target, task, model.labels, impute=False)


def _tables(options: argparse.Namespace, schema: Schema) -> Iterable[pa.Table]:
    """Return the tables of the file: the whole file, or batches."""
    if not options.stream:
        check_fits_memory(options.file)
        return [read_table(options.file, schema=schema)]
    return TableFile(options.file, schema=schema)


@contextmanager
def _table_writer(out: str | None) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that writes tables one after another as one CSV file.

    The file `out` appears when it is complete. Without `out` the tables go to standard output.
    """
    sink_context = atomic_path(out) if out else nullcontext(sys.stdout.buffer)
    with sink_context as sink, ExitStack() as closed_at_end:
        writer = None

        def write_table(table: pa.Table) -> None:
            nonlocal writer
            with writing(out) if out else nullcontext():
                if writer is None:
                    writer = closed_at_end.enter_context(pa_csv.CSVWriter(sink, table.schema))
                writer.write_table(table)

        yield write_table
        with writing(out) if out else nullcontext():
            closed_at_end.close()
