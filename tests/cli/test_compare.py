"""`jsparse compare`: the table of all methods, and the reason for each missing line."""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from jsparse._status import PRECISION_LOST, NumericalError
from jsparse.cli import commands, compare, report
from jsparse.cli.interrupts import Interrupts
from jsparse.cli.main import main
from jsparse.kernels import RBF
from jsparse.machines import METHODS
from jsparse.training.trained import Trained


@pytest.fixture
def methods():
    """Return the registered methods; afterwards restore those that a test removes."""
    every = dict(METHODS)
    yield METHODS
    METHODS.clear()
    METHODS.update(every)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_line_compares_all_methods(tmp_path, capsys, methods, every):
    for name in set() if every else methods.keys() - {"fixed-size", "scdp", "robust"}:
        del methods[name]
    data = load_breast_cancer(as_frame=True)
    path = tmp_path / "cancer.csv"
    data.frame[::2].to_csv(path, index=False)
    options = ["--target", "target", "--quiet", "--evaluations", "1", "--max-prototypes", "8"]
    assert main(["compare", str(path), *options, "--out", str(tmp_path / "figures")]) == 0
    printed = capsys.readouterr().out
    well = ("fixed-size LS-SVM", "SCDP", "SVM (scikit-learn)")
    for method in (*well, "LS-SVM", "sparse SVM") if every else well:
        line = next(line for line in printed.splitlines() if line.startswith(method))
        assert float(line[24:].split()[0]) < 0.12
    constant = next(line for line in printed.splitlines() if line.startswith("constant"))
    assert float(constant.split()[1]) > 0.25
    assert "without robust machine: it is for outliers among numbers" in printed
    lines = [line.removeprefix("without ") for line in printed.splitlines()]
    for method in METHODS.values():  # a line of results, or a line that says why there is none
        assert sum(line.startswith((method.title + " ", method.title + ":")) for line in lines) == 1
    for name in ("compare.png", "compare.svg"):
        assert (tmp_path / "figures" / name).stat().st_size > 1000
    assert main(["compare", str(path), "--target", "target", "--test", "1.5"]) == 2


def given(X, y, classification, rows=80):
    """Return a comparison that trains on the first rows and tests on the others."""
    parts = (X[:rows], y[:rows], X[rows:], y[rows:])
    return compare._Task(*parts, classification, None, None, 0)


def run(X, y, folder, task="classification", **options):
    settings = {"max_prototypes": None, "max_evaluations": None, "seed": 0, "quiet": True}
    settings |= {"test": 1 / 3, "folder": folder, "interrupts": Interrupts(owns_process=False)}
    return compare.run(X, y, task, **(settings | options))


class Stub(Trained):
    """A result that predicts zero, without any training."""

    def __init__(self, status=1, stopped="finished"):
        vars(self).update(fit_status=status, model=SimpleNamespace(size=1), kernel=RBF(1.0))
        vars(self).update(tuning=SimpleNamespace(stopped=stopped))

    @property
    def statuses(self):
        return {"fit": self.fit_status}

    def predict(self, X):
        return np.zeros(len(X))


def test_no_work_is_done_for_figures_that_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "train", None)
    X, y = np.zeros((9, 1)), np.arange(9.0)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        run(X, y, tmp_path / "file", "regression")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="figures need matplotlib: pip install"):
        run(X, y, tmp_path, "regression")


def test_every_class_is_trained_on():
    y = np.array(["common"] * 50 + ["rare"] * 2 + ["single"] + ["third"] * 37)
    for seed in range(10):
        for test in (0.1, 1 / 3, 0.8):
            rows, out = compare._split(y, test, True, seed)
            assert sorted([*rows, *out]) == list(range(90))
            assert len(out) == round(test * 90)
            assert set(y[rows]) == set(y)
            assert abs(np.sum(y[out] == "common") - 50 * test) <= 2
    with pytest.raises(ValueError, match="--test: expected rows of all 4 classes"):
        compare._split(y[48:54], 0.5, True, 0)


def test_the_peer_takes_targets_of_any_scale_and_classes_of_few_rows():
    X = np.random.default_rng(0).standard_normal((120, 2))
    path = Stub()
    y = np.sin(2 * X[:, 0])
    big, small = (compare._svm(given(X, s * y, False), path) for s in (1.0, 1e-3))
    assert small.prototypes == big.prototypes
    np.testing.assert_allclose(small.error, 1e-6 * big.error, rtol=1e-3)
    labels = np.array([f"c{i % 20}" for i in range(120)])
    assert compare._svm(given(X, labels, True, 60), path).prototypes > 0
    labels[0] = "alone"
    assert "a class has one row" in compare._reason_against_svm(given(X, labels, True, 60))
    assert compare._svm(given(X, y, False), None).prototypes > 0


