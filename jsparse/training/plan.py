"""Estimates made before a run: bytes of memory, block sizes, and passes over the rows."""

import bisect
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import DTypeLike

from .._arguments import real, whole_number
from .._blocks import default_block_rows, systems_at_once
from .._programs import bytes_of_programs
from .._repr import short_repr
from .._runtime import on_cpu
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
    n_prototypes: int | Literal["all"],
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
) -> Plan:
    """Estimate the memory and the passes of `train`, for rows in memory or a stream.

    Args:
        n: number of rows; has no effect on a stream's plan.
        d: number of columns.
        n_prototypes: number of prototypes `m`, or "all" for the LS-SVM in the dual.
        folds: number of folds; 2 with a `HoldOut`.
        code: output code of more than two classes, see `output_code`.
        n_C: number of values of `C`.
        dtype: dtype of the computations.
        streamed: whether the rows are read in batches.
        batch_rows: rows of a batch.
        sample_rows: rows of a stream that are kept to choose prototypes and to score.
        search: see `tune`.
        n_parameters: number of tuned elements of the kernel.
        memory: bytes that arrays may take; by default the free memory of the device, on a CPU
            without the bytes of programs.
        solver: see `FixedSize`. For "conjugate_gradients" the plan is for the machine of all
            prototypes, not for the smaller machine that tunes the kernel.

    Raises:
        ValueError: for arguments out of range.
    """
    n, d, n_C = whole_number("n", n, 1), whole_number("d", d, 1), whole_number("n_C", n_C, 1)
    folds = whole_number("folds", folds, 2)
    if isinstance(n_prototypes, str) and n_prototypes != "all":
        raise ValueError(f"n_prototypes: expected a number or 'all', got {n_prototypes!r}")
    check_choice("solver", solver, Solver)
    m = n_prototypes if n_prototypes == "all" else whole_number("n_prototypes", n_prototypes, 1)
    batch_rows = whole_number("batch_rows", batch_rows, 1)
    sample_rows = whole_number("sample_rows", sample_rows, 1)
    n_parameters = whole_number("n_parameters", n_parameters, 0)
    check_search(search)
    programs = bytes_of_programs(max(batch_rows, sample_rows) if streamed else n)
    limit = _free_for_arrays(programs) if memory is None else int(real("memory", memory, 0.0))
    item, block_rows = np.dtype(dtype).itemsize, default_block_rows()
    if m == "all":
        parts = {"rows": 3 * n * d * item, "kernel matrix": 5 * n * n * item}
        return Plan(parts, limit, None, 1, 1, block_rows, programs)
    if solver == "conjugate_gradients":
        block_rows = rows_of_block(m)
    problems = 1 if code is None else code.matrix.shape[1]
    classes = 1 if code is None or code.shares_all_rows else code.matrix.shape[0]
    rounds = search.batch_sizes(n_parameters) if streamed else [1]
    fold_rows = -(-(sample_rows if streamed else n) // folds)

    def parts_of(m: int, kernels: int) -> dict[str, int]:
        if solver == "conjugate_gradients":
            return {
                "rows": 4 * n * (d + problems + 2) * item,
                "preconditioner": FACTORS * m * m * item,
                "block of kernel values": 3 * rows_of_block(m) * m * item,
                "vectors": 10 * m * problems * n_C * item,
            }
        separate_sums = folds + 1
        if streamed:
            # A batch exists four times: as read, padded, on the device, and sorted by groups. Raw
            # rows may be in float64.
            row = 8 * (d + 2)
            rows = {"batches": 4 * batch_rows * row, "sample": 3 * sample_rows * row}
        else:  # rows exist three times: raw, standardised, and arranged by folds
            rows = {"rows": 3 * n * (d + problems + 2) * item}
            if classes == 1 and cheaper(m, fold_rows, n_C) == "removal":
                separate_sums = 1
        return rows | {
            # Twice: the old sums and the updated ones.
            "sums": 2 * kernels * separate_sums * classes * m * (m + problems) * item,
            "block of features": 4 * block_rows * m * item,
            "decompositions": 6 * min(systems_at_once(), folds) * m * m * item,
            "solutions": folds * n_C * m * problems * item,
            "predictions": 3 * fold_rows * n_C * problems * item,
        }

    def bytes_of(m: int, kernels: int = 1) -> int:
        return sum(parts_of(m, kernels).values())

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
    return Plan(parts_of(m, kernels), limit, largest, passes, kernels, block_rows, programs)


def _free_for_arrays(programs: int) -> int | None:
    """Return the free bytes of the device; on a CPU, subtract the bytes of the programs."""
    free = free_bytes()
    return max(0, free - programs) if on_cpu() and free is not None else free


def plan_of(method: Method, **arguments: Any) -> Plan | None:
    """Return the `plan` of a resolved method; None if it needs little more than the rows."""
    return None if method.n_features is None else plan(**method.plan_arguments, **arguments)


def check_fits(planned: Plan | None, method: Method) -> None:
    """Raise a `ValueError` if a run does not fit into memory.

    The message states the largest number of prototypes or candidates that would fit.
    """
    if planned is None or planned.limit is None or planned.bytes <= planned.limit:
        return
    largest_part = max(planned.parts, key=planned.parts.__getitem__)
    advice = "take fewer prototypes, such as FixedSize(n_prototypes=..)"
    if planned.largest is not None:
        advice = f"at most {planned.largest} would fit"
        if planned.largest == 0:
            advice = "none would fit; read the rows as a stream, or in smaller batches"
    raise ValueError(
        f"{method.size_text} would take {_with_unit(planned.bytes)} of memory (most of it, "
        f"{_with_unit(planned.parts[largest_part])}, for {largest_part}), of which "
        f"{_with_unit(planned.limit)} may be used; {advice}"
    )


def _with_unit(count: int) -> str:
    """Return a number of bytes with its unit."""
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
    """Return the free bytes of this container; None if there is no limit."""
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
