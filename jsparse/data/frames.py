"""Tables in memory, of pandas or Arrow, as training and models take them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Shaped

from .._repr import short_repr
from .schema import Schema


@dataclasses.dataclass(frozen=True)
class Frame:
    """A table whose columns are inputs, and how they are to be read.

    Args:
        table: a pandas or Arrow table, or anything that hands Arrow data over.
        drop: columns to leave out.
        categorical: columns of numbers that are codes.
        impute: fill missing inputs in rather than refuse them.
        max_categories: most categories a column may have.
        categories: "indicators", a column for each category, or "kernel", which compares those of
            two rows, column by column, see `kernels.Mixed`.
    """

    table: Any
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    impute: bool = False
    max_categories: int = 100
    categories: Literal["indicators", "kernel"] = "indicators"

    __repr__ = short_repr

    def ordered(self, names: Sequence[str]) -> "Frame":
        """The same table with these columns first.

        Raises:
            ValueError: naming columns that it lacks.
        """
        table = _arrow(self.table)
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise ValueError(
                f"X: expected the columns {list(names)}, of which {missing} are missing"
            )
        rest = [name for name in table.column_names if name not in names]
        return dataclasses.replace(self, table=table.select([*names, *rest]))

    def arrays(
        self, y: Any, task: str
    ) -> tuple[Float[np.ndarray, "n d"], Shaped[np.ndarray, "n *c"], Schema]:
        """Inputs, targets and the encoding.

        Args:
            y: the name of a column, or targets, shape `n`.
            task: "classification" or "regression".

        Raises:
            ValueError: naming the column that cannot be encoded, and its row.
        """
        from .encoding import encode, encode_target, fit_schema

        if self.categories not in ("indicators", "kernel"):
            raise ValueError(
                f"categories: expected 'indicators' or 'kernel', got {self.categories!r}"
            )
        table = _arrow(self.table)
        if y is None:
            raise ValueError("y: expected the name of a column of the table, or targets")
        named = isinstance(y, str)
        target = y if named else _free_name(table.column_names)
        if not named:
            values = np.asarray(y)
            if len(values) != table.num_rows:
                raise ValueError(
                    f"y: expected {table.num_rows} values, as many as rows of X, got shape "
                    f"{values.shape}"
                )
            table = table.append_column(target, [_column(values)])
        schema = fit_schema(
            table,
            target,
            task=task,
            impute=self.impute,
            categorical=self.categorical,
            drop=self.drop,
            max_categories=self.max_categories,
            coded=self.categories == "kernel",
        )
        X = encode(schema, table).X
        return X, encode_target(schema, table) if named else np.asarray(y), schema

    def encode(self, schema: Schema, dtype: str) -> Float[np.ndarray, "n d"]:
        """Inputs by the encoding of training, whatever the order of the columns.

        Raises:
            ValueError: naming a column that is missing or cannot be encoded.
        """
        from .encoding import encode

        return encode(schema, _arrow(self.table), dtype=dtype).X


def as_frame(X: Any) -> Frame | None:
    """A table as a `Frame`; None for what is no table."""
    if isinstance(X, Frame):
        return X
    return Frame(X) if hasattr(X, "__arrow_c_stream__") or _is_pandas(X) else None


def _is_pandas(X: Any) -> bool:
    return type(X).__module__.partition(".")[0] == "pandas" and hasattr(X, "columns")


def _arrow(table: Any) -> Any:
    try:
        from ._arrow import pa
    except ImportError as error:
        raise ImportError("tables need pyarrow: pip install 'jsparse[cli]'") from error
    try:
        if isinstance(table, pa.Table):
            found = table
        elif _is_pandas(table):
            _check_names([str(name) for name in table.columns])
            found = pa.Table.from_pandas(table, preserve_index=False)
        else:
            found = pa.table(table)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"X: expected columns of one type each ({error})") from error
    _check_names(found.column_names)
    return found


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"X: expected columns with distinct names, got {names}")


def _column(values: np.ndarray) -> Any:
    from ._arrow import pa

    return pa.array(values if values.ndim == 1 else values[:, 0])


def _free_name(names: Sequence[str]) -> str:
    name = "target"
    while name in names:
        name += "_"
    return name