def table(folder, text=None):
    path = folder / "t.csv"
    path.write_text(text or "a,t\n" + "\n".join(f"{i},{i / 7}" for i in range(30)))
    return path


@pytest.fixture
def stubs(cache_folder, monkeypatch):
    """Replace training by stubs; `stubs[name]` is the function that a method calls instead."""
    of_method = {}

    def train(*data, method, progress, **options):
        act = of_method.get(method.name, lambda **_: Stub())
        return act(progress=progress, **options)

    monkeypatch.setattr(compare, "train", train)
    monkeypatch.setattr(compare, "_figure", lambda *_: None)
    return of_method


def compared(folder, *options):
    path = str(folder / "t.csv")
    return main(["compare", path, "--target", "t", "--out", str(folder), *options])


def test_methods_are_named_run_in_order_and_refused_if_unknown(tmp_path, stubs, capsys):
    table(tmp_path)
    assert compared(tmp_path, "--methods", "dual,fixed-size") == 0
    out, err = capsys.readouterr()
    names = [line[:24].strip() for line in out.splitlines()[3:6]]
    assert names == ["fixed-size LS-SVM", "LS-SVM", "constant"]
    assert "without" not in out
    assert [line for line in err.splitlines() if "training" in line] == [
        "jsparse: training 1 of 2: fixed-size LS-SVM",
        "jsparse: training 2 of 2: LS-SVM",
    ]
    assert compared(tmp_path, "--methods", "dual,lasso") == 2
    printed = capsys.readouterr().err
    assert "argument --methods: expected some of fixed-size, scdp, dual" in printed
    assert "got 'lasso'; " in printed
    assert compared(tmp_path, "--methods", "spsvm") == 2
    assert "--methods: expected one that suits the rows; spsvm: it is for classification" in (
        capsys.readouterr().err
    )


def test_a_line_not_to_be_trusted_is_marked_and_gives_the_exit_code(
    tmp_path, stubs, capsys, monkeypatch
):
    table(tmp_path)
    monkeypatch.setattr(compare, "_reason_against_svm", lambda data: "of its ways")
    stubs["scdp"] = lambda **_: Stub(PRECISION_LOST)
    assert compared(tmp_path, "--quiet") == 3
    printed = capsys.readouterr().out.splitlines()
    assert next(line for line in printed if line.startswith("SCDP")).endswith(" *")
    for name in ("constant", "fixed-size LS-SVM", "LS-SVM", "robust machine"):
        assert not next(line for line in printed if line.startswith(name)).endswith("*")
    assert "without sparse SVM: it is for classification" in printed
    assert any(line.startswith("*: the result is not determined") for line in printed)
    assert "without SVM (scikit-learn): of its ways" in printed
    del stubs["scdp"]
    assert compared(tmp_path, "--quiet") == 0
    assert "*" not in capsys.readouterr().out


def test_a_line_is_out_before_the_next_method_begins(tmp_path, stubs, capsys):
    table(tmp_path)
    seen = []

    def act(**_):
        seen.append(capsys.readouterr().out)
        return Stub()

    stubs.update({"fixed-size": act, "scdp": act, "dual": act})
    assert compared(tmp_path, "--methods", "fixed-size,scdp,dual", "--quiet") == 0
    assert seen[0].splitlines()[-1].startswith("method")
    assert seen[1].startswith("fixed-size LS-SVM ")
    assert seen[2].startswith("SCDP ")


def test_a_method_that_is_out_of_time_is_marked_and_one_that_fails_is_named(
    tmp_path, stubs, capsys
):
    table(tmp_path)

    def fails(**_):
        raise NumericalError("no kernel gave an error that can be trusted")

    limits = []

    def late(resources, **_):
        limits.append(resources.max_seconds)
        return Stub(stopped="seconds")

    stubs.update({"fixed-size": late, "scdp": fails})
    options = ("--methods", "fixed-size,scdp,dual", "--quiet", "--max-seconds", "5")
    assert compared(tmp_path, *options) == 3
    printed = capsys.readouterr().out.splitlines()
    assert limits == [5.0]
    assert next(line for line in printed if line.startswith("fixed-size")).endswith(" +")
    assert "+: tuning stopped after 5 s (--max-seconds), best result so far" in printed
    assert "without SCDP: failed: no kernel gave an error that can be trusted" in printed
    assert any(line.startswith("LS-SVM ") for line in printed)
    stubs["dual"] = stubs["fixed-size"] = fails
    assert compared(tmp_path, *options) == 1
    printed = capsys.readouterr().err
    assert printed == "jsparse: error: no kernel gave an error that can be trusted\n"


