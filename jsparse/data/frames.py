"""Tables in memory, of pandas or Arrow, as training and models take them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int, Shaped

from .._arguments import boolean, column_names, on_host, whole_number
from .._repr import short_repr
from ..predictor.checks import TableError, row_index
from ..predictor.schema import Schema
from ..predictor.tables import unsupported_type


@dataclasses.dataclass(frozen=True)
class Frame:
    """A table whose columns are inputs, and how they are to be read.

    Args:
        table: a pandas or Arrow table, another object with Arrow's interface, or a mapping from
            names to columns.
        drop: columns to leave out.
        categorical: columns of numbers that are codes, beside columns of pandas' type "category".
        impute: fill missing inputs in instead of refusing them. Numbers and dates get the median
            of the training rows; missing texts form a category.
        max_categories: upper limit of the number of categories of a column.
        categories: "indicators" for a column of zeros and ones for each category, or "kernel" for a
            kernel that compares the categories of two rows, see `kernels.Mixed`.

    Raises:
        ValueError: for an invalid option, such as one text in place of a sequence of names.
    """

    table: Any
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    impute: bool = False
    max_categories: int = 100
    categories: Literal["indicators", "kernel"] = "indicators"

    def __post_init__(self) -> None:
        if self.categories not in ("indicators", "kernel"):
            raise ValueError(
                f"categories: expected 'indicators' or 'kernel', got {self.categories!r}"
            )
        checked = {
            "drop": column_names("drop", self.drop),
            "categorical": column_names("categorical", self.categorical),
            "impute": boolean("impute", self.impute),
            "max_categories": whole_number("max_categories", self.max_categories, 1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    @property
    def dtype(self) -> np.dtype:
        """float32 if all columns of numbers or dates are float16 or float32, else float64."""
        from .arrow import pa

        schema = _arrow(self.table).schema
        names = [
            name for name in schema.names if name not in (*self.drop, *self._categorical_names)
        ]
        kinds = [schema.field(name).type for name in names]
        kinds = [kind for kind in kinds if pa.types.is_primitive(kind) and kind != pa.bool_()]
        is_float32 = bool(kinds) and all(kind in (pa.float16(), pa.float32()) for kind in kinds)
        return np.dtype("float32" if is_float32 else "float64")

    @property
    def _categorical_names(self) -> list[str]:
        """The names of the columns of categories, whether stated or known from pandas' types."""
        if not _is_pandas(self.table):
            return list(self.categorical)
        types = zip(self.table.columns, self.table.dtypes, strict=True)
        return [*self.categorical, *(str(name) for name, kind in types if kind == "category")]

    def loaded(self) -> "Frame":
        """Return the frame with its table in memory, without the columns of `drop`.

        The new frame's `drop` keeps only the names that the table lacks.
        """
        pandas = _is_pandas(self.table)
        table = self.table if pandas else _arrow(self.table)
        names = list(table.columns) if pandas else table.column_names
        inputs = [name for name in names if str(name) not in self.drop]
        missing = [name for name in self.drop if name not in map(str, names)]
        if len(inputs) < len(names):
            table = table[inputs] if pandas else table.select(inputs)
        return dataclasses.replace(self, table=table, drop=missing)

    __repr__ = short_repr

    def ordered(self, names: Sequence[str]) -> "Frame":
        """Return the frame with the columns `names` first, in this order, as an Arrow table.

        Raises:
            ValueError: if the table lacks columns of `names`; it states which.
        """
        table = _arrow(self.table)
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise ValueError(
                f"X: expected the columns {list(names)}, of which {missing} are missing"
            )
        rest = [name for name in table.column_names if name not in names]
        table = table.select([*names, *rest])
        return dataclasses.replace(self, table=table, categorical=self._categorical_names)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return _arrow(self.table).num_rows

    def arrays(
        self, y: Any, task: str, rows: Int[np.ndarray, " k"] | None = None
    ) -> tuple[Float[np.ndarray, "n d"], Shaped[np.ndarray, " n *c"], Schema]:
        """Return the encoded inputs, the targets, and the schema of the encoding.

        Args:
            y: the name of a column, or the targets of all rows of the table, shape `n *c`.
            task: "classification" or "regression".
            rows: indices of the rows to return, which also decide the encoding; by default all.

        Raises:
            ValueError: naming the column that cannot be encoded, and its row.
        """
        from .arrow import pa
        from .encoding import encode, encode_target, fit_schema

        table = _arrow(self.table)
        if y is None:
            raise ValueError("y: expected the name of a column of the table, or targets")
        is_name = isinstance(y, str)
        target = y if is_name else _free_name(table.column_names)
        if not is_name:
            values = on_host("y", y)
            if len(values) != table.num_rows:
                raise ValueError(
                    f"y: expected {table.num_rows} values, as many as rows of X, got shape "
                    f"{values.shape}"
                )
            column = pa.array(values if values.ndim == 1 else values[:, 0])
            table = table.append_column(target, [column])
        numbers = range(table.num_rows) if rows is None else rows
        if len(numbers) < table.num_rows:
            table = table.take(numbers)

        def name_row(index: int) -> str:
            return row_index(int(numbers[index]))

        schema = fit_schema(
            table,
            target,
            task=task,
            impute=self.impute,
            categorical=self._categorical_names,
            drop=self.drop,
            max_categories=self.max_categories,
            coded=self.categories == "kernel",
            name_row=name_row,
        )
        X = encode(schema, table, name_row=name_row).X
        if is_name:
            return X, encode_target(schema, table, name_row), schema
        return X, np.asarray(y) if rows is None else np.asarray(y)[rows], schema

    def encoded(
        self, y: Any, task: str, rows: Int[np.ndarray, " k"] | None = None
    ) -> "EncodedFrame":
        """Return the table with its inputs encoded as numbers, of the table's `dtype`.

        Arguments and errors are as for `arrays`. Rows that are not in `rows` have inputs of 0.
        """
        X, _, schema = self.arrays(y, task, rows)
        inputs = np.zeros((self.n_rows, X.shape[1]), self.dtype)
        inputs[slice(None) if rows is None else rows] = X
        return EncodedFrame(self.table, inputs=inputs, schema=schema)

    def encode(self, schema: Schema, dtype: str) -> Float[np.ndarray, "n d"]:
        """Return the inputs in `dtype`, encoded by the schema. The columns may have any order.

        Raises:
            ValueError: naming a column that is missing or cannot be encoded.

        Warns:
            UnseenCategoryWarning: naming the categories that training did not see.
        """
        from .encoding import encode

        return encode(schema, _arrow(self.table), dtype=dtype).with_warning()

    def targets(self, schema: Schema, name: str) -> Shaped[np.ndarray, " n"]:
        """Return the column `name` as targets: numbers for regression, class labels otherwise.

        Raises:
            ValueError: if there is no such column, or it does not suit the task of the schema.
        """
        from .encoding import encode_target

        return encode_target(schema._replace(target=name), _arrow(self.table))


