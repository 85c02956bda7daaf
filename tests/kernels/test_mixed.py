"""Columns of categories that a kernel compares: loops, indicators, machines on tables of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.test_util import check_grads
from reference import kernels as formulas
from reference.fixed_size import dual as solve_dual

from jsparse import SLMC, FixedSize, Profile, UnseenCategoryWarning, kernels, load, train
from jsparse.cli.main import main
from jsparse.data.frames import Frame
from jsparse.data.streams import ArrayStream
from jsparse.kernels.mixed import categorical_columns, with_categories

LENGTHS = (0.7, 1.6, 3.1, 0.9)
COLUMNS = (1, 3)
FAMILIES = {
    "RBF": lambda s: np.exp(-s / 2),
    "Matern32": lambda s: (1 + np.sqrt(3 * s)) * np.exp(-np.sqrt(3 * s)),
}


def rows(n, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4))
    X[:, 1], X[:, 3] = rng.integers(0, 3, n), rng.integers(-1, 2, n)
    return X.astype(dtype)


def by_loops(profile, lengths):
    def value(x, z):
        s = 0.0
        for j in range(4):
            apart = 2.0 * (x[j] != z[j]) if j in COLUMNS else (float(x[j]) - float(z[j])) ** 2
            s += apart / lengths[j] ** 2
        return profile(s)

    return value


@jax.jit
def evaluate(kernel, X, Z):
    return kernel.cross_gram(X, Z), kernel.gram(X), kernel.diagonal(X), kernel(X[0], Z[0])


@pytest.mark.parametrize("name", list(FAMILIES))
def test_agrees_with_loops(name, dtype):
    lengths = np.asarray(LENGTHS) if name == "RBF" else np.full(4, 1.3)
    lengthscale = lengths if name == "RBF" else 1.3
    kernel = kernels.Mixed(getattr(kernels, name)(lengthscale), COLUMNS)
    X, Z = rows(9, dtype=dtype), rows(5, 1, dtype)
    reference = by_loops(FAMILIES[name], lengths)
    cross, gram, diagonal, pair = evaluate(kernel, X, Z)
    assert cross.dtype == gram.dtype == diagonal.dtype == pair.dtype == dtype
    atol = 50 * np.finfo(dtype).eps
    np.testing.assert_allclose(cross, formulas.matrix(reference, X, Z), atol=atol)
    np.testing.assert_allclose(gram, formulas.matrix(reference, X, X), atol=atol)
    np.testing.assert_allclose(pair, reference(X[0], Z[0]), atol=atol)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_array_equal(diagonal, np.diagonal(gram))
    assert np.linalg.eigvalsh(gram.astype(float)).min() > -len(X) * atol


def test_derivatives_in_lengthscales_and_numbers():
    X, Z = jnp.asarray(rows(4)), jnp.asarray(rows(3, 1))

    def value(lengths, numbers):
        points = X.at[:, jnp.array([0, 2])].set(numbers)
        return kernels.Mixed(kernels.RBF(lengths), COLUMNS).cross_gram(points, Z)

    arguments = jnp.asarray(LENGTHS), X[:, jnp.array([0, 2])]
    check_grads(jax.jit(value), arguments, order=1, rtol=1e-6)


def test_what_makes_no_sense_is_refused():
    rbf, X = kernels.RBF(1.0), jnp.zeros((2, 3))
    wrong = [
        (lambda: kernels.Mixed(kernels.Linear(), (0,)), "expected a kernel of the distance"),
        (lambda: kernels.Mixed(rbf, ()), "columns: expected numbers of columns"),
        (lambda: kernels.Mixed(rbf, (2, 1)), "columns: expected numbers of columns, increasing"),
        (lambda: kernels.Mixed(rbf, (-1,)), "columns"),
        (lambda: kernels.Mixed(rbf, (3,)).cross_gram(X, X), "of the 3 columns"),
        (lambda: with_categories(rbf + kernels.Linear(), (1,)), "got Linear; or code each"),
        (lambda: with_categories(kernels.Mixed(rbf, (0,)), (1,)), r"compares the columns \(0,\)"),
        (lambda: categorical_columns(kernels.Mixed(rbf, (0,)) * rbf), "every part to compare"),
    ]
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()
    composed = with_categories(0.5 * (rbf * kernels.Matern32(2.0)), (1,))
    assert categorical_columns(composed) == (1,)
    assert categorical_columns(rbf * kernels.Linear()) == ()


# --- machines -----------------------------------------------------------------------------------

N = 48
GIVEN = {
    "key": 0,
    "search": Profile(tune_kernel=False),
    "C": np.array([5.0]),
    "folds": 3,
    "out_of_fold": False,
}


def table(n=N):
    rng = np.random.default_rng(4)
    town = rng.choice(["Ghent", "Leuven", "Bruges", "Mons"], n)
    table = pd.DataFrame(
        {"town": town, "age": rng.uniform(20, 60, n), "size": rng.choice(["s", "m"], n)}
    )
    table["income"] = table["age"] / 10 + 3.0 * (town == "Ghent") - 2 * (table["size"] == "s")
    return table


def learn(frame, **options):
    with jax.enable_x64(True):
        options = {
            "method": FixedSize(N, "uniform"),
            "kernel": kernels.RBF(1.5),
            **GIVEN,
            **options,
        }
        return train(Frame(frame, categories="kernel"), "income", task="regression", **options)


@pytest.fixture(scope="module")
def of_table():
    return learn(table())


def test_a_machine_on_a_table_is_that_of_the_formula(of_table):
    frame = table()
    age = ((frame["age"] - frame["age"].mean()) / frame["age"].std(ddof=0)).to_numpy()
    codes = [np.unique(frame[name], return_inverse=True)[1] for name in ("town", "size")]

    def gram(i, j):
        s = (age[i][:, None] - age[j][None]) ** 2
        for code in codes:
            s = s + 2.0 * (code[i][:, None] != code[j][None])
        return np.exp(-s / (2 * 1.5**2))

    every = np.arange(N)
    alpha, b = solve_dual(gram(every, every), frame["income"].to_numpy(), 5.0)
    model = of_table.model
    assert model.expansion.prototypes.shape[1] == 3
    np.testing.assert_allclose(model.predict(frame), gram(every, every) @ alpha + b, rtol=1e-6)
    scaling = model.expansion.scaling
    np.testing.assert_array_equal(np.asarray(scaling.scale)[[0, 2]], 1)
    np.testing.assert_array_equal(np.asarray(scaling.shift)[[0, 2]], 0)


def test_an_unseen_category_agrees_with_none(of_table, tmp_path):
    new = pd.DataFrame({"size": ["s"], "age": [40.0], "town": ["Namur"]})
    model = of_table.model
    Z, beta = (np.asarray(a) for a in (model.expansion.prototypes, model.expansion.coefficients))
    shift, scale = (np.asarray(a) for a in model.expansion.scaling)
    s = ((40.0 - shift[1]) / scale[1] - Z[:, 1]) ** 2 + 2.0 + 2.0 * (Z[:, 2] != 1)
    expected = np.exp(-s / (2 * 1.5**2)) @ beta + float(model.expansion.intercept)
    model.save(tmp_path / "model")
    with jax.enable_x64(True):
        again = load(tmp_path / "model")
    with pytest.warns(UnseenCategoryWarning, match=r"column 'town': 'Namur' \(rows: 1\);"):
        predicted = model.predict(new)
    np.testing.assert_allclose(predicted, [expected], rtol=1e-9)
    with pytest.warns(UnseenCategoryWarning):
        np.testing.assert_array_equal(again.predict(new), predicted)
    assert again.columns == model.columns


def test_missing_categories_are_one_of_their_own():
    frame = table()
    frame.loc[::7, "town"] = None
    with pytest.raises(ValueError, match="column 'town' has 7 in 48 rows"):
        learn(frame)
    column = Frame(frame, impute=True, categories="kernel").arrays("income", "regression")[2]
    assert column.columns[0].categories == ("Bruges", "Ghent", "Leuven", "Mons", None)
    X = Frame(frame, impute=True, categories="kernel").arrays("income", "regression")[0]
    assert (X[::7, 0] == 4).all()


def test_what_cannot_compare_categories_says_so(as_users_call):
    with pytest.raises(ValueError, match="got Linear; or code each category"):
        learn(table(), kernel="linear")
    classes = Frame(table().assign(income=lambda t: t["income"] > 5), categories="kernel")
    with pytest.raises(ValueError, match="expected prototypes that are rows"):
        train(classes, "income", task="classification", method=SLMC(4), key=0)
    with pytest.raises(ValueError, match="categories: expected 'indicators' or 'kernel'"):
        Frame(table(), categories="no").arrays("income", "regression")
    mixed = kernels.Mixed(kernels.RBF(1.0), (1,))
    X, y = rows(20), np.arange(20.0)
    with pytest.raises(ValueError, match="codes of categories in column 1"):
        train(X + 0.5, y, task="regression", kernel=mixed, **GIVEN)
    stream = ArrayStream(X, y, batch_rows=10)
    with pytest.raises(ValueError, match="without columns of categories for a stream"):
        train(stream, task="regression", kernel=mixed, method=FixedSize(5), key=0)


@pytest.mark.slow
def test_a_column_of_one_category_does_not_move_other_columns():
    """Its only indicator makes as many columns as the table has, in another order."""
    X = np.stack([np.full(20, 2.0), *np.random.default_rng(0).standard_normal((2, 20))], axis=1)
    options = {"method": FixedSize(4), "search": Profile(tune_kernel=False), "key": 0}
    model = train(
        X, X[:, 1], task="regression", kernel=kernels.Mixed(kernels.RBF(1.0), (0,)), **options
    )
    prototypes = np.asarray(model.expansion.prototypes)
    np.testing.assert_array_equal(prototypes[:, 0], 2.0)
    rows_of = X[model.point_rows]
    np.testing.assert_allclose(
        model.expansion.scaling.undo_on_host(prototypes), rows_of, atol=1e-12
    )


@pytest.mark.slow
def test_pivots_are_chosen_by_the_kernel_of_the_categories():
    rng = np.random.default_rng(1)
    X = np.stack([rng.integers(0, 6, 60), rng.standard_normal(60)], axis=1).astype(float)
    kernel = kernels.Mixed(kernels.RBF(0.7), (0,))
    method = FixedSize(12, selection="pivoted_cholesky")
    options = {"search": Profile(tune_kernel=False), "columns": "standard", "key": 0}
    trained = train(X, X[:, 1], task="regression", kernel=kernel, method=method, **options)
    Z = jnp.asarray(trained.model.expansion.scaling.apply(jnp.asarray(X)))
    # Twelve pivots of this kernel leave less than twelve random rows.
    gram = np.asarray(kernel.gram(Z))

    def left(rows):
        K = gram[:, rows]
        return np.trace(gram - K @ np.linalg.pinv(gram[np.ix_(rows, rows)]) @ K.T)

    draws = [left(rng.permutation(60)[:12]) for _ in range(20)]
    assert left(trained.point_rows) < min(draws)


@pytest.mark.slow
def test_the_command_line_compares_categories(tmp_path, capsys):
    file, out, answers = (str(tmp_path / name) for name in ("rows.csv", "model", "answers.csv"))
    table(120).to_csv(file, index=False)
    fit = ["fit", file, "--target", "income", "--out", out, "--prototypes", "20"]
    fit += ["--evaluations", "3", "--quiet", "--fold-machines", "--categories"]
    gradient = ["--search", "gradient"]
    for options, printed in (
        # The gradient search tunes a lengthscale for every column.
        (["kernel", *gradient], "relevance"),
        (["indicators", *gradient, "--rank", "2"], "of 2 directions"),
        (["kernel"], "3 columns that share one lengthscale"),
    ):
        assert main([*fit, *options]) == 0
        assert printed in capsys.readouterr().out
    for options, message in (
        ([*gradient, "--rank", "2"], "rank: expected None"),
        (["--kernel", "linear"], "Linear"),
        (["--stream"], "stream"),
    ):
        assert main([*fit, "kernel", *options]) == 2
        assert message in capsys.readouterr().err
    assert main(["predict", out, file, "--interval", "0.9", "--out", answers]) == 0
    predictions, truth = pd.read_csv(answers), table(120)["income"]
    assert list(predictions.columns) == ["income", "income low", "income high"]
    inside = (predictions["income low"] <= truth) & (truth <= predictions["income high"])
    assert inside.mean() >= 0.9
    assert main(["predict", out, file, "--interval", "0.999"]) == 2
    assert "at most 0.991736" in capsys.readouterr().err
