"""A deployed model in other formats: NumPy, C, ONNX and StableHLO."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ._files import PathLike, write_bytes
from .conformal import plain_scores
from .export.c import c_header
from .export.stablehlo import FUNCTIONS, stablehlo_bytes
from .plain import plain_expansion
from .predictor import Predictor


class ModelExports:
    """The methods of `Model` that export it. `Model` inherits them, and defines the fields."""

    expansion: Any
    inverse_temperatures: Any
    conformal: Any
    code: Any
    decoding: Any
    labels: Any
    label_dtype: str
    quantiles: tuple[float, ...]
    columns: Any
    about: Any
    dtype: Any

    def to_numpy(self) -> Predictor:
        """Return the model as arrays of NumPy that predict without JAX, see `jsparse.predictor`.

        The predictor has one size: for another size, convert `model.at(size)`.

        Raises:
            ValueError: for a kernel that is not one of this package's, such as a `Custom` kernel,
                which holds a Python function of JAX.
        """
        machine, code = plain_expansion(self.expansion), self.code
        temperatures = self.inverse_temperatures
        return Predictor(
            machine,
            None if temperatures is None else np.asarray(temperatures, float),
            plain_scores(self.conformal, machine),
            None if code is None else np.asarray(code.matrix, float),
            self.decoding,
            self.labels,
            self.label_dtype,
            self.quantiles,
            self.columns,
            dict(self.about),
        )

    def to_c(
        self,
        path: PathLike,
        *,
        prefix: str = "model",
        dtype: Literal["float32", "float64"] | None = None,
        coverage: float | None = None,
    ) -> None:
        """Write the model as one header of C99 that predicts a row, for any C or C++ compiler.

        It has constant arrays and loops, allocates nothing and needs `math.h` alone. Its functions
        take the raw inputs of one row, and give decision values, the number of the class or the
        value, and probabilities if the model has them. A model of a table has a function that
        encodes its columns. With a coverage, a function gives the ends of intervals or the classes
        of the prediction set. The header begins with a description of its functions. They return -1
        for a row with NaN or infinity; a category that training did not see has the number -1.

        Equal models give equal files, byte for byte.

        Args:
            path: the file to write. An existing file is replaced once the new file is complete.
            prefix: begins every name in the header.
            dtype: "float32" for `float`, "float64" for `double`; by default the model's dtype.
            coverage: coverage of the intervals (see `interval`) or prediction sets (see
                `predict_set`); None for a header without them.

        Raises:
            ValueError: for a kernel that is not one of this package's, a prefix that is no name in
                C, or numbers that the dtype does not hold; with a coverage, as `interval`.
            OutputError: if the file cannot be written.
        """
        text = c_header(self.to_numpy(), prefix=prefix, dtype=dtype, coverage=coverage)
        write_bytes(path, text.encode("ascii"))

    def to_stablehlo(self, path: PathLike, function: str = "decision_function") -> None:
        """Write one function of the model to a file that JAX runs without jsparse.

        The file holds a StableHLO program for CPU, CUDA and TPU, for any number of rows. To run it:
        `jax.export.deserialize(bytearray(Path(path).read_bytes())).call(X)`, with `X` in the
        model's dtype; for float64 switch on `jax_enable_x64`. A JAX that is up to 6 months newer,
        or 3 weeks older, than the JAX that wrote the file can run it. A model of a table takes the
        encoded columns, `model.columns.features`. The program does not check inputs: of a row
        with NaN, scores and probabilities are NaN.

        Args:
            path: the file to write. An existing file is replaced once the new file is complete.
            function: "decision_function", "predict_proba", or "predict", whose labels must be
                numbers.

        Raises:
            ValueError: for another function, or a function that the model lacks.
            ImportError: without flatbuffers; `pip install "jsparse[stablehlo]"`.
            OutputError: if the file cannot be written.
        """
        if function not in FUNCTIONS:
            raise ValueError(f"function: expected one of {', '.join(FUNCTIONS)}, got {function!r}")
        columns = self.expansion.prototypes.shape[1]
        write_bytes(path, stablehlo_bytes(getattr(self, function), columns, self.dtype))

    def to_onnx(
        self,
        path: PathLike,
        *,
        outputs: Sequence[str] | Literal["all"] = "all",
        coverage: float | None = None,
    ) -> None:
        """Write the model to an ONNX file, which programs in many languages can run.

        The file holds standard operators (opset 18) in the model's precision, for any number of
        rows. It needs no jsparse, JAX or Python. Its inputs are

        - `X`, shape `n d`, in the model's dtype;
        - for a model of a table, each column by its name, shape `n 1`: numbers in the model's
          dtype, texts, whole numbers and booleans for categories, and dates and times as int64,
          microseconds since 1970 in UTC. The how-to page "Save and deploy" has code that makes
          these inputs from a table. The file describes the contents of each input.

        Its outputs have the names that skl2onnx gives them. A regression has the output `variable`,
        shape `n c`. A classifier has `label`, `scores` (the result of `decision_function`) and, if
        the model has them, `probabilities`. With `coverage`, a regression also has `lower` and
        `upper`, shape `n c`, and a classifier `prediction_set`, booleans for `k` classes, shape
        `n k`.
        Equal models give equal bytes.

        The program cannot raise errors. If a number is NaN or infinite, the row's values, scores
        and probabilities are NaN or infinite, and its label is of no use. A missing number is NaN;
        it is filled in if the model imputes. A missing category is the empty text. The file treats
        it, and a category that training did not see, as the model does.

        Args:
            path: the file to write. An existing file is replaced once the new file is complete.
            outputs: names of the outputs to write, such as `["label"]`; "all" for all. A program
                computes all outputs of its file, whichever are read, so fewer outputs take less
                time.
            coverage: coverage of the intervals (see `interval`) or prediction sets (see
                `predict_set`); None for a file without them.

        Raises:
            ValueError: for a kernel that is not one of this package's, such as a `Custom` kernel;
                for names of outputs that the file would not have; for a `coverage` that `interval`
                or `predict_set` would not accept.
            ImportError: without onnx; `pip install "jsparse[onnx]"`.
            OutputError: if the file cannot be written.
        """
        try:
            from .export.onnx import onnx_bytes
        except ImportError as error:
            raise ImportError("ONNX files need onnx: pip install 'jsparse[onnx]'") from error
        write_bytes(path, onnx_bytes(self.to_numpy(), outputs, coverage))