@dataclasses.dataclass(frozen=True)
class EncodedFrame(Frame):
    """A table with its encoded inputs, so that several trainings encode it only once.

    Args:
        inputs: the encoded inputs, shape `n d`.
        schema: the encoding.
    """

    inputs: Float[np.ndarray, "n d"] = dataclasses.field(kw_only=True)
    schema: Schema = dataclasses.field(kw_only=True)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.inputs)

    def ordered(self, names: Sequence[str]) -> "EncodedFrame":
        """Return the frame with inputs in float64; their order is the schema's, not `names`."""
        return dataclasses.replace(self, inputs=self.inputs.astype(np.float64))

    def arrays(
        self, y: Any, task: str, rows: Int[np.ndarray, " k"] | None = None
    ) -> tuple[Float[np.ndarray, "n d"], Shaped[np.ndarray, " n *c"], Schema]:
        """Return inputs, targets and schema as `Frame.arrays`; `y` may not be a column's name."""
        selected = slice(None) if rows is None else rows
        return self.inputs[selected], np.asarray(y)[selected], self.schema


def as_frame(X: Any) -> Frame | None:
    """Return a pandas or Arrow table, or a `Frame`, as a `Frame`; None for anything else."""
    if isinstance(X, Frame):
        return X
    if getattr(X, "ndim", 2) != 2:  # a single column or row
        return None
    return Frame(X) if hasattr(X, "__arrow_c_stream__") or _is_pandas(X) else None


def _is_pandas(X: Any) -> bool:
    return type(X).__module__.partition(".")[0] == "pandas" and hasattr(X, "columns")


def _arrow(table: Any) -> Any:
    """Return a pandas table, Arrow table or mapping as `pyarrow.Table`; ValueError for others."""
    try:
        from .arrow import pa
    except ImportError as error:
        raise ImportError("tables need pyarrow: pip install 'jsparse[cli]'") from error
    gives_arrow = any(hasattr(table, f"__arrow_c_{kind}__") for kind in ("stream", "array"))
    if not any((gives_arrow, _is_pandas(table), isinstance(table, Mapping))):
        raise ValueError(
            "table: expected a pandas or Arrow table, or a mapping from names to columns, got "
            f"{type(table).__name__}"
        )
    try:
        if isinstance(table, pa.Table):
            arrow_table = table
        elif _is_pandas(table):
            _check_names([str(name) for name in table.columns])
            arrow_table = pa.Table.from_pandas(table, preserve_index=False)
        else:
            arrow_table = pa.table(table)
    except pa.ArrowNotImplementedError as error:
        raise _unsupported_column(table) from error
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"X: expected columns of one type each ({error})") from error
    _check_names(arrow_table.column_names)
    return arrow_table


def _unsupported_column(table: Any) -> TableError:
    """Return the error that names the first column, of pandas or a mapping, that Arrow lacks."""
    from .arrow import pa

    for name in table:
        try:
            pa.array(table[name], from_pandas=True)
        except pa.ArrowException:
            kind = getattr(table[name], "dtype", "unknown")
            return unsupported_type(
                str(name), kind, "turn it into numbers or texts, or give the table without it"
            )
    return TableError("X: expected columns of numbers, booleans or texts")


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"X: expected columns with distinct names, got {names}")


def _free_name(names: Sequence[str]) -> str:
    name = "target"
    while name in names:
        name += "_"
    return name
