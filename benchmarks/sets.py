"""The papers' data sets, split into training and test rows."""

from typing import NamedTuple

import numpy as np

from .data_sets import benchmark_set


class Split(NamedTuple):
    """Training and test rows."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


# De Brabanter 2010, Tables 5 to 7 (rows of the test set) and 8, 10 and 12 (prototypes).
TEST_ROWS = {
    "pima": 256,
    "spambase": 1533,
    "magic": 6020,
    "adult": 12222,
    "covertype": 50000,
    "optdigits": 1870,
    "satellite": 2000,
    "pendigits": 3664,
    "letter": 6333,
    "shuttle": 14500,
    "boston": 168,
    "concrete": 343,
}
PROTOTYPES = {
    "pima": 150,
    "spambase": 200,
    "magic": 1000,
    "adult": 500,
    "covertype": 500,
    "optdigits": 420,
    "satellite": 330,
    "pendigits": 250,
    "letter": 1500,
    "shuttle": 175,
    "boston": 200,
    "concrete": 120,
}


def split(name: str, randomisation: int, dtype: str, *, one_hot: bool = False) -> Split:
    """Return a random split with the paper's sizes; targets of a regression are standardised.

    With `one_hot`, each category has an indicator column; otherwise categories are codes.
    """
    data = benchmark_set(name, complete=name == "adult")
    columns = [data.X]
    if one_hot:
        codes = data.X[:, data.categorical].T
        columns = [data.X[:, ~data.categorical], *[c[:, None] == np.unique(c) for c in codes]]
    n = len(data.y)
    order = np.random.default_rng([2010, randomisation]).permutation(n)
    train, test = order[TEST_ROWS[name] :], order[: TEST_ROWS[name]]
    y = data.y.astype(float)
    if data.task == "regression":
        y = (y - y[train].mean()) / y[train].std()
    X, y = np.concatenate(columns, axis=1).astype(dtype), y.astype(dtype)
    return Split(X[train], y[train], X[test], y[test])


def partition(name: str, number: int) -> Split:
    """Return a published partition of an IDA set; inputs as collected, targets -1 and +1."""
    data = benchmark_set(f"ida_{name}")
    assert data.train is not None
    assert data.test is not None
    train, test = data.train[number], data.test[number]
    X, y = data.X, data.y.astype(float)
    return Split(X[train], y[train], X[test], y[test])
