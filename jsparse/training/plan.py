"""Estimates made before a run: bytes of memory, block sizes, and passes over the rows."""

import bisect
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import DTypeLike

from .._arguments import real, whole_number
from .._blocks import capacity, default_block_rows, systems_at_once
from .._programs import bytes_of_programs
from .._repr import short_repr
from .._runtime import on_cpu, usable_cores
from ..data.streams import BATCH_ROWS
from ..machines.checks import check_choice
from ..machines.fixed_size import Solver
from ..machines.iterative import rows_of_block
from ..machines.method import Method
from ..machines.ridge import cheaper
from ..multiclass import Code
from ..search.strategies import Profile, Search, check_search

# Matrices of m x m in memory at a time for conjugate gradients: two Cholesky factors, a product
# and the copies that a factorisation makes.
FACTORS = 4
SAMPLE_ROWS = 65536  # default number of rows in the sample of a stream

# For `train_many`: the number of tables in one call of a program, on each accelerator, and on a
# CPU, where one table is computed after another.
TABLES, TABLES_ON_CPU = 64, 16
# Number of calls at a time. The second call waits on an accelerator until the first is done. Each
# core of a CPU takes one; preparing tables and results takes as long as four calls compute.
CALLS, CALLS_ON_CPU = 2, 4
# For `train` without a method, by preset: the most rows of which every row becomes a prototype, and
# the most prototypes of larger tables. If every row is a prototype, memory and time grow with the
# square and the cube of the number of rows.
ALL_ROWS = {"balanced": 6000, "accurate": 20_000}
PROTOTYPES = {"balanced": 500, "accurate": 2000}
# Measured bytes of the programs that compare kernels and scalings of the columns.
COMPARISON_BYTES = 3 * 2**25
MATRICES, BLOCKS = 4, 2  # for all rows: n x n, and blocks of rows, in memory at a time (measured)
# Measured bytes of the objects of a result, and of its arrays for each row.
RESULT_BYTES, RESULT_ROW_BYTES = 2**17, 64


class Plan(NamedTuple):
    """Estimated memory and passes of a run.

    Attributes:
        parts: bytes of arrays at the peak, by content.
        limit: bytes that arrays may take; None if unknown.
        largest: the largest number of prototypes that would fit; None if the limit is unknown.
        passes: number of times that all rows are read; 1 if the rows are in memory. `jsparse fit`
            reads the rows once more, to find the types of the columns.
        kernels_at_once: number of kernels whose sums are computed in one pass.
        block_rows: rows of a block of the feature matrix.
        programs: bytes of the compiler and of compiled programs, in the memory of the host.
    """

    parts: dict[str, int]
    limit: int | None
    largest: int | None
    passes: int
    kernels_at_once: int
    block_rows: int
    programs: int

    __repr__ = short_repr

    @property
    def bytes(self) -> int:
        """The bytes of arrays at the peak."""
        return sum(self.parts.values())

    @property
    def peak(self) -> int:
        """The bytes that a run on a CPU adds to the process: arrays and programs."""
        return self.bytes + self.programs

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" of {_with_unit(self.limit)}"
        lines = [f"{name:<20}{_with_unit(count):>10}" for name, count in self.parts.items()]
        lines += [
            f"{'together':<20}{_with_unit(self.bytes):>10}{limit}",
            f"{'with programs':<20}{_with_unit(self.peak):>10}",
            f"passes {self.passes}, kernels in a pass {self.kernels_at_once}, rows in a block "
            f"{self.block_rows}",
        ]
        return "\n".join(lines)


