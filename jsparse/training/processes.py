"""The first pass over shards that several processes read: one summary of the rows of all."""

import ast
import json
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from .._mesh import gather_texts, processes_of, spans_processes, sum_over_processes
from ..data.streams import StreamError
from .inputs import check_label_count
from .summary import Moments, SampledRows, Summarizer, lowest_numbers


def join_processes(mesh: Mesh | None, summarizer: Summarizer, shards: list[int]) -> None:
    """Turn the summary of this process's rows into the summary of the rows of all processes.

    On a mesh of several processes this is a collective operation; otherwise it does nothing. The
    result depends on the numbers of the `shards` of all processes. It does not depend on which
    process reads a shard, except for rounding. If two processes have the same shard, the numbers of
    columns differ, or there are nearly as many classes as rows, raise a `ValueError` in every
    process.
    """
    if mesh is None or not spans_processes(mesh):
        return
    local = summarizer.lowest if summarizer.n else None
    reports = _reports(mesh, summarizer, local, shards)
    _check(processes_of(mesh), reports)
    reports = [report for report in reports if report["n"]]
    if not reports:
        return
    local_labels = [*summarizer.by_class]
    _join_moments(summarizer, reports)
    number_of = {label: i for i, label in enumerate(summarizer.by_class)}
    class_numbers = np.array([number_of[label] for label in local_labels], np.int64)
    dtypes = [np.result_type(*kinds) for kinds in zip(*(r["dtypes"] for r in reports), strict=True)]
    if local is None:
        shapes = [(0, len(summarizer.low)) if name == "X" else 0 for name in SampledRows._fields]
        local = SampledRows(*map(np.zeros, shapes, dtypes))
    else:
        local = local._replace(class_numbers=class_numbers[local.class_numbers])
        if summarizer.classification:
            local = local._replace(targets=local.class_numbers)
        local = SampledRows(*(a.astype(dtype) for a, dtype in zip(local, dtypes, strict=True)))
    summarizer.parts = [_selected_rows(mesh, local, summarizer.sample_rows)]


def _reports(
    mesh: Mesh, summarizer: Summarizer, local: SampledRows | None, shards: list[int]
) -> list[dict[str, Any]]:
    """Return a report of every process: moments, ranges and dtypes of its rows, and its shards.

    `local` are the rows of this process that may be in the sample; None if it has no rows.
    """
    report = {
        "n": summarizer.n,
        "shards": shards,
        "largest_batch": summarizer.largest_batch,
        "low": summarizer.low.tolist(),
        "high": summarizer.high.tolist(),
        "classes": [
            [repr(label), m.rows, m.weight, m.mean.tolist(), m.squares.tolist()]
            for label, m in summarizer.by_class.items()
        ],
        "dtypes": [] if local is None else [column.dtype.str for column in local],
    }
    return [json.loads(text) for text in gather_texts(mesh, json.dumps(report).encode())]


def _check(processes: list[int], reports: list[dict[str, Any]]) -> None:
    """Raise a `ValueError` if shards overlap or numbers of columns differ."""
    reader: dict[int, int] = {}
    for process, report in zip(processes, reports, strict=True):
        for shard in report["shards"]:
            if shard in reader:
                raise ValueError(
                    f"shards: expected each shard in one process, got shard {shard} in processes "
                    f"{reader[shard]} and {process}"
                )
            reader[shard] = process
    columns = {len(r["low"]): p for p, r in zip(processes, reports, strict=True) if r["n"]}
    if len(columns) > 1:
        counts = ", ".join(f"{count} in process {p}" for count, p in columns.items())
        raise StreamError(f"expected as many columns in every process, got {counts}")


def _join_moments(summarizer: Summarizer, reports: list[dict[str, Any]]) -> None:
    """Set the summarizer's counts, ranges and moments to the values over all processes' rows.

    If there are nearly as many classes as rows, raise a `ValueError`.
    """
    summarizer.n, summarizer.by_class = sum(report["n"] for report in reports), {}
    summarizer.largest_batch = max(report["largest_batch"] for report in reports)
    summarizer.low = np.min([report["low"] for report in reports], axis=0)
    summarizer.high = np.max([report["high"] for report in reports], axis=0)
    for report in reports:
        for label, rows, weight, mean, squares in report["classes"]:
            moments = Moments(rows, weight, np.array(mean), np.array(squares))
            summarizer.join(ast.literal_eval(label), moments)
    if summarizer.classification:
        check_label_count(len(summarizer.by_class), summarizer.n)


def _selected_rows(mesh: Mesh, local: SampledRows, sample_rows: int) -> SampledRows:
    """Return the random sample of all processes' rows, sorted by their places in the stream.

    Each row has drawn a random number, and the rows with the lowest numbers are selected, see
    `lowest_numbers`. First the processes exchange these numbers, then only the selected rows.
    """
    draws = np.stack([local.numbers, local.class_numbers.astype(float)])
    all_draws = [np.frombuffer(text).reshape(2, -1) for text in gather_texts(mesh, draws.tobytes())]
    counts = [draws.shape[1] for draws in all_draws]
    numbers, class_numbers = np.concatenate(all_draws, axis=1)
    selected = lowest_numbers(numbers, class_numbers.astype(int), sample_rows)
    first = sum(counts[: processes_of(mesh).index(jax.process_index())])
    selected_here = selected[first : first + len(local.numbers)]
    begin = int(selected[:first].sum())
    # Every process fills its rows in a table of zeros, so that the sum is the whole table.
    columns = []
    for column in local.at(selected_here):
        table = np.zeros((int(selected.sum()), *column.shape[1:]), column.dtype)
        table[begin : begin + len(column)] = column
        columns.append(table)
    # As bytes, so that no digit is lost where JAX is in float32.
    tables = [np.ascontiguousarray(a).view(np.uint8) for a in columns]
    sums = sum_over_processes(mesh, tables)
    rows = SampledRows(
        *(np.asarray(s).view(a.dtype).reshape(a.shape) for s, a in zip(sums, columns, strict=True))
    )
    return rows.at(np.argsort(rows.places, kind="stable"))
