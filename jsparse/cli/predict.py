"""A model applied to the rows of a file, batch by batch."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np

from ..data._arrow import pa, pa_csv
from ..data.encoding import encode, encode_target
from ..data.schema import Schema
from ..data.table_streams import TableFile
from ..data.tables import TableError, read_table
from ..expansion import KernelExpansion
from ..multiclass import Code, Decoding, distances, output_code
from ..serialization import ModelFileError, atomic_path, reason_of, shown, writing
from ..training.trained import decide
from .files import check_fits_memory, tell_counts
from .report import error_of


def run(options: argparse.Namespace, expansion: KernelExpansion, metadata: dict[str, Any]) -> None:
    """Write what the model says of every row, and tell its error if the file has the target.

    Raises:
        ModelFileError: if the model is not one of `jsparse fit`.
        TableError: as `encode`; a file to be written is then left as it was.
        NumericalError: if the model's value of a row is not finite.
        OutputError: if the file cannot be written.
    """
    try:
        schema, code, decoding = _parts(expansion, metadata)
    except ValueError as error:
        raise ModelFileError(
            f"{options.model!r}: expected a model written by `jsparse fit`; {reason_of(error)}"
        ) from error
    names = schema.classes
    classes = None if names is None else np.asarray(names)
    imputed, unseen, parsed = Counter[str](), Counter[str](), Counter[str]()
    rows, errors, metric, unscored, has_target = 0, 0.0, "", None, False
    tables = _tables(options, schema)
    with _writing(options.out) as write:
        for table in tables:
            encoded = encode(schema, table, dtype=options.precision)
            imputed.update(encoded.imputed)
            unseen.update(encoded.unseen)
            parsed.update(encoded.parsed)
            values = expansion(jnp.asarray(encoded.X))
            predictions = decide(values, classes, code, decoding, first=rows)
            # Pairs, as the target may well have the name of another column.
            columns = [(schema.target, predictions.tolist())]
            if code is not None and names is not None:
                near = -np.asarray(distances(jnp.asarray(code.matrix), values, decoding))
                columns += [(f"decision_value {name}", near[:, i]) for i, name in enumerate(names)]
            elif classes is not None:
                columns += [("decision_value", np.asarray(values))]
            arrays = [pa.array(column) for _, column in columns]
            write(pa.Table.from_arrays(arrays, names=[name for name, _ in columns]))
            rows += table.num_rows
            has_target = schema.target in table.column_names
            if has_target and unscored is None:
                try:
                    truth = encode_target(schema, table)
                except TableError as error:
                    unscored = error
                else:
                    metric, error = error_of(classes, truth, predictions)
                    errors += error * len(truth)
    tell_counts(imputed, "missing values filled in")
    tell_counts(unseen, "rows of unseen category")
    tell_counts(parsed, "texts read as numbers")
    if unscored is not None:
        print(f"jsparse: not scored: {unscored}", file=sys.stderr)
    elif has_target:
        print(f"jsparse: {metric} on {rows} rows: {errors / rows:.4g}", file=sys.stderr)


def _parts(
    expansion: KernelExpansion, metadata: dict[str, Any]
) -> tuple[Schema, Code | None, Decoding]:
    """What `jsparse fit` saves with a model, or ValueError if it is not that of this model."""
    missing = sorted({"schema", "classes", "code", "decoding"} - set(metadata))
    if missing:
        raise ValueError(f"{', '.join(missing)} missing")
    if not isinstance(metadata["schema"], dict):
        raise ValueError(f"schema: expected names and values, got {shown(metadata['schema'])}")
    schema = Schema.from_json(metadata["schema"])
    if metadata["classes"] != schema.to_json()["classes"]:
        raise ValueError("classes: expected those of the schema")
    if metadata["decoding"] not in get_args(Decoding):
        raise ValueError(f"decoding: got {shown(metadata['decoding'])}")
    d, outputs = expansion.prototypes.shape[1], expansion.intercept.shape
    if len(schema.features) != d:
        raise ValueError(f"schema: expected {d} columns as encoded, got {len(schema.features)}")
    if metadata["code"] is None:
        if outputs or len(schema.classes or ()) > 2:
            raise ValueError("code: expected one, as there are several outputs or classes")
        return schema, None, metadata["decoding"]
    try:
        matrix = np.asarray(metadata["code"], float)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"code: expected rows of -1, 0 and 1; {error}") from error
    code = output_code(matrix, len(schema.classes or ()))
    if outputs != matrix.shape[1:]:
        raise ValueError(f"code: expected outputs {matrix.shape[1:]}, the model has {outputs}")
    return schema, code, metadata["decoding"]


def _tables(options: argparse.Namespace, schema: Schema) -> Iterable[pa.Table]:
    """The file in one piece or in batches."""
    if not options.stream:
        check_fits_memory(options.file)
        return [read_table(options.file, schema=schema)]
    return TableFile(options.file, schema=schema)


@contextmanager
def _writing(out: str | None) -> Iterator[Callable[[pa.Table], None]]:
    """Write tables, one below the other, to a file that is there when all are, or the screen."""
    with atomic_path(out) if out else nullcontext(sys.stdout.buffer) as sink, ExitStack() as open_:
        writer = None

        def write(table: pa.Table) -> None:
            nonlocal writer
            with writing(out) if out else nullcontext():
                if writer is None:
                    writer = open_.enter_context(pa_csv.CSVWriter(sink, table.schema))
                writer.write_table(table)

        yield write
        with writing(out) if out else nullcontext():
            open_.close()
