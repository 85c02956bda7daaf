"""Dry runs: other threads compile the programs of a run, and change nothing else."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse import _dry_run
from jsparse._dry_run import dry_run
from jsparse._programs import compiled

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """Return a function that sets the number of cores that dry runs expect; at first two."""

    def use(count):
        monkeypatch.setattr(_dry_run, "usable_cores", lambda: count)

    use(2)
    return use


class Compilations:
    """Counts compilations by whether this thread makes them, until the block ends."""

    def __enter__(self):
        self.here = self.elsewhere = 0
        self._thread = threading.get_ident()
        jax.monitoring.register_event_duration_secs_listener(self._count)
        return self

    def __exit__(self, *_):
        for thread in threading.enumerate():
            if thread.name.startswith("jsparse-"):
                thread.join()
        jax.monitoring.unregister_event_duration_listener(self._count)

    def _count(self, event, duration_secs, **_):
        if event == COMPILED:
            self.here += threading.get_ident() == self._thread
            self.elsewhere += threading.get_ident() != self._thread

    @property
    def total(self):
        return self.here + self.elsewhere


def programs():
    """Return two new programs, the second of which takes the result of the first."""
    first = compiled(lambda x: jnp.cumsum(jnp.sin(x)))
    second = compiled(lambda x: jnp.sort(x)[:2] + 1)
    return first, second


def test_other_threads_compile_each_program_once():
    first, second = programs()
    foreseen = threading.Event()

    def computation():
        result = second(first(np.ones(7, np.float32)))
        foreseen.set()
        return result

    with Compilations() as count, dry_run(computation):
        foreseen.wait(60)
        result = second(first(np.arange(7, dtype=np.float32)))
    np.testing.assert_allclose(
        result, np.sort(np.cumsum(np.sin(np.arange(7.0))))[:2] + 1, rtol=1e-5
    )
    assert (count.here, count.elsewhere) == (0, 2)


def test_the_run_does_not_wait_for_programs_that_it_does_not_use():
    """Nor does an error of the dry run, or a program that it did not foresee, change the result."""
    first, second = programs()
    foreseen = threading.Event()

    def computation():
        first(np.ones(3, np.float32))
        foreseen.set()
        raise RuntimeError("on placeholders")

    with Compilations() as count, dry_run(computation):
        foreseen.wait(60)
        result = second(np.arange(5.0, 0.0, -1.0, dtype=np.float32))
    assert result.tolist() == [2.0, 3.0]
    assert (count.here, count.elsewhere) == (1, 1)


def test_results_in_a_dry_run_have_the_shapes_and_dtypes_of_the_real_ones():
    results = {
        "float": jnp.arange(3.0),
        "int": jnp.arange(6, dtype=jnp.int32).reshape(2, 3),
        "bool": jnp.array([True]),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(3), 2),
    }
    program, seen = compiled(lambda x: jax.tree.map(lambda a: a, results) | {"x": x}), []
    with dry_run(lambda: seen.append(program(np.ones(2, np.float32)))):
        real = program(np.zeros(2, np.float32))
        while not seen:
            pass
    placeholder = seen[0]
    assert jax.tree.structure(placeholder) == jax.tree.structure(real)
    for name, value in real.items():
        assert (placeholder[name].shape, placeholder[name].dtype) == (value.shape, value.dtype)
    assert placeholder["float"].tolist() == [1, 1, 1]
    assert not placeholder["int"].any()


def test_a_dry_run_ends_if_its_first_programs_are_compiled_already():
    first, second = programs()
    shapes, calls = (3, 4, 5), []
    with dry_run(lambda: None):
        for n in shapes:
            first(np.ones(n, np.float32))

    def computation():
        for n in shapes:
            calls.append(n)
            first(np.ones(n, np.float32))
        calls.append("second")
        second(np.ones(4, np.float32))

    with Compilations() as count, dry_run(computation):
        pass
    assert "second" not in calls
    assert count.total == 0


def test_with_one_core_or_within_a_dry_run_there_is_none(cores):
    def never():
        raise AssertionError("called")

    threads = threading.active_count()
    with dry_run(lambda: None), dry_run(never):
        pass
    cores(1)
    with dry_run(never):
        assert threading.active_count() <= threads + 1


def test_settings_of_jax_hold_in_the_dry_run():
    seen, finished = [], threading.Event()

    def computation():
        seen.append(jnp.zeros(()).dtype.name)
        finished.set()

    with jax.enable_x64(True), dry_run(computation):
        finished.wait(60)
    with jax.default_matmul_precision("float32"), dry_run(lambda: seen.append("other settings")):
        pass
    assert seen == ["float64"]


METHODS = {
    "fixed-size": (jsparse.FixedSize(6), "regression"),
    "dual": (jsparse.Dual(), "classification"),
    "scdp": (jsparse.SCDP(max_prototypes=5, candidates=20, stopping=None), "regression"),
    "kbp": (jsparse.KBP(max_prototypes=4, candidates=20), "regression"),
    "spsvm": (jsparse.SpSVM(max_prototypes=4, candidates=20), "classification"),
    "robust": (jsparse.Robust(6, loss="huber"), "regression"),
    "slmc": (jsparse.SLMC(3, starts=1, max_iterations=3), "classification"),
}
FAST = ("fixed-size", "dual")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in METHODS]
)
def test_training_compiles_the_same_programs_and_gives_the_same_model(name, cores):
    """The dry run compiles at most one program more; progress is reported once, and no warning."""
    method, task = METHODS[name]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    score = X[:, 0] + X[:, 1] ** 2 + 0.1 * rng.standard_normal(120)
    y = score if task == "regression" else score > 1

    def train(n):
        reports = []
        with Compilations() as count:
            trained = jsparse.train(
                X[:n], y[:n], task=task, method=method, key=1, folds=4,
                search=jsparse.Profile(max_evaluations=3),
                progress=lambda *report: reports.append(report),
            )  # fmt: skip
        return trained, reports, count

    cores(1)
    train(60)  # programs that do not depend on the number of rows
    without = train(90)[2]
    cores(2)
    ahead, reports, with_dry_run = train(120)
    cores(1)
    alone, reports_alone, again = train(120)
    # A branch on placeholders may need a program that the run does not.
    assert with_dry_run.total <= without.here + 1
    assert with_dry_run.elsewhere > 0
    assert again.total == 0
    assert reports == reports_alone
    np.testing.assert_array_equal(ahead.out_of_fold, alone.out_of_fold)
    for machine in (ahead, alone):
        assert np.isfinite(machine.model.expansion.coefficients).all()
    np.testing.assert_array_equal(
        ahead.model.expansion.coefficients, alone.model.expansion.coefficients
    )