def plan(
    n: int,
    d: int,
    n_prototypes: int | Literal["all"] | None = None,
    *,
    folds: int = 10,
    code: Code | None = None,
    n_C: int = 25,
    dtype: DTypeLike = np.float32,
    streamed: bool = False,
    batch_rows: int = BATCH_ROWS,
    sample_rows: int = SAMPLE_ROWS,
    search: Search = Profile(),
    n_parameters: int = 1,
    memory: int | None = None,
    solver: Solver = "cholesky",
    problems: int = 1,
) -> Plan:
    """Estimate the memory and the passes of `train`, for rows in memory or a stream.

    Args:
        n: number of rows; has no effect on a stream's plan.
        d: number of columns.
        n_prototypes: number of prototypes `m`, or "all" for the LS-SVM in the dual. None for
            `train` without a method; `search` and `n_parameters` then have no effect.
        folds: number of folds, which may be 5 by default (`Method.usual_folds`); 2 with a
            `HoldOut`.
        code: output code of more than two classes, see `output_code`.
        n_C: number of values of `C`.
        dtype: dtype of the computations.
        streamed: whether the rows are read in batches.
        batch_rows: rows of a batch.
        sample_rows: rows of a stream that are kept to choose prototypes and to score.
        search: the search for the hyper-parameters.
        n_parameters: number of tuned elements of the kernel.
        memory: bytes that arrays may take; by default the free memory of the device, on a CPU
            without the bytes of programs.
        solver: see `FixedSize`. For "conjugate_gradients" the plan is for the machine of all
            prototypes, not for the smaller machine that tunes the kernel.
        problems: number of problems of `train_many`, each of `n` rows. The results of all of them
            stay in memory.

    Raises:
        ValueError: for arguments out of range, or several problems that `train_many` would train
            alone: without a method, in the dual, by conjugate gradients, or of a stream.
    """
    n, d, n_C = whole_number("n", n, 1), whole_number("d", d, 1), whole_number("n_C", n_C, 1)
    folds = whole_number("folds", folds, 2)
    if isinstance(n_prototypes, str) and n_prototypes != "all":
        raise ValueError(f"n_prototypes: expected a number or 'all', got {n_prototypes!r}")
    check_choice("solver", solver, Solver)
    m = n_prototypes
    if m is None:
        if streamed:
            raise ValueError("n_prototypes: expected a number for a stream, got None")
        m = default_prototypes(n, "balanced", memory)
    elif m != "all":
        m = whole_number("n_prototypes", m, 1)
    batch_rows = whole_number("batch_rows", batch_rows, 1)
    sample_rows = whole_number("sample_rows", sample_rows, 1)
    n_parameters = whole_number("n_parameters", n_parameters, 0)
    check_search(search)
    n_problems = whole_number("problems", problems, 1)
    alone = streamed or n_prototypes in (None, "all") or solver == "conjugate_gradients"
    if n_problems > 1 and alone:
        raise ValueError(
            "problems: expected 1 for a stream, without a method, for n_prototypes='all' and for "
            f"conjugate gradients, which train_many trains alone, got {problems}"
        )
    programs = bytes_of_programs(max(batch_rows, sample_rows) if streamed else n)
    if n_prototypes is None:
        programs += COMPARISON_BYTES
    limit = free_bytes() if memory is None else int(real("memory", memory, 0.0))
    if on_cpu() and memory is None and limit is not None:  # programs are in the same memory
        limit = max(0, limit - programs)
    item, block_rows = np.dtype(dtype).itemsize, default_block_rows()
    if m == "all":
        parts = {
            "rows": 3 * n * d * item,
            "kernel matrix": MATRICES * n * n * item,
            "block of kernel values": BLOCKS * min(block_rows, n) * n * item,
        }
        return Plan(parts, limit, None, 1, 1, block_rows, programs)
    if solver == "conjugate_gradients":
        block_rows = rows_of_block(m)
    outputs = 1 if code is None else code.matrix.shape[1]
    classes = 1 if code is None or code.shares_all_rows else code.matrix.shape[0]
    rounds = search.batch_sizes(n_parameters) if streamed else [1]
    validated = sample_rows if streamed else n
    fold_rows = -(-validated // folds)
    rows_together = validated if validated <= block_rows else fold_rows

    def parts_of(m: int, kernels: int) -> dict[str, int]:
        """Return the bytes for one problem by content, if one pass sums this many kernels."""
        if solver == "conjugate_gradients":
            return {
                "rows": 4 * n * (d + outputs + 2) * item,
                "preconditioner": FACTORS * m * m * item,
                "block of kernel values": 3 * rows_of_block(m) * m * item,
                "vectors": 10 * m * outputs * n_C * item,
            }
        separate_sums = folds + 1
        if streamed:
            # A batch exists four times: as read, padded, on the device, and sorted by groups. Raw
            # rows may be in float64.
            row = 8 * (d + 2)
            rows = {"batches": 4 * batch_rows * row, "sample": 3 * sample_rows * row}
        else:  # rows exist three times: raw, standardised, and arranged by folds
            rows = {"rows": 3 * n * (d + outputs + 2) * item}
            if classes == 1 and cheaper(m, fold_rows, n_C) == "removal":
                separate_sums = 1
        return rows | {
            # Twice: the old sums and the updated ones.
            "sums": 2 * kernels * separate_sums * classes * m * (m + outputs) * item,
            "block of features": 4 * block_rows * m * item,
            "decompositions": 6 * min(systems_at_once(), folds) * m * m * item,
            "solutions": folds * n_C * m * outputs * item,
            "predictions": 3 * rows_together * n_C * outputs * item,
        }

    def parts_of_all(m: int, kernels: int = 1) -> dict[str, int]:
        """Return the bytes for all problems by content."""
        parts = parts_of(m, kernels)
        if n_problems == 1:
            return parts
        solving, evaluations = sum(parts.values()), sum(search.batch_sizes(n_parameters))
        stored = bytes_in_batch(
            capacity(n), capacity(d, 4), outputs, capacity(m, 8), n_C, evaluations, folds, item
        )
        devices = 1 if systems_at_once() == 1 else len(jax.local_devices())
        size, calls = calls_of_batch(n_problems, devices, solving, stored, limit)
        at_once = min(size, systems_at_once() * devices)
        result = RESULT_BYTES + RESULT_ROW_BYTES * n + 2 * m * (m + d) * item
        return {
            "problems at work": calls * at_once * solving,
            "tables of calls": calls * size * stored,
            "results": n_problems * result,
        }

    def bytes_of(m: int, kernels: int = 1) -> int:
        return sum(parts_of_all(m, kernels).values())

    kernels, largest = max(rounds), None
    if limit is not None:
        while kernels > 1 and bytes_of(m, kernels) > limit:
            kernels -= 1
        too_many = 1
        while bytes_of(too_many) <= limit:
            too_many *= 2
        fewest = too_many // 2
        largest = bisect.bisect_right(range(1, too_many), limit, lo=fewest, key=bytes_of)
    passes = 1 + sum(-(-count // kernels) for count in rounds) if streamed else 1
    return Plan(parts_of_all(m, kernels), limit, largest, passes, kernels, block_rows, programs)


def default_prototypes(
    n: int, preset: str, memory: int | None, *, by_folds: bool = False
) -> int | Literal["all"]:
    """Return the number of prototypes of `train` without a method, for `n` rows in memory.

    The preset is "balanced" or "accurate". Arrays may take `memory` bytes; None for the free
    memory. `by_folds` states whether the run must be validated on folds, which excludes the dual.
    """
    needed = plan(max(n, 1), 1, "all", memory=memory)
    fits = needed.limit is None or needed.bytes <= needed.limit
    if n <= ALL_ROWS[preset] and fits and not by_folds:
        return "all"
    return max(1, min(PROTOTYPES[preset], n // 2))


def bytes_in_batch(
    rows: int, columns: int, outputs: int, m: int, n_C: int, evaluations: int, folds: int, item: int
) -> int:
    """Return the bytes of the arguments and results of a problem in a call of `train_many`.

    Rows, columns and prototypes `m` are capacities. The search evaluates `evaluations` kernels, and
    a number has `item` bytes.
    """
    arrays = rows * (columns + outputs + 4) + 4 * m * (m + columns)
    return 2 * item * (arrays + evaluations * n_C * folds)


def calls_of_batch(
    problems: int, devices: int, solving: int, stored: int, limit: int | None
) -> tuple[int, int]:
    """Return the number of tables in a call of `train_many`, and the number of calls at a time.

    A problem takes `solving` bytes while it is solved, and `stored` bytes for its arguments and
    results, see `bytes_in_batch`. All may take `limit` bytes; None without a limit.
    """
    if systems_at_once() == 1:
        size, calls = TABLES_ON_CPU * devices, min(CALLS_ON_CPU, usable_cores())
    else:  # absent tables take time there
        size, calls = min(TABLES * devices, 1 << (problems - 1).bit_length()), CALLS

    def needed() -> int:
        return calls * (min(size, systems_at_once() * devices) * solving + size * stored)

    while limit is not None and calls > 1 and needed() > limit:
        calls -= 1
    while limit is not None and size > devices and needed() > limit:
        size //= 2
    return size, calls


def plan_of(method: Method, **arguments: Any) -> Plan | None:
    """Return the memory `plan` of a resolved method; None if it needs little more than the rows."""
    return None if method.n_features is None else plan(**method.plan_arguments, **arguments)


def check_fits(planned: Plan | None, method: Method) -> None:
    """Raise a `ValueError` if a run does not fit into memory; its message states what would fit."""
    if planned is None or planned.limit is None or planned.bytes <= planned.limit:
        return
    largest_part = max(planned.parts, key=planned.parts.__getitem__)
    advice = "take fewer prototypes, such as FixedSize(n_prototypes=..)"
    if planned.largest is not None:
        advice = f"at most {planned.largest} would fit"
        if planned.largest == 0:
            advice = "none would fit; read the rows as a stream, or in smaller batches"
    raise ValueError(
        f"{method.size_text} would take {_with_unit(planned.bytes)} of memory (the largest part, "
        f"{_with_unit(planned.parts[largest_part])}, for {largest_part}), where "
        f"{_with_unit(planned.limit)} may be used; {advice}"
    )


def _with_unit(count: int) -> str:
    """Return a number of bytes as text with a unit, such as "1.5 MiB"."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.3g} {units[0]}"


# For cgroups of version 2 and 1: file of the limit, file of statistics, name of the bytes in use.
_CONTAINERS = (
    ("memory.max", "memory.stat", "anon"),
    ("memory/memory.limit_in_bytes", "memory/memory.stat", "total_rss"),
)


def _free_in_container() -> int | None:
    """Return the free bytes of this container; None if its limit or use is not known."""
    groups = Path("/sys/fs/cgroup")
    for limit, statistics, used in _CONTAINERS:
        try:
            lines = dict(x.split() for x in (groups / statistics).read_text().splitlines())
            return int((groups / limit).read_text()) - int(lines[used])
        except (OSError, ValueError, KeyError):
            continue
    return None


def free_bytes() -> int | None:
    """Return the free bytes of the first device of this process; None if unknown."""
    device = jax.local_devices()[0]
    if not on_cpu(device):
        stats = device.memory_stats()
        return stats["bytes_limit"] - stats["bytes_in_use"] if stats else None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [1024 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")]
    except OSError:
        if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
            return None
        free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    in_container = _free_in_container()
    return min(free if in_container is None else [*free, in_container], default=None)
