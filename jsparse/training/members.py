"""Problems that share programs: their checks on the host, and their padding to shared capacities."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from .._arguments import as_key
from .._blocks import capacity, padded
from .._repr import short_repr
from .._types import KeyLike
from ..kernels.mixed import categorical_columns
from ..machines.method import Method, Shape
from ..prototypes.bandwidth import counts_pairs
from ..prototypes.uniform import draws_of, encode
from ..scaling import Scaling, Standardization
from ..search.problem import bounds_of
from ..search.strategies import Search
from ..search.template import Template, split_kernel
from ..validation.folds import Folds, shuffle_rounds
from ..validation.validate import Scoring
from .batch import Steps, Table
from .encoding import Encoding
from .plan import Plan, check_fits, plan_of
from .presets import Preset
from .run import RawRows, raw_rows
from .settings import Config, HoldOut
from .tables import EncodedRows, encode_rows, number_of_folds, padded_folds, shape_of

# A table is padded to at most this many times its rows, to share a program with larger tables.
# Padding rows costs less than compiling, as the decompositions do not depend on the rows.
PADDING = 8


class Member(NamedTuple):
    """A problem that a batch can hold: checked and encoded on the host."""

    config: Config
    raw: RawRows
    encoded: EncodedRows
    shape: Shape
    method: Method  # resolved
    search: Search  # resolved
    template: Template  # of the kernel
    folds: Folds | None  # the caller's folds; None for random ones
    n_folds: int
    key: np.ndarray  # a seed, or the data of a key
    preset: Preset | None

    __repr__ = short_repr

    @property
    def planned(self) -> int:
        """The number of evaluations of the search."""
        return sum(self.search.batch_sizes(self.template.size))

    @property
    def scoring(self) -> Scoring:
        """The metric to minimise, the metric to report, and the decoding."""
        config, method = self.config, self.method
        criterion = config.metric or method.criterion(config.task)
        reported = config.metric or method.metric(config.task)
        return Scoring(criterion, config.multiclass.decoding, reported)

    @property
    def n_prototypes(self) -> int:
        """The number of prototypes."""
        return self.method.n_features  # type: ignore[return-value]

    @property
    def weights(self) -> Float[np.ndarray, " n"]:
        """The row weights, in the dtype of the computations."""
        w, n = self.encoded.weights, len(self.raw.X)
        return (np.ones(n) if w is None else w).astype(self.raw.X.dtype)

    def encoding(self, scaling: Scaling) -> Encoding:
        """Return the encoding of the rows, with their scaling."""
        encoded = self.encoded
        return Encoding(scaling, encoded.classes, encoded.code, encoded.units)

    @property
    def columns(self) -> int:
        """The number of columns to pad to."""
        d = self.shape.d
        return capacity(d, 4) if self.encoded.kernel.ignores_zero_columns else d

    @property
    def program(self) -> tuple[Any, ...]:
        """What decides the program beside the capacity of rows: equal for members of a batch."""
        encoded, n = self.encoded, self.shape.n
        code = encoded.code
        leaves, structure = jax.tree.flatten(self.template)
        return (
            self.raw.X.dtype, encoded.numbers.shape[1:], self.shape.classes, self.columns,
            None if code is None else (code.matrix.shape, np.asarray(code.matrix).tobytes()),
            None if encoded.labels is None else len(np.unique(encoded.labels)),
            _unequal(self.weights) is None, counts_pairs(capacity(n)), self.steps(),
            self.program_method, structure, tuple(np.shape(leaf) for leaf in leaves),
            len(self.config.C), self.key.shape, self.key.dtype, self.folds is None,
        )  # fmt: skip

    @property
    def program_method(self) -> Method:
        """The method with as many prototypes as their capacity."""
        return self.method.at_size(capacity(self.n_prototypes, 8))[0]

    def plan(self, limit: int | None, rows: int | None = None) -> Plan:
        """Return the memory plan of a run of the problem alone, padded to its capacities.

        Args:
            limit: bytes that may be used; None for the free memory.
            rows: capacity of rows; None for the capacity of the problem.
        """
        code, config = self.encoded.code, self.config
        arguments = {
            "n": rows or capacity(self.shape.n), "d": self.columns, "folds": self.n_folds, "code": code,
            "n_C": config.C.size, "dtype": self.raw.X.dtype, "search": self.search,
            "n_parameters": self.template.size, "memory": limit,
        }  # fmt: skip
        planned = plan_of(self.program_method, **arguments)
        assert planned is not None
        return planned

    def bytes_in_batch(self, rows: int) -> tuple[int, int]:
        """Return the bytes while the problem is solved, and while it is in a batch.

        Args:
            rows: capacity of rows.
        """
        steps, n_C, item = self.steps(), len(self.config.C), self.raw.X.dtype.itemsize
        outputs = self.encoded.code.matrix.shape[1] if self.encoded.code else 1
        outputs = max(outputs, *self.encoded.numbers.shape[1:], 1)
        predictions = rows * n_C * outputs * item
        errors = self.planned * n_C * self.n_folds * item
        arrays = rows * (self.columns + outputs + 4) + 4 * steps.m * (steps.m + self.columns)
        return self.plan(None, rows).bytes + predictions, 2 * (arrays * item + errors)

    def steps(self) -> Steps:
        """Return the settings that decide the program."""
        shuffles = shuffle_rounds(self.shape.n) if self.folds is None else 1
        m = capacity(self.n_prototypes, 8)
        return Steps(self.scoring, self.planned, m, self.n_folds, shuffles)

    def table(self, rows: int, fold_rows: int) -> Table:
        """Return the arrays of the problem, padded.

        Args:
            rows: capacity of rows.
            fold_rows: capacity of rows of a fold that the caller states.
        """
        encoded, (n, d), m = self.encoded, self.raw.X.shape, capacity(self.n_prototypes, 8)
        dtype, weights = self.raw.X.dtype, encoded.weights
        labels = encoded.labels
        codes, counts = (np.zeros(n, np.int32), np.array([n])) if labels is None else encode(labels)
        w = self.weights
        placeholder = Standardization(*np.zeros((2, d), dtype))  # targets do not depend on it
        targets = self.encoding(placeholder).targets(encoded.numbers, weights)
        low, high = bounds_of(self.template)
        folds = self.folds
        if folds is not None:
            index, valid = padded_folds(folds, n, rows)
            added = [(0, 0), (0, fold_rows - index.shape[1])]
            folds = Folds(np.pad(index, added), np.pad(valid, added))
        draws = draws_of(
            codes, counts, self.n_prototypes, rows, _unequal(w), stratify=labels is not None
        )
        if draws.places is not None:  # the places of absent prototypes have no effect
            added = m - self.n_prototypes
            of_prototype, rank = (np.pad(a, (0, added)) for a in draws.places[1:])
            draws = draws._replace(places=draws.places._replace(of_prototype=of_prototype, rank=rank))
        return Table(
            X=padded(np.pad(self.raw.X, ((0, 0), (0, self.columns - d))), rows),
            y=padded(targets.astype(dtype if encoded.code is None else np.int32), rows),
            weights=padded(w, rows, "constant"),
            key=self.key,
            draws=draws,
            n_columns=np.int32(d),
            count=np.int32(self.n_prototypes),
            folds=folds,
            template=jax.tree.map(np.asarray, self.template),
            low=low.astype(dtype),
            high=high.astype(dtype),
            C=self.config.C.astype(dtype),
            present=np.bool_(True),
        )


def _unequal(weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"] | None:
    """Return the weights in float64; None if all are equal, so that they decide no draw."""
    return None if np.all(weights == weights[0]) else weights.astype(float)


def key_data(key: KeyLike) -> np.ndarray | None:
    """Return a key as an array that `as_key` takes: a seed, or the data of a key.

    None for a key of another generator than JAX's default.
    """
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return np.asarray(key, np.int64).astype(jax.dtypes.canonicalize_dtype(np.int64))
    checked = as_key(key)
    if jax.random.key_impl(checked) != "threefry2x32":
        return None
    return np.asarray(jax.random.key_data(checked))


class Alone(NamedTuple):
    """Why a problem is trained by its own run."""

    reason: str


def member_of(
    config: Config, raw: RawRows | None, key: np.ndarray | None, preset: Preset | None,
    limit: int | None,
) -> Member | Alone:  # fmt: skip
    """Return a problem as a member of a batch, or why it must be trained alone.

    Args:
        config: the configuration, without keys.
        raw: the rows; None for a stream.
        key: see `key_data`.
        preset: the preset that completed the settings.
        limit: bytes that may be used; None without a limit.

    Raises:
        ValueError: for rows that contradict the configuration, as `train` does.
    """
    reason = why_alone(config)
    if reason is None and raw is None:
        reason = "a batch needs rows in memory, not a stream"
    if reason is None and key is None:
        reason = "a batch needs keys of JAX's default generator"
    if reason is not None or raw is None or key is None:
        return Alone(reason or "")
    (n, d), dtype = raw.X.shape, raw.X.dtype
    codes = () if raw.schema is None else raw.schema.codes
    encoded = encode_rows(raw.X, raw.y, raw.weighted, config, codes)
    if codes or categorical_columns(encoded.kernel):
        return Alone("a batch needs columns of numbers, not of categories")
    folds = config.folds if isinstance(config.folds, Folds) else None
    if folds is None:
        n_folds = number_of_folds(config, n)
        in_fold = np.full(n_folds, -(-n // n_folds))
    else:
        folds = raw.weighted.folds_within(folds)
        n_folds, in_fold = len(folds.index), np.asarray(folds.valid).sum(axis=1)
    shape = shape_of(n, d, in_fold, encoded.classes, encoded.kernel)
    method = config.method.resolve(shape)
    if shape.linear:
        return Alone("a batch needs a kernel with prototypes, not the linear kernel")
    search = config.search.resolve(n, on_mesh=False)
    template = split_kernel(encoded.kernel, dtype, **search.varied)
    reason = search.why_alone(template.size, dtype) or method.why_alone
    if reason is not None:
        return Alone(reason)
    member = Member(config, raw, encoded, shape, method, search, template, folds, n_folds, key, preset)
    check_fits(member.plan(limit), method)
    return member


def why_alone(config: Config) -> str | None:
    """Return which setting keeps a problem out of a batch; None if none does."""
    if isinstance(config.folds, HoldOut):
        return "a batch needs rows in memory, not a stream"
    if config.columns != "standard":
        return f"a batch needs columns='standard', not {config.columns!r}"
    if config.kernel == "auto" if isinstance(config.kernel, str) else False:
        return "a batch needs a stated kernel, not 'auto'"
    if config.out_of_fold == "machines":
        return "a batch keeps no machines of the folds, as out_of_fold='machines' would"
    if config.multiclass.C_per_problem:
        return "a batch needs one C for all binary problems, not C_per_problem=True"
    if config.resources.max_seconds < math.inf:
        return "a batch has no time limit, as max_seconds states"
    if config.progress is not None:
        return "a batch reports no progress of single searches"
    return None


def batches(members: dict[int, Member]) -> Iterator[tuple[int, list[int]]]:
    """Divide members into groups that share a program; return capacities of rows and numbers.

    The tables of a group are padded to the capacity of its largest table.
    """
    groups: dict[Any, list[int]] = {}
    for number, member in members.items():
        groups.setdefault(member.program, []).append(number)
    for numbers in groups.values():
        by_rows = sorted(numbers, key=lambda number: -members[number].shape.n)
        while by_rows:
            rows = capacity(members[by_rows[0]].shape.n)
            together = [number for number in by_rows if PADDING * members[number].shape.n > rows]
            yield rows, sorted(together)
            by_rows = by_rows[len(together) :]
