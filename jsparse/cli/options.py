"""The options of the command line."""

import argparse
import dataclasses
import math
from typing import Any, NoReturn, get_args

from .. import __version__
from ..data.demo import DEMO_SETS
from ..export.stablehlo import FUNCTIONS
from ..machines import METHODS
from ..machines.method import Method
from ..training.budget import Budget, Serving
from ..training.presets import Preset
from . import types
from .exporters import EXPORTERS


class _Parser(argparse.ArgumentParser):
    """A parser that does not print its forty options before an error."""

    def error(self, message: str) -> NoReturn:
        """Print an error and exit."""
        self.exit(2, f"{self.prog}: error: {message}; {self.prog} --help lists the options\n")


def command_line() -> argparse.ArgumentParser:
    """Return the parser, which stores the name of the command as `command`."""
    parser = _Parser(
        prog="jsparse", description="Sparse kernel machines: fixed-size LS-SVM on tables of data."
    )
    parser.add_argument("--version", action="version", version=f"jsparse {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )

    demo = commands.add_parser("demo", help="train and test a model on bundled real data")
    demo.add_argument("--set", default=DEMO_SETS[0], choices=DEMO_SETS, dest="name")
    _training_options(demo)

    fit = commands.add_parser("fit", help="train a model on a CSV or Parquet file")
    _table_options(fit)
    fit.add_argument(
        "--out",
        default="model.jsparse",
        metavar="MODEL",
        help="file to write, default: model.jsparse; a file there is replaced. The prototypes are "
        "rows of FILE with most methods",
    )
    fit.add_argument(
        "--stream",
        action="store_true",
        help="read the rows in batches, several times: for files larger than memory and folders of "
        "Parquet files",
    )
    fit.add_argument(
        "--holdout",
        type=types.share,
        metavar="SHARE",
        help="with --stream: validate on this share of the rows instead of by folds",
    )
    fit.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="keep the state of the training in this file; the same command, given again after a "
        "kill, resumes from it. It is removed once the model is saved",
    )
    fit.add_argument(
        "--fold-machines",
        action="store_true",
        help="keep the machines of the folds in the model, for intervals and sets by CV+",
    )
    _training_options(fit)

    compare = commands.add_parser("compare", help="all methods on one CSV or Parquet file")
    _table_options(compare)
    compare.add_argument(
        "--methods",
        type=types.methods,
        metavar="NAME,NAME",
        help=f"some of {', '.join(types.comparable())} (scikit-learn's); default: all",
    )
    compare.add_argument(
        "--test", type=types.share, default=1 / 3, metavar="SHARE", help="of the rows, to test on"
    )
    compare.add_argument(
        "--max-prototypes",
        type=types.count,
        metavar="K",
        help="largest number of prototypes of each method; the mark '>' shows a line with more",
    )
    compare.add_argument("--out", default=".", metavar="FOLDER", help="for compare.png and .svg")
    _run_options(compare, "default: 10")

    predict = commands.add_parser("predict", help="apply a model to a CSV or Parquet file")
    predict.add_argument("model", metavar="MODEL")
    predict.add_argument("file", metavar="FILE")
    predict.add_argument("--out", metavar="FILE", help="CSV file to write; default: to the screen")
    predict.add_argument(
        "--proba", action="store_true", help="write the probability of every class too"
    )
    predict.add_argument(
        "--interval",
        type=types.share,
        metavar="COVERAGE",
        help="write the ends of prediction intervals that hold this share of new targets, such as "
        "0.9; for classes, write which classes are in the prediction set",
    )
    predict.add_argument(
        "--stream",
        action="store_true",
        help="read and write the rows in batches: for files larger than memory and folders of "
        "Parquet files",
    )
    predict.add_argument("--precision", choices=["float32", "float64"], default="float64")
    _export_options(commands.add_parser("export", help="write a model for other programs"))
    return parser


