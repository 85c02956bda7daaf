"""What a run will take, said before it starts: bytes, blocks, and passes over the rows."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import DTypeLike

from .._arguments import real, whole_number
from .._blocks import default_block_rows, systems_at_once
from .._repr import short_repr
from ..data.streams import BATCH_ROWS
from ..machines.ridge import cheaper
from ..multiclass import Code
from ..search.strategies import Profile, Search, check_search

SAMPLE_ROWS = 65536


class Plan(NamedTuple):
    """What a run takes.

    Attributes:
        parts: bytes that are in memory at one time, by what they hold; estimates.
        limit: bytes there are, None if that is not known.
        largest: most prototypes that would fit, None if the limit is not known.
        passes: reads of all rows; 1 if they are in memory. `jsparse fit` takes one more, to see
            what the columns hold.
        kernels_at_once: kernels that are summed in one pass.
        block_rows: rows of a block of features.
    """

    parts: dict[str, int]
    limit: int | None
    largest: int | None
    passes: int
    kernels_at_once: int
    block_rows: int

    __repr__ = short_repr

    @property
    def bytes(self) -> int:
        """At most in memory at one time."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        lines = [f"{name:<20}{_words(count):>10}" for name, count in self.parts.items()]
        there = "" if self.limit is None else f" of {_words(self.limit)}"
        lines += [f"{'together':<20}{_words(self.bytes):>10}{there}"]
        lines += [
            f"passes {self.passes}, kernels in a pass {self.kernels_at_once}, rows in a block "
            f"{self.block_rows}"
        ]
        return "\n".join(lines)


def plan(
    n: int,
    d: int,
    m: int | Literal["all"],
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
) -> Plan:
    """What `train` will take, of rows in memory or a stream.

    Args:
        n: rows; of a stream they do not matter.
        d: columns.
        m: prototypes, or "all" for the LS-SVM in the dual.
        folds: parts of the rows that are summed apart; 2 with a hold-out.
        code: of more than two classes, see `output_code`.
        n_C: values of `C`.
        dtype: of the computations.
        streamed: whether the rows are read in batches.
        batch_rows: rows of a batch.
        sample_rows: rows of a stream that are kept to choose prototypes and to score.
        search: see `tune`.
        n_parameters: tuned leaves of the kernel.
        memory: bytes that may be taken; by default what the device has left.
    """
    n, d, n_C = whole_number("n", n, 1), whole_number("d", d, 1), whole_number("n_C", n_C, 1)
    folds = whole_number("folds", folds, 2)
    m = m if isinstance(m, str) else whole_number("m", m, 1)
    batch_rows = whole_number("batch_rows", batch_rows, 1)
    sample_rows = whole_number("sample_rows", sample_rows, 1)
    n_parameters = whole_number("n_parameters", n_parameters, 0)
    if isinstance(m, str) and m != "all":
        raise ValueError(f"m: expected a number or 'all', got {m!r}")
    check_search(search)
    limit = free_bytes() if memory is None else int(real("memory", memory, 0.0))
    rounds = search.rounds(n_parameters) if streamed else [1]
    item = np.dtype(dtype).itemsize
    problems = 1 if code is None else code.matrix.shape[1]
    classes = 1 if code is None or code.shares_all_rows else code.matrix.shape[0]

    def parts(m: int, kernels: int) -> dict[str, int]:
        row = (d + problems + 2) * item
        scored = sample_rows if streamed else n
        apart = folds + 1
        if not streamed and classes == 1 and cheaper(m, -(-n // folds), n_C) == "removal":
            apart = 1
        # In memory: raw, standardised, laid out by folds. Of a stream: read, padded, on the
        # device, sorted by groups.
        # Raw rows may be of float64 whatever the computations are in.
        rows = {"batches": 4 * batch_rows * 8 * (d + 2), "sample": 3 * sample_rows * 8 * (d + 2)}
        if not streamed:
            rows = {"rows": 3 * n * row}
        return rows | {
            # What was there, and what comes to it.
            "sums": 2 * kernels * apart * classes * m * (m + problems) * item,
            "block of features": 4 * default_block_rows() * m * item,
            "decompositions": 6 * min(systems_at_once(), folds) * m * m * item,
            "solutions": folds * n_C * m * problems * item,
            "predictions": 3 * -(-scored // folds) * n_C * problems * item,
        }

    def kernels_at_once(m: int) -> int:
        kernels = max(rounds)
        while kernels > 1 and limit is not None and sum(parts(m, kernels).values()) > limit:
            kernels -= 1
        return kernels

    if isinstance(m, str):
        dense = {"rows": 3 * n * d * item, "kernel matrix": 5 * n * n * item}
        return Plan(dense, limit, None, 1, 1, default_block_rows())
    kernels = kernels_at_once(m)
    passes = 1 + sum(-(-count // kernels) for count in rounds) if streamed else 1
    largest = None
    if limit is not None:
        largest = _largest(lambda m: sum(parts(m, 1).values()) <= limit)
    return Plan(parts(m, kernels), limit, largest, passes, kernels, default_block_rows())


def check_fits(planned: Plan, m: int | Literal["all"], name: str = "n_prototypes") -> None:
    """Raise a `ValueError` if a run does not fit, with the most prototypes that do.

    Args:
        planned: what it takes.
        m: prototypes, or "all" rows.
        name: of the argument that has their number.
    """
    if planned.limit is None or planned.bytes <= planned.limit:
        return
    most = max(planned.parts, key=lambda name: planned.parts[name])
    advice = "take fewer prototypes, such as FixedSize(n_prototypes=..)"
    if planned.largest is not None:
        advice = f"at most {planned.largest} would fit"
        if planned.largest == 0:
            advice = "none would fit; read the rows as a stream, or in smaller batches"
    what = (
        "method: Dual, which keeps all rows,"
        if m == "all"
        else f"{name}: {m} {name.removeprefix('n_')}"
    )
    raise ValueError(
        f"{what} would take {_words(planned.bytes)} of memory (most of it, "
        f"{_words(planned.parts[most])}, for {most}), of which there are {_words(planned.limit)}; "
        f"{advice}"
    )


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, 0 if none does, for a condition that is lost but once."""
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _words(count: int) -> str:
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.3g} {units[0]}"


_CONTAINERS = (  # limit and use of cgroups, version 2 and 1
    ("memory.max", "memory.stat", "anon"),
    ("memory/memory.limit_in_bytes", "memory/memory.stat", "total_rss"),
)


def _left_in_container() -> int | None:
    for limit, statistics, used in _CONTAINERS:
        base = Path("/sys/fs/cgroup")
        try:
            lines = dict(x.split() for x in (base / statistics).read_text().splitlines())
            return int((base / limit).read_text()) - int(lines[used])
        except (OSError, ValueError, KeyError):
            continue
    return None


def free_bytes() -> int | None:
    """Return the bytes that the first device of this process has left; None if it does not say."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        said = device.memory_stats()
        return said["bytes_limit"] - said["bytes_in_use"] if said else None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [1024 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")]
    except OSError:
        if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
            return None
        free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    left = _left_in_container()
    return min(free if left is None else [*free, left], default=None)
