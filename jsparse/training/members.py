"""Members of batches: problems checked on the host and padded to shared capacities."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Float, Shaped

from .._arguments import as_key
from .._blocks import capacity, padded
from .._repr import short_repr
from .._runtime import on_cpu
from .._types import KeyLike
from ..kernels import Kernel
from ..kernels.mixed import categorical_columns
from ..machines.method import Method, Shape
from ..multiclass import Code
from ..prototypes.bandwidth import counts_pairs
from ..prototypes.uniform import draws_of, encode
from ..scaling import Scaling, Standardization
from ..search.problem import bounds_of
from ..search.strategies import Search
from ..search.template import Template, split_kernel
from ..validation.folds import Folds, shuffle_rounds
from ..validation.validate import Scoring
from .batch import Steps, Table
from .choices import template_of
from .encoding import Encoding
from .plan import Plan, bytes_in_batch, check_fits, plan_of
from .presets import Preset
from .run import RawRows
from .settings import Config, HoldOut
from .tables import EncodedRows, encode_rows, number_of_folds, padded_folds, shape_of

# A table is padded to at most this many times its rows, to share a program with larger tables.
# Padding rows costs less than compiling, as the decompositions do not depend on the rows.
PADDING = 8


class Common(NamedTuple):
    """The method, kernel, bounds and steps that problems of one shape and configuration share."""

    method: Method  # resolved
    wide: Method  # with as many prototypes as their capacity
    search: Search  # resolved
    template: Template
    low: Float[np.ndarray, " p"]  # bounds of theta
    high: Float[np.ndarray, " p"]
    columns: int  # number of columns to pad to
    steps: Steps

    __repr__ = short_repr


class Member(NamedTuple):
    """A problem that a batch can hold: checked and encoded on the host."""

    config: Config
    raw: RawRows
    encoded: EncodedRows
    shape: Shape
    common: Common
    folds: Folds | None  # the caller's folds; None for random ones
    key: np.ndarray  # a seed, or the data of a key
    preset: Preset | None

    __repr__ = short_repr

    @property
    def n_prototypes(self) -> int:
        """The number of prototypes."""
        return self.common.method.n_features  # type: ignore[return-value]

    @property
    def weights(self) -> Float[np.ndarray, " n"]:
        """The row weights, in the dtype of the computations."""
        w, n = self.encoded.weights, len(self.raw.X)
        return (np.ones(n) if w is None else w).astype(self.raw.X.dtype)

    @property
    def targets(self) -> Shaped[np.ndarray, " n *c"]:
        """The targets that machines are fitted to, see `Encoding.targets`."""
        encoded, dtype = self.encoded, self.raw.X.dtype
        zeros: Any = np.zeros(1, dtype)  # the scaling has no effect on the targets
        targets = self.encoding(Standardization(zeros, zeros)).targets(
            encoded.numbers, encoded.weights
        )
        return targets.astype(dtype if encoded.code is None else np.int32)

    def encoding(self, scaling: Scaling) -> Encoding:
        """Return the encoding of the rows, with their scaling."""
        encoded = self.encoded
        return Encoding(scaling, encoded.classes, encoded.code, encoded.units)

    @property
    def program(self) -> tuple[Any, ...]:
        """The values that decide the program, but for the capacity of rows; equal in a batch."""
        encoded, common, code = self.encoded, self.common, self.encoded.code
        leaves, structure = jax.tree.flatten(common.template)
        return (
            self.raw.X.dtype, encoded.numbers.shape[1:], self.shape.classes, common.columns,
            None if code is None else (code.matrix.shape, np.asarray(code.matrix).tobytes()),
            None if encoded.labels is None else len(np.unique(encoded.labels)),
            _unequal(self.weights) is None, counts_pairs(capacity(self.shape.n)), common.steps,
            common.wide, structure, tuple(np.shape(leaf) for leaf in leaves),
            len(self.config.C), self.key.shape, self.key.dtype, self.folds is None,
        )  # fmt: skip

    def bytes_in_batch(self, rows: int) -> tuple[int, int]:
        """Return the bytes for solving the problem, and the bytes of its arguments and results.

        The problem is padded to `rows` rows. A batch holds the arguments and results of all its
        problems, but solves only some at a time.
        """
        steps, n_C, item = self.common.steps, len(self.config.C), self.raw.X.dtype.itemsize
        outputs = 1 if self.encoded.code is None else self.encoded.code.matrix.shape[1]
        outputs = max(outputs, *self.encoded.numbers.shape[1:], 1)
        stored = bytes_in_batch(
            rows, self.common.columns, outputs, steps.m, n_C, steps.planned, steps.n_folds, item
        )
        predictions = rows * n_C * outputs * item
        code, dtype = self.encoded.code, self.raw.X.dtype
        planned = _plan(self.config, self.common, rows, code, dtype, limit=None)
        return planned.bytes + predictions, stored

    def table(self, rows: int, fold_rows: int) -> Table:
        """Return the arrays of the problem, padded to `rows` rows.

        A fold that the caller states is padded to `fold_rows` rows.
        """
        encoded, common, (n, d) = self.encoded, self.common, self.raw.X.shape
        dtype, labels, m = self.raw.X.dtype, encoded.labels, common.steps.m
        codes = np.zeros(n, np.int32) if labels is None else encode(labels)
        w = self.weights
        folds = None if self.folds is None else padded_folds(self.folds, n, rows).padded(fold_rows)
        draws = draws_of(codes, self.n_prototypes, rows, _unequal(w), stratify=labels is not None)
        if draws.places is not None:  # the places of absent prototypes have no effect
            added = m - self.n_prototypes
            of_prototype, rank = (np.pad(a, (0, added)) for a in draws.places[1:])
            draws = draws._replace(
                places=draws.places._replace(of_prototype=of_prototype, rank=rank)
            )
        return Table(
            X=padded(np.pad(self.raw.X, ((0, 0), (0, common.columns - d))), rows),
            y=padded(self.targets, rows),
            weights=padded(w, rows, "constant"),
            key=self.key,
            draws=draws,
            n_columns=np.int32(d),
            count=np.int32(self.n_prototypes),
            folds=folds,
            template=jax.tree.map(np.asarray, common.template),
            low=common.low.astype(dtype),
            high=common.high.astype(dtype),
            C=self.config.C.astype(dtype),
            present=np.bool_(True),
        )


def _unequal(weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"] | None:
    """Return the weights in float64; None if all are equal, as they do not affect random draws."""
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


class Members:
    """The checks that turn problems into members of batches; `Common`s of equal shapes are kept.

    A batch may use `limit` bytes; None without a limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._common: dict[tuple, tuple[Common | str, Shape]] = {}

    def member(
        self, config: Config, raw: RawRows | None, key: KeyLike, preset: Preset | None
    ) -> Member | str:
        """Return a problem as a member of a batch, or the reason why it must be trained alone.

        The configuration has no keys. `raw` is None for a stream. `preset` is the preset that
        completed the settings. As in `train`, rows that contradict the configuration raise a
        `ValueError`.
        """
        data, reason = key_data(key), why_alone(config)
        if reason is not None:
            return reason
        if raw is None:
            return "a batch needs rows in memory, not a stream"
        if data is None:
            return "a batch needs keys of JAX's default generator"
        if raw.schema is not None and raw.schema.codes:
            return "a batch needs columns of numbers, not of categories"
        encoded, (n, d) = encode_rows(raw.X, raw.y, raw.weighted, config), raw.X.shape
        folds = config.folds if isinstance(config.folds, Folds) else None
        if folds is None:
            n_folds = number_of_folds(config, n)
            in_fold = np.full(n_folds, -(-n // n_folds))
        else:
            folds = raw.weighted.folds_within(folds)
            in_fold = np.asarray(folds.valid).sum(axis=1)
        n_classes = None if encoded.classes is None else len(encoded.classes)
        cache_key = (id(config), n, d, raw.X.dtype, n_classes, *in_fold.tolist(), folds is None)
        if cache_key not in self._common:
            kernel = template_of(config.kernel, d, config.search)
            shape = shape_of(n, d, in_fold, encoded.classes, kernel)
            common = self._common_of(config, shape, kernel, raw.X.dtype, len(in_fold), folds)
            if isinstance(common, Common):
                planned = _plan(config, common, n, encoded.code, raw.X.dtype, self.limit)
                check_fits(planned, common.method)
            self._common[cache_key] = common, shape
        common, shape = self._common[cache_key]
        if isinstance(common, str):
            return common
        return Member(config, raw, encoded, shape, common, folds, data, preset)

    def _common_of(
        self, config: Config, shape: Shape, kernel: Kernel, dtype: np.dtype, n_folds: int,
        folds: Folds | None,
    ) -> Common | str:  # fmt: skip
        """Return what problems of a shape have in common, or why they must be trained alone."""
        method = config.method.resolve(shape)
        search = config.search.resolve(shape.n, on_mesh=False)
        template = split_kernel(kernel, dtype, **search.varied)
        reason = search.why_alone(template.size, dtype) or method.why_alone
        if reason is not None:
            return reason
        if shape.linear:
            return "a batch needs a kernel with prototypes, not the linear kernel"
        if categorical_columns(kernel):
            return "a batch needs columns of numbers, not of categories"
        n_prototypes = cast(int, method.n_features)
        has_part = method.rows_of_part(shape.n, n_prototypes) is not None
        if on_cpu() and has_part and template.size > 0:
            return "a batch needs fewer rows, as many are first compared on a part of the rows"
        m = capacity(n_prototypes, 8)
        criterion = config.metric or method.criterion(config.task)
        reported = config.metric or method.metric(config.task)
        steps = Steps(
            scoring=Scoring(criterion, config.multiclass.decoding, reported),
            planned=sum(search.batch_sizes(template.size)),
            m=m,
            n_folds=n_folds,
            shuffles=shuffle_rounds(shape.n) if folds is None else 1,
        )
        columns = capacity(shape.d, 4) if kernel.ignores_zero_columns else shape.d
        wide, bounds = method.at_size(m)[0], bounds_of(template)
        return Common(method, wide, search, template, *bounds, columns, steps)


def _plan(
    config: Config, common: Common, n: int, code: Code | None, dtype: np.dtype, limit: int | None
) -> Plan:
    """Return the memory plan for one problem of `n` rows, padded, if it may use `limit` bytes."""
    planned = plan_of(
        common.wide, n=capacity(n), d=common.columns, folds=common.steps.n_folds, code=code,
        n_C=config.C.size, dtype=dtype, search=common.search,
        n_parameters=common.template.size, memory=limit,
    )  # fmt: skip
    assert planned is not None
    return planned


def why_alone(config: Config) -> str | None:
    """Return which setting keeps a problem out of a batch; None if none does."""
    if isinstance(config.folds, HoldOut):
        return "a batch needs rows in memory, not a stream"
    if config.columns != "standard":
        return f"a batch needs preset='fast' or columns='standard', not {config.columns!r}"
    if isinstance(config.kernel, str) and config.kernel == "auto":
        return "a batch needs preset='fast' or a stated kernel, not 'auto'"
    if config.out_of_fold == "machines":
        return "a batch keeps no machines of the folds, as out_of_fold='machines' would"
    if config.multiclass.C_per_problem:
        return "a batch needs one C for all binary problems, not C_per_problem=True"
    if config.resources.checkpoint is not None:
        return "a batch writes no checkpoint"
    if config.resources.max_seconds < math.inf:
        return "a batch has no time limit, as max_seconds states"
    if config.progress is not None:
        return "a batch reports no progress of single searches"
    return None


def batches(members: dict[int, Member]) -> Iterator[tuple[int, list[int]]]:
    """Divide members into groups that share a program, and yield each group.

    A group is the number of rows to which its tables are padded, the `capacity` of its largest
    table, and the problem numbers of its members. `members` has the members by problem number.
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
