"""How a table becomes arrays: a plain record that is saved with the model."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Value = str | bool | int | float | None


class Column(NamedTuple):
    """One input column.

    Attributes:
        name: its name in the table.
        categories: the values that get an indicator column each, in the type they were read in,
            None standing for a missing value; or None for a numeric column.
        fill: what a missing number is replaced by, or None if it is refused.
    """

    name: str
    categories: tuple[Value, ...] | None = None
    fill: float | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns, such as `age` or `sex=F`."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={'(missing)' if c is None else c}" for c in self.categories)


class Schema(NamedTuple):
    """The encoding of a table, fixed by the table a model is trained on.

    Attributes:
        columns: the input columns, in the order in which they are encoded.
        target: name of the target column.
        task: "classification" or "regression".
        classes: the labels in sorted order, in the type they were read in; None for regression.
        impute: whether missing inputs are filled in rather than refused.
        null_values: what a CSV cell may hold to mean that a value is missing.
    """

    columns: tuple[Column, ...]
    target: str
    task: str
    classes: tuple[str | bool | int | float, ...] | None
    impute: bool
    null_values: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns, `d` of them."""
        return tuple(name for column in self.columns for name in column.features)

    def to_json(self) -> dict[str, Any]:
        """The schema as dicts, lists, strings, numbers and booleans."""
        parts = self._asdict()
        parts["columns"] = [
            {**column._asdict(), "categories": _maybe(list, column.categories)}
            for column in self.columns
        ]
        parts["classes"] = _maybe(list, self.classes)
        parts["null_values"] = list(self.null_values)
        return parts

    @staticmethod
    def from_json(parts: Mapping[str, Any]) -> "Schema":
        """What `to_json` gave, through JSON or not.

        Raises:
            ValueError: if `parts` is not of that form.
        """
        try:
            columns = tuple(
                Column(c["name"], _maybe(tuple, c["categories"]), c["fill"])
                for c in parts["columns"]
            )
            return Schema(
                columns=columns,
                target=parts["target"],
                task=parts["task"],
                classes=_maybe(tuple, parts["classes"]),
                impute=parts["impute"],
                null_values=tuple(parts["null_values"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"schema: expected what Schema.to_json gives, got {type(error).__name__}: {error}"
            ) from error


def _maybe(convert: type, values: Any) -> Any:
    return None if values is None else convert(values)
