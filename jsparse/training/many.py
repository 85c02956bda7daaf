"""Training of many problems: as a batch in one program where possible, else one after another."""

import dataclasses
import inspect
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from .._arguments import real
from .._lapack_threads import one_lapack_thread
from .._mesh import check_mesh, spans_processes
from .._runtime import check_runtime, on_cpu
from .._status import NOT_FINITE
from ..machines.checks import check_choice
from ..machines.method import Method
from ..multiclass import Code
from .batch import Solved, Table, solve_batch
from .batch_results import trained_members
from .members import Member, Members, batches
from .plan import calls_of_batch, free_bytes
from .presets import Preset, completed
from .run import raw_rows
from .settings import Config, Keys, Resources, Stated, configure
from .tables import padded_folds
from .train import situation_of, train
from .trained import STATUS_NAMES, Trained

OnError = Literal["raise", "keep"]
NO_KEYS = Keys(*[None] * len(Keys._fields))  # type: ignore[list-item]  # programs of a batch split the keys
ARGUMENTS = inspect.signature(train).parameters


@dataclasses.dataclass(frozen=True, repr=False)
class TrainedMany(Sequence["Trained | None"]):
    """The results of `train_many`: a sequence of one `Trained` for each problem.

    Attributes:
        names: the names of the problems, by default their numbers.
        results: a `Trained` for each problem; None for a problem that failed.
        errors: the error of each problem that failed, by name.
        alone: why a problem was trained alone instead of in a batch, by name.
        seconds: wall time of all problems.
    """

    names: tuple[Any, ...]
    results: tuple[Trained | None, ...]
    errors: dict[Any, Exception]
    alone: dict[Any, str]
    seconds: float

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self.results[index]

    @property
    def by_name(self) -> dict[Any, Trained | None]:
        """The results by the names of the problems."""
        return dict(zip(self.names, self.results, strict=True))

    @property
    def cv_errors(self) -> np.ndarray:
        """The cross-validated error of each problem; NaN for a problem that failed."""
        return np.array([np.nan if one is None else one.cv_error for one in self.results])

    @property
    def statuses(self) -> dict[str, np.ndarray]:
        """The stop codes of `Trained.statuses`, as arrays of one code for each problem.

        `jsparse.check` takes each array and gives the indices of the problems with a bad code. A
        problem that failed has no machine; its code is `NOT_FINITE`.
        """
        failed = dict.fromkeys(STATUS_NAMES, NOT_FINITE)
        of_problems = [failed if one is None else one.statuses for one in self.results]
        return {name: np.array([codes[name] for codes in of_problems]) for name in STATUS_NAMES}

    def __repr__(self) -> str:
        batched = len(self) - len(self.errors) - len(set(self.alone) - set(self.errors))
        parts = [f"{batched} in batches"]
        for reason in dict.fromkeys(self.alone.values()):
            count = sum(other == reason for other in self.alone.values())
            parts.append(f"{count} alone ({reason})")
        if self.errors:
            parts.append(f"{len(self.errors)} failed")
        return f"TrainedMany: {len(self)} problems, {', '.join(parts)}; {self.seconds:.3g} s"


def train_many(
    problems: Sequence[Any] | Mapping[Any, Any],
    *,
    on_error: OnError = "raise",
    **options: Any,
) -> TrainedMany:
    """Train a model for each of many problems, as `train` does for one.

    Problems with `FixedSize` and the search `Profile` share one program: it standardises, chooses
    prototypes, tunes and fits. Rows, columns and prototypes are padded to shared capacities, which
    changes results by rounding only. On a CPU each core, of at most four, takes one problem after
    another; accelerators take many problems at once, spread over all devices. Problems that the
    program cannot take are trained alone, and `TrainedMany.alone` says why.

    Args:
        problems: a sequence, or a mapping from names. A problem is a pair `(X, y)`, a triple `(X,
            y, weights)`, or a mapping of arguments of `train`, such as `{"weights": w}` or `{"key":
            3}`. A problem's arguments take precedence over `options`.
        on_error: "raise" the first error, whose message names the problem; or "keep" the errors in
            `TrainedMany.errors`, and train all other problems.
        **options: arguments of `train` that problems share: `task`, `key`, `method`, ... and also
            `X`, `y` and `weights`, if problems have one table. `resources.memory` bounds the bytes
            of the problems that are in memory together, and the devices of `resources.mesh` share
            the problems, not the rows.

    Every problem has the shared `key`, unless it states its own. A model then equals the model of
    `train` to rounding. A batch has no time limit and reports no progress: problems with
    `max_seconds` or `progress` are trained alone.

    Raises:
        ValueError: for problems that are no such pairs, triples or mappings, or none at all. With
            `on_error="raise"`, the first error of a problem, of the type that `train` raises.

    Example:
        >>> import numpy as np
        >>> from jsparse import FixedSize
        >>> X = np.linspace(-3.0, 3.0, 60)[:, None]
        >>> rng = np.random.default_rng(0)
        >>> problems = [{"y": np.sin(X[:, 0]) + s * rng.standard_normal(60)} for s in (0.1, 0.3)]
        >>> many = train_many(problems, X=X, task="regression", method=FixedSize(10), key=0)
        >>> len(many), len(many.alone)
        (2, 0)
    """
    check_runtime()
    check_choice("on_error", on_error, OnError)
    start = time.perf_counter()
    run = _Run(problems, on_error, options)
    members = run.prepared()
    for rows, numbers in batches(members):
        group = _Group([members[number] for number in numbers], rows, run.mesh, run.limit)
        with one_lapack_thread(group.members[0].common.wide.largest_system(rows)):
            for part, results in group.results():
                run.record(numbers[part], results)
    run.train_alone()
    return TrainedMany(
        run.names, tuple(run.results), run.errors, run.alone, time.perf_counter() - start
    )