def test_every_method_is_limited_or_marked(tmp_path, stubs, monkeypatch, capsys):
    table(tmp_path)
    methods = {}

    def train(*data, method, **_):
        stub = Stub()
        stub.model.size = 30 if method.name == "dual" else 4
        methods[method.name] = method
        return stub

    monkeypatch.setattr(compare, "train", train)
    options = ("--methods", "fixed-size,scdp,dual,rvm,sparse-ridge", "--quiet")
    assert compared(tmp_path, *options, "--max-prototypes", "4") == 0
    printed = capsys.readouterr().out.splitlines()
    for name in ("fixed-size", "sparse-ridge"):
        assert methods[name].n_prototypes == 4
    for name in ("scdp", "rvm"):
        assert methods[name] == METHODS[name](max_prototypes=4)
    assert methods["dual"] == METHODS["dual"]()
    marked = [line for line in printed if line.endswith(" >")]
    assert [line[:24].strip() for line in marked] == ["LS-SVM"]
    assert any(line.startswith(">: more prototypes than --max-prototypes") for line in printed)
    assert compared(tmp_path, *options) == 0
    assert ">" not in capsys.readouterr().out


@pytest.mark.parametrize("moment", ["tuning", "fit", "first"])
def test_ctrl_c_keeps_the_finished_lines(tmp_path, stubs, capsys, moment, monkeypatch):
    table(tmp_path)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs in the background
    figures = []
    monkeypatch.setattr(compare, "_figure", lambda *arguments: figures.append(arguments))

    def interrupted(progress, **_):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            if moment != "tuning":
                raise
        return Stub(stopped="interrupted")  # as the search does

    stubs["fixed-size" if moment == "first" else "scdp"] = interrupted
    code = compared(tmp_path, "--methods", "fixed-size,scdp,dual", "--quiet")
    out, err = capsys.readouterr()
    printed = out.splitlines()
    if moment == "first":
        assert (code, figures) == (130, [])
        assert "interrupted before there was a result" in err
        return
    assert (code, err, len(figures)) == (0, "", 1)
    assert any(line.startswith("fixed-size LS-SVM ") for line in printed)
    assert any(line.startswith("constant ") for line in printed)
    assert "without LS-SVM: interrupted" in printed
    if moment == "tuning":
        assert next(line for line in printed if line.startswith("SCDP")).endswith(" +")
        assert "+: tuning was interrupted, best result so far" in printed
    else:
        assert "without SCDP: interrupted" in printed


@pytest.mark.slow
def test_lines_come_one_by_one_through_a_pipe(tmp_path):
    path, figure = table(tmp_path), tmp_path / "compare.svg"
    options = ["--target", "t", "--evaluations", "1", "--methods", "fixed-size,dual", "--quiet"]
    command = [sys.executable, "-m", "jsparse", "compare", str(path), *options]
    known = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command += ["--out", str(tmp_path)]
    with subprocess.Popen(command, env=known, stdout=subprocess.PIPE, text=True) as process:
        first = next(line for line in process.stdout if line.startswith("fixed-size LS-SVM"))
        assert process.poll() is None  # the comparison goes on
        assert not figure.exists()
        rest = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert [line.split("  ")[0] for line in (first, *rest[:2])] == [
        *("fixed-size LS-SVM", "LS-SVM", "constant"),
    ]
    assert figure.exists()


# The options of a table


def sections(command, capsys):
    """Return the lines of a command's help, by the title of their section."""
    assert main([command, "--help"]) == 0
    parts, title = {}, ""
    for line in capsys.readouterr().out.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            title = line
        else:
            parts.setdefault(title, []).append(line)
    return parts


def options_of(command, capsys):
    return {
        name
        for lines in sections(command, capsys).values()
        for line in lines
        if line.startswith("  -")
        for name in re.findall(r"--[a-z-]+", re.split(r"\s{2,}", line.strip())[0])
    }


def test_fit_and_compare_take_the_same_options_of_the_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    fit, comparison = (sections(command, capsys)["table:"] for command in ("fit", "compare"))
    assert fit == comparison
    assert sum(line.startswith("  --") for line in fit) == 10