def _export_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `jsparse export`."""
    add = parser.add_argument
    add("model", metavar="MODEL")
    formats = "; ".join(f"{name}: {exporter.what}" for name, exporter in EXPORTERS.items())
    add("--to", required=True, choices=list(EXPORTERS), help=formats)
    add("--out", metavar="PATH", help="what to write; default: MODEL with the format's suffix")
    add("--size", type=types.count, metavar="M", help="export the machine of M prototypes alone")
    add("--prefix", default="model", metavar="NAME", help="beginning of names in C; default: model")
    add("--function", choices=FUNCTIONS, default=FUNCTIONS[0], help="what to export to StableHLO")
    add(
        "--coverage",
        type=types.share,
        metavar="COVERAGE",
        help="in C and ONNX: also write prediction intervals (prediction sets for classes) that "
        "hold this share of new targets, such as 0.9",
    )
    add(
        "--outputs",
        type=lambda text: text.split(","),
        metavar="NAME,NAME",
        help="outputs of the ONNX file, such as label; default: all",
    )
    add(
        "--precision",
        choices=["float32", "float64"],
        help="convert the model's numbers; default: keep their precision",
    )


def _table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the file and its columns."""
    add = parser.add_argument_group("table").add_argument
    add("file", metavar="FILE", help="CSV or Parquet file with a header")
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    add("--task", choices=["classification", "regression"], help="default: inferred")
    add("--impute", action="store_true", help="fill missing inputs in")
    add("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")
    add("--categorical", nargs="+", default=[], metavar="COLUMN", help="numbers that are codes")
    add("--missing", nargs="+", default=[], metavar="TEXT", help="CSV cells that mean missing")
    add("--decimal", choices=[".", ","], default=".", help="decimal mark of CSV cells; default: .")
    add("--delimiter", metavar="MARK", help="between CSV cells; default: , or the header's ; tab |")
    add(
        "--categories",
        choices=["indicators", "kernel"],
        default="indicators",
        help="a column for each category, or a kernel that compares them column by column",
    )
    add("--max-categories", type=types.count, default=100, metavar="N", help="default: 100")


def _run_options(parser: argparse.ArgumentParser, evaluations: str) -> None:
    """Add the options that limit a run; `evaluations` says the default of --evaluations."""
    add = parser.add_argument
    add(
        "--evaluations",
        type=types.count,
        metavar="N",
        help=f"kernels tried; {evaluations}. It limits the first stage of methods that are tuned "
        "in stages: robust, spsvm and rvm then try up to 20 pairs of kernel and C, which the "
        "report counts too",
    )
    add(
        "--max-seconds",
        "--seconds",
        dest="seconds",
        type=types.seconds,
        default=math.inf,
        help="stop tuning (compare: of each method) after this long, and keep the best result: no "
        "evaluation starts later, the one that runs and the final fit are completed",
    )
    add("--seed", type=types.seed, default=0)
    add("--precision", choices=["float32", "float64"], default="float64")
    add("--quiet", action="store_true", help="no progress bar")


