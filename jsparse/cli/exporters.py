"""The formats of `jsparse export`: a table, to which a new format adds an entry."""

import argparse
import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .. import predictor
from .._files import OutputError, named, writing
from .._repr import short_repr
from ..model import Model
from .files import check_output


class Exporter(NamedTuple):
    """A format in which a model can be deployed.

    Attributes:
        what: what is written, in words.
        suffix: the end of the file's name; "" for a folder.
        write: writes the model to a path, by the options of the command line.
        takes: names of the options `coverage` and `outputs` that the format takes.
    """

    what: str
    suffix: str
    write: Callable[[Model, str, argparse.Namespace], None]
    takes: tuple[str, ...] = ()

    __repr__ = short_repr


def _to_c(model: Model, path: str, options: argparse.Namespace) -> None:
    check_output(path, options.model)
    model.to_c(path, prefix=options.prefix, coverage=options.coverage)


def _to_jsparse(model: Model, path: str, options: argparse.Namespace) -> None:
    check_output(path, options.model)
    model.save(path)


def _to_numpy(model: Model, path: str, options: argparse.Namespace) -> None:
    """Write a folder that Python imports: the modules of `jsparse.predictor`, and the model."""
    if os.path.exists(path):
        raise OutputError(f"{named(path)}: expected a folder to make, but it exists")
    with writing(path):
        sources = Path(predictor.__file__).parent
        shutil.copytree(sources, path, ignore=shutil.ignore_patterns("__pycache__"))
    one_size = dataclasses.replace(model, path=None)  # as a predictor has
    one_size.save(os.path.join(path, "model.jsparse"))


def _to_onnx(model: Model, path: str, options: argparse.Namespace) -> None:
    check_output(path, options.model)
    outputs = "all" if options.outputs is None else options.outputs
    model.to_onnx(path, outputs=outputs, coverage=options.coverage)


def _to_stablehlo(model: Model, path: str, options: argparse.Namespace) -> None:
    check_output(path, options.model)
    model.to_stablehlo(path, options.function)


EXPORTERS = {
    "c": Exporter("a header of C99 that needs math.h alone", ".h", _to_c, ("coverage",)),
    "jsparse": Exporter(
        "a model file; with --size or --precision another one than MODEL",
        "-exported.jsparse",
        _to_jsparse,
    ),
    "numpy": Exporter(
        "a folder that Python imports, with the model file, which needs NumPy alone", "", _to_numpy
    ),
    "onnx": Exporter(
        "an ONNX file, which onnxruntime runs", ".onnx", _to_onnx, ("coverage", "outputs")
    ),
    "stablehlo": Exporter(
        "a file of one function, which JAX runs without jsparse", ".stablehlo", _to_stablehlo
    ),
}