MIXED = (
    "a,b,code,town,t\n,2.5,1,Ghent,1.5\n2,?,2,Leuven,2.5\n3,1,3,Ghent,1\n"
    + "\n".join(f"{i},{i % 5},{i % 3 + 1},{('Ghent', 'Leuven')[i % 2]},{i % 7}" for i in range(9))
)  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--categorical", "code"),
        ("--drop", "a", "town"),
        ("--categories", "kernel"),
        ("--task", "classification"),
    ],
)
def test_fit_and_compare_read_the_same_rows(tmp_path, cache_folder, monkeypatch, more):
    """Both commands read the options of the table alike."""
    path = table(tmp_path, MIXED)
    seen = []

    class Enough(Exception):
        pass

    def train(options, frame, y, task, checkpoint):
        seen.append((frame.inputs, y, task, frame.schema.codes))
        raise Enough

    def run(X, y, task, *, codes, **_):
        seen.append((X, y, task, codes))
        raise Enough

    monkeypatch.setattr(commands, "_train", train)
    monkeypatch.setattr(compare, "run", run)
    for command in ("fit", "compare"):
        arguments = [command, str(path), "--target", "t", "--impute", "--missing", "?", *more]
        with pytest.raises(Enough):
            main([*arguments, "--out", str(tmp_path / command)])
    (X, y, *rest), (X_compared, y_compared, *rest_compared) = seen
    np.testing.assert_array_equal(X, X_compared)
    np.testing.assert_array_equal(y, y_compared)
    assert rest == rest_compared


def test_what_is_advised_is_taken(tmp_path, cache_folder, capsys):
    """A command that refuses missing values names an option of this command."""
    path = table(tmp_path, MIXED)
    arguments = [str(path), "--target", "t", "--out", str(tmp_path / "out")]
    for command in ("fit", "compare"):
        assert main([command, *arguments, "--missing", "?"]) == 2
        assert f"jsparse {command} --impute" in capsys.readouterr().err


# Who may print the messages of a module: of the data's what `fit` and `compare` share, as both read
# tables; a message that names a command is about that one.
PRINTED_BY = {
    "data": ("fit", "compare"),
    "data/table_streams.py": ("fit",),
    "cli/compare.py": ("compare",),
    "cli/comparison.py": ("compare",),
    "cli/predict.py": ("predict",),
    "cli/files.py": ("fit", "predict"),
    "machines": ("fit",),
}


OPTION = re.compile(r"(?:jsparse (\w+) )?(?<!\S)\(?(--[a-z][a-z_-]+)")


def test_every_option_that_a_message_names_exists_where_it_is_read(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    known = {
        name: options_of(name, capsys) for name in ("demo", "fit", "compare", "predict", "export")
    }
    root, seen = Path(commands.__file__).parents[1], 0
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            for command, name in OPTION.findall(node.value):
                if name == "--version" or name.startswith("--xla"):  # of the program, of XLA
                    continue
                printed = PRINTED_BY.get(place, PRINTED_BY.get(place.split("/")[0]))
                readers = (command,) if command else printed
                if readers is None:  # of the commands' own: one of them
                    assert any(name in options for options in known.values()), (place, name)
                else:
                    assert all(name in known[reader] for reader in readers), (place, name)
                seen += 1
    assert seen > 20


def test_what_takes_long_says_how_far_it_is(monkeypatch, capsys):
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr(report.time, "perf_counter", lambda: next(clock))
    with report.progress(quiet=False) as show:
        for completed in range(1, 7):
            show(completed, 6, 0.25)
    printed = capsys.readouterr().err.splitlines()
    assert 2 <= len(printed) < 7
    assert printed[0] == "jsparse: training"  # at once
    assert printed[1].startswith("jsparse: tuning: ")
    assert "of 6 evaluations, best CV score 0.25, " in printed[1]


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_the_progress_in_one_line(monkeypatch, capsys, width):
    for name, value in (("COLUMNS", str(width)), ("FORCE_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    longest = max((method.title for method in METHODS.values()), key=len)
    with report.progress(quiet=False, method=f"15 of 16: {longest}") as show:
        show(100, 160, 1.234e-5)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    lines = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert all(len(line) <= width for line in lines)
    last = next(line for line in reversed(lines) if "100/160" in line)
    assert last.startswith("15 of 16: sparse")
    assert "CV score 1.234e-05 0:00:00" in last


def test_the_report_continues_below_its_values_in_a_terminal(monkeypatch, capsys):
    words = "complete: all the atoms, prototypes, steps or evaluations that were asked for."
    report.line("status", words)
    assert capsys.readouterr().out == f"status          {words}\n"  # one line for programs
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    report.line("status", words)
    assert capsys.readouterr().out.splitlines() == [
        "status          complete: all the atoms, prototypes, steps",
        "                or evaluations that were asked for.",
    ]


def test_an_error_of_the_arguments_is_one_line(capsys):
    assert main(["fit", "rows.csv", "--target", "y", "--folds", "1"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert message.startswith("jsparse fit: error: argument --folds: expected a whole number")
    assert "jsparse fit --help lists the options" in message