def _training_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of training, which `demo` and `fit` share."""
    add = parser.add_argument
    add("--method", choices=list(METHODS), help="default: what --preset chooses")
    add(
        "--preset",
        choices=list(get_args(Preset)),
        help="how much time the choice of what is not stated may take (default: balanced; with "
        "--method the settings of the papers)",
    )
    notes = {"n_prototypes": "without --method one number M: distil the machine to at most M; "}
    for name, (field, methods) in method_options().items():
        option = field.metadata["option"]
        add(
            flag(name),
            dest=name,
            type=types.KINDS[option["kind"]],
            choices=option["choices"],
            metavar=option["metavar"],
            help=f"{notes.get(name, '')}with --method {', '.join(methods)}: {option['help']}",
        )
    add(
        "--kernel",
        type=types.kernel,
        metavar="NAME",
        help=f"{', '.join(types.KERNEL_NAMES)} (default: rbf with --method, else auto); several, "
        "as in rbf,laplacian, for prototypes of each with --method ksp, kmp or kbp",
    )
    codes = ["one-versus-rest", "one-versus-one", "minimum-output"]
    add("--multiclass", choices=codes, default=codes[0], help="more than two classes as problems")
    add("--balanced", action="store_true", help="give all classes equal weight")
    add("--folds", type=types.folds, metavar="V", help="default: 5 or 10, by the method")
    searches = ["profile", "annealing", "gradient", "recursive", "auto"]
    add("--search", choices=searches, help="default: profile with --method, else by the preset")
    add(
        "--columns",
        choices=["standard", "ranks", "auto"],
        help="scale columns to variance 1, or to normal scores of their ranks, for heavy tails "
        "(default: standard with --method, else auto)",
    )
    add(
        "--rank",
        type=types.count,
        metavar="R",
        help="with --search gradient or recursive: a linear metric of R directions of all columns, "
        "in place of a lengthscale for each column",
    )
    add("--max-bytes", type=types.count, metavar="N", help="limit of the model file, in bytes")
    add(
        "--max-latency",
        type=types.positive_seconds,
        metavar="S",
        help="limit of the seconds in which --serving predicts one row on this machine",
    )
    add("--serving", choices=list(get_args(Serving)), default="numpy", help="default: numpy")
    add(
        "--devices",
        type=types.devices,
        metavar="N",
        help="share the rows among N devices, or 'all'",
    )
    _run_options(parser, "default: 10 (profile), 160 (annealing), 60 (gradient), 25 (recursive)")


def method_options() -> dict[str, tuple[dataclasses.Field[Any], list[str]]]:
    """Return by name each method setting that is an option: its field, and the methods with it."""
    options: dict[str, tuple[dataclasses.Field[Any], list[str]]] = {}
    for name, method in METHODS.items():
        for field in dataclasses.fields(method):
            if "option" in field.metadata:
                options.setdefault(field.name, (field, []))[1].append(name)
    return options


def flag(name: str) -> str:
    """Return the option of a setting: --prototypes for `n_prototypes`."""
    return "--" + name.removeprefix("n_").replace("_", "-")


def method_of(options: argparse.Namespace) -> Method | None:
    """Return the method that the options state; None for the choice of the preset.

    Raises:
        ValueError: for an option that belongs to another method, or a --size-tolerance if there
            are no sizes to choose from.
    """
    settings, of_method = {}, method_options()
    for name, (_, methods) in of_method.items():
        value = getattr(options, name)
        if value is None:
            continue
        distilled = options.method is None and name == "n_prototypes" and isinstance(value, int)
        if options.method not in methods and not distilled:
            numbers, hint = "", ""
            if name == "n_prototypes":
                numbers = "one number, or several "
                if options.method is None:
                    hint = "; one number keeps machines of all smaller sizes, for export --size"
                elif options.method in of_method["max_prototypes"][1]:
                    hint = f"; {options.method} takes --max-prototypes"
            raise ValueError(
                f"{flag(name)}: expected {numbers}together with --method {' or '.join(methods)}"
                f"{hint}"
            )
        settings[name] = value
    if options.method is None:
        return None
    kind = METHODS[options.method]
    several = isinstance(settings.get("n_prototypes"), list | str)
    # A tolerance chooses among stated sizes, the sizes of a path, or the sizes that `C` leads to.
    if "size_tolerance" in settings and not (several or kind.several_sizes or kind.shares_C):
        raise ValueError(
            "--size-tolerance: expected together with several --prototypes or with a --method "
            "of several sizes"
        )
    return kind(**settings)


def budget_of(options: argparse.Namespace) -> Budget | None:
    """Return the budget that the options state; None without a limit."""
    if options.max_bytes is None and options.max_latency is None:
        return None
    return Budget(options.max_bytes, options.max_latency, options.serving)