class _Group:
    """Members that share a program, of which each call of the program takes a part.

    The devices of `mesh` share the members; None for one device. All tables are padded to `rows`
    rows. Calls that run together may use `limit` bytes; None for no limit.
    """

    def __init__(
        self, members: list[Member], rows: int, mesh: Mesh | None, limit: int | None
    ) -> None:
        self.members, self.rows, self.mesh = members, rows, mesh
        widths = [padded_folds(m.folds, m.shape.n, rows).index.shape[1] for m in members if m.folds]
        self.fold_rows = max(widths, default=0)
        devices = 1 if mesh is None else mesh.size
        solving, stored = members[0].bytes_in_batch(rows)  # equal for all members
        self.size, self.calls = calls_of_batch(len(members), devices, solving, stored, limit)

    def results(self) -> Iterator[tuple[slice, list[Any]]]:
        """Yield parts of the members, each with a `Trained` or an error for every member.

        While the caller works with the results of a part, the device computes the next parts. Each
        part has its own thread, as JAX on a CPU runs the calls of one thread one after another.
        """
        started: deque[tuple[slice, Future[Solved]]] = deque()
        self.clock = time.perf_counter()
        program = None
        with ThreadPoolExecutor(self.calls) as threads:
            for begin in range(0, len(self.members), self.size):
                part = slice(begin, begin + self.size)
                arguments = self._arguments(part)
                if program is None:
                    steps = self.members[0].common.steps
                    program = solve_batch.program(*arguments, steps=steps, mesh=self.mesh)
                started.append((part, threads.submit(_finished, program, arguments)))
                if len(started) == self.calls:
                    yield self._collect(*started.popleft())
            while started:
                yield self._collect(*started.popleft())

    def _arguments(self, part: slice) -> tuple[Method, Code | None, Table]:
        """Return the arguments of the program for some members, as arrays of the device.

        They are made in the caller's thread, whose settings of JAX decide the dtypes of arrays.
        """
        first = self.members[0]
        tables = [member.table(self.rows, self.fold_rows) for member in self.members[part]]
        tables += [tables[0]._replace(present=np.bool_(False))] * (self.size - len(tables))
        batch = jax.tree.map(lambda *a: np.stack(a), *tables)
        return jax.device_put((first.common.wide, first.encoded.code, batch))

    def _collect(self, part: slice, solved: Future[Solved]) -> tuple[slice, list[Any]]:
        """Wait for a part; return it with a `Trained` or an error for every member.

        The members share the time since the previous part was finished.
        """
        results = solved.result()
        members, before, self.clock = self.members[part], self.clock, time.perf_counter()
        return part, trained_members(members, results, (self.clock - before) / len(members))


def _finished(program: jax.stages.Compiled, arguments: tuple[Method, Code | None, Table]) -> Solved:
    """Run a program, and wait until its results have been computed."""
    return jax.block_until_ready(program(*arguments))


class _Run:
    """The problems of a call of `train_many`, and their results so far."""

    def __init__(self, problems: Any, on_error: OnError, options: dict[str, Any]) -> None:
        self.names, self.arguments = _checked_problems(problems, options)
        self.on_error = on_error
        self.results: list[Trained | None] = [None] * len(self.names)
        self.errors: dict[Any, Exception] = {}
        self.alone: dict[Any, str] = {}
        self.configs: dict[tuple, tuple[Config, Preset | None]] = {}
        resources = options.get("resources", Resources())
        if getattr(resources, "checkpoint", None) is not None:
            raise ValueError(
                "resources.checkpoint: expected None, as a checkpoint holds one run, got "
                f"{resources.checkpoint!r}; a problem may state resources with its own file"
            )
        self.mesh = _mesh(getattr(resources, "mesh", None))
        memory = getattr(resources, "memory", None)
        self.limit = free_bytes() if memory is None else int(real("memory", memory, 0.0))
        self.checks = Members(self.limit)

    def prepared(self) -> dict[int, Member]:
        """Return the members of batches by problem number; note why other problems are alone."""
        members: dict[int, Member] = {}
        for number, arguments in enumerate(self.arguments):
            try:
                member = self._prepared(arguments)
            except Exception as error:
                self._failed(number, error)
                continue
            if isinstance(member, str):
                self.alone[self.names[number]] = member
            else:
                members[number] = member
        return members

    def record(self, numbers: list[int], results: list[Any]) -> None:
        """Store the `Trained` of each numbered problem, or its error, which `_failed` may raise."""
        for number, result in zip(numbers, results, strict=True):
            if isinstance(result, Exception):
                self._failed(number, result)
            else:
                self.results[number] = result

    def train_alone(self) -> None:
        """Train all problems that are in no batch, one after another."""
        for number, name in enumerate(self.names):
            if name not in self.alone:
                continue
            arguments = self.arguments[number]
            resources = arguments.get("resources", Resources())
            if self.mesh is not None and resources.mesh is not None:
                arguments = arguments | {"resources": dataclasses.replace(resources, mesh=None)}
            try:
                self.results[number] = train(**arguments)
            except Exception as error:
                self._failed(number, error)

    def _prepared(self, arguments: dict[str, Any]) -> Member | str:
        """Return a problem as a member of a batch, or the reason why it must be trained alone."""
        complete = {name: p.default for name, p in ARGUMENTS.items()} | arguments
        if complete["budget"] is not None or complete["n_prototypes"] is not None:
            return "a batch distils no machines, as budget and n_prototypes ask for"
        config, preset = self._config(complete)
        raw = raw_rows(complete["X"], complete["y"], complete["weights"], config.task)
        return self.checks.member(config, raw, complete["key"], preset)

    def _config(self, complete: dict[str, Any]) -> tuple[Config, Preset | None]:
        """Return the configuration without keys, and the preset; kept for the same objects."""
        X, y, folds, resources = (complete[name] for name in ("X", "y", "folds", "resources"))
        stated = Stated(*(complete[name] for name in Stated._fields))
        situation = situation_of(X, y, folds, complete["out_of_fold"], resources)
        data = ("X", "y", "weights", "key")
        settings_ids = (id(value) for name, value in complete.items() if name not in data)
        cache_key = (situation, *settings_ids)
        if cache_key not in self.configs:
            settings, preset = completed(stated, complete["preset"], situation)
            config = configure(
                complete["task"], NO_KEYS, settings, complete["C"], folds, complete["metric"],
                complete["multiclass"], complete["class_weight"], complete["out_of_fold"],
                dataclasses.replace(resources, mesh=None), complete["progress"],
            )  # fmt: skip
            self.configs[cache_key] = config, preset
        return self.configs[cache_key]

    def _failed(self, number: int, error: Exception) -> None:
        """Store the error of a problem, or raise it; its message then names the problem."""
        name = self.names[number]
        error.args = (f"problem {name!r}: {error}", *error.args[1:])
        if self.on_error == "raise":
            raise error
        self.errors[name] = error


def _checked_problems(
    problems: Any, options: dict[str, Any]
) -> tuple[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the names of the problems, and the arguments of `train` for each.

    For anything but pairs, triples and mappings of arguments, raise a `ValueError`.
    """
    if isinstance(problems, Mapping):
        names, problems = tuple(problems), list(problems.values())
    elif isinstance(problems, Sequence) and not isinstance(problems, str | bytes):
        names = tuple(range(len(problems)))
    else:
        raise ValueError(
            f"problems: expected a sequence or a mapping of problems, got {type(problems).__name__}"
        )
    if not names:
        raise ValueError("problems: expected at least one, got none")
    arguments = []
    for name, problem in zip(names, problems, strict=True):
        if isinstance(problem, tuple | list) and len(problem) in (2, 3):
            problem = dict(zip(("X", "y", "weights"), problem, strict=False))
        if not isinstance(problem, Mapping):
            raise ValueError(
                f"problems: expected (X, y), (X, y, weights) or a mapping of arguments of train, "
                f"got {type(problem).__name__} for problem {name!r}"
            )
        arguments_of_train = {**options, **problem}
        if unknown := sorted(set(arguments_of_train) - set(ARGUMENTS)):
            raise ValueError(
                f"problems: expected arguments of train, got {unknown} for problem {name!r}"
            )
        if missing := sorted({"X", "task", "key"} - set(arguments_of_train)):
            raise ValueError(
                f"problems: expected {missing} in every problem or in the options, got none for "
                f"problem {name!r}"
            )
        arguments.append(arguments_of_train)
    return names, arguments


def _mesh(mesh: Mesh | None) -> Mesh | None:
    """Return the devices that share the problems: the caller's, or all accelerators of the process.

    If no mesh is stated, return None on a CPU or for one device. For a mesh of several processes,
    raise a `ValueError`.
    """
    if mesh is None:
        devices = jax.local_devices()
        if on_cpu() or len(devices) == 1:
            return None
        return Mesh(np.array(devices), ("problems",))
    check_mesh(mesh)
    if spans_processes(mesh):
        raise ValueError(
            "mesh: expected devices of one process with train_many, got devices of several; give "
            "each process its own problems"
        )
    return mesh
