# Made by `python -m jsparse.estimators._stub`; do not edit.
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal

from numpy.random import RandomState

from ..kernels import Kernel
from ..machines.method import Method
from ..machines.stopping import Stopping
from ..search.strategies import Search
from ._base import Classifier
from ._base import Regressor
from ._named import _SeveralSizes
from ._named import _ShareOfSupportVectors
from ._named import _WithMethodParameter
from ._partial_fit import MoreRowsClassifier
from ._partial_fit import MoreRowsRegressor
from ._one_class import SparseOneClassSVM as SparseOneClassSVM
from ._onnx import register_onnx as register_onnx

class FixedSizeLSSVMClassifier(MoreRowsClassifier):
    """Classification by a fixed-size LS-SVM: ridge regression on features of few prototypes.

    De Brabanter 2010, Algorithm 5: inputs are standardised, prototypes are chosen by entropy, and
    lengthscale and `C` are tuned by cross-validation. `partial_fit` adds rows. For `partial_fit`, a
    fitted machine keeps two arrays of `n_prototypes` squared numbers. If binary problems leave out
    classes, as in "one_versus_one", it keeps one such array for every class, and one more.

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: "renyi" (De Brabanter 2010, Algorithm 1), stratified by class; "uniform"; or
            "pivoted_cholesky", for the rows of any class with the largest residual variance
            under the untuned kernel.
        tuned_with: tune the kernel for a machine of only the first `tuned_with` prototypes;
            then, with the same folds, retune `C` and one common factor of the lengthscales for
            all prototypes. This takes a few Cholesky factors, and no eigendecomposition. If the
            large machine does not lower the score by one standard error of the paired
            difference on the folds, the smaller machine is the result. None: tune for all
            prototypes directly.
        solver: "cholesky" sums products of features over the rows and factorises the sums, in
            `n m^2` operations. "conjugate_gradients" multiplies by the kernel matrix of rows
            and prototypes, block by block, in some tens of passes over the rows of `n m` kernel
            values each. It suits 5,000 prototypes and more. A machine of `tuned_with`
            prototypes, by default 1,000, tunes the kernel and `C`. Then only `C` is retuned, on
            one fold that is held out. The result has all prototypes. The rows must be in memory
            on one device.
        max_iter: limit of the steps of conjugate gradients for each `C`.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["renyi", "uniform", "pivoted_cholesky"] = 'renyi',
        tuned_with: int | None = None,
        solver: Literal["cholesky", "conjugate_gradients"] = 'cholesky',
        max_iter: int = 200,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class FixedSizeLSSVMRegressor(MoreRowsRegressor):
    """Regression by a fixed-size LS-SVM: ridge regression on features of few prototypes.

    De Brabanter 2010, Algorithm 5. `partial_fit` adds rows. For `partial_fit`, a fitted machine
    keeps two arrays of `n_prototypes` squared numbers.

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: "renyi" (De Brabanter 2010, Algorithm 1), stratified by class; "uniform"; or
            "pivoted_cholesky", for the rows of any class with the largest residual variance
            under the untuned kernel.
        tuned_with: tune the kernel for a machine of only the first `tuned_with` prototypes;
            then, with the same folds, retune `C` and one common factor of the lengthscales for
            all prototypes. This takes a few Cholesky factors, and no eigendecomposition. If the
            large machine does not lower the score by one standard error of the paired
            difference on the folds, the smaller machine is the result. None: tune for all
            prototypes directly.
        solver: "cholesky" sums products of features over the rows and factorises the sums, in
            `n m^2` operations. "conjugate_gradients" multiplies by the kernel matrix of rows
            and prototypes, block by block, in some tens of passes over the rows of `n m` kernel
            values each. It suits 5,000 prototypes and more. A machine of `tuned_with`
            prototypes, by default 1,000, tunes the kernel and `C`. Then only `C` is retuned, on
            one fold that is held out. The result has all prototypes. The rows must be in memory
            on one device.
        max_iter: limit of the steps of conjugate gradients for each `C`.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["renyi", "uniform", "pivoted_cholesky"] = 'renyi',
        tuned_with: int | None = None,
        solver: Literal["cholesky", "conjugate_gradients"] = 'cholesky',
        max_iter: int = 200,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class KernelBasisPursuitClassifier(_SeveralSizes, Classifier):
    """Classification by kernel basis pursuit (Guigue et al. 2005), on targets -1 and +1.

    Args:
        max_prototypes: largest number of prototypes, at which the path ends; by default 300, or
            fewer if there are fewer candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        n_prototypes: number of atoms K, or several from which cross-validation chooses; None or
            "auto" for every number up to `max_prototypes`. Each atom is one prototype, or with
            several kernels one prototype with one of the kernels.
        intercept: whether the machines have an intercept, which does not count as an atom.
        ridge: a penalty: the mean squared error plus `ridge |coefficients|^2` is minimised.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        size_tolerance: float = 0.1,
        n_prototypes: Any = None,
        intercept: bool = True,
        ridge: float = 0.0,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class KernelBasisPursuitRegressor(_SeveralSizes, Regressor):
    """Regression by kernel basis pursuit (Guigue et al. 2005).

    Args:
        max_prototypes: largest number of prototypes, at which the path ends; by default 300, or
            fewer if there are fewer candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        n_prototypes: number of atoms K, or several from which cross-validation chooses; None or
            "auto" for every number up to `max_prototypes`. Each atom is one prototype, or with
            several kernels one prototype with one of the kernels.
        intercept: whether the machines have an intercept, which does not count as an atom.
        ridge: a penalty: the mean squared error plus `ridge |coefficients|^2` is minimised.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        size_tolerance: float = 0.1,
        n_prototypes: Any = None,
        intercept: bool = True,
        ridge: float = 0.0,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class KernelMachineClassifier(_WithMethodParameter, Classifier):
    """Classification by any method, or by the method and settings of a preset.

    Args:
        method: the method with its settings, such as `jsparse.SCDP(max_prototypes=50)`; None
            for the choice of the preset. `set_params` and grid searches reach its settings as
            `method__x`.
        preset: the settings to use where `method`, `kernel`, `columns` or `search` is None, see
            `jsparse.train`. None for "balanced" without a method, and for "fast" with one.
        n_prototypes: distil the machine of the preset to at most this number of prototypes;
            only without a method.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic",
            "linear", "polynomial", or "auto" for the family with the lowest error on a sample
            of the rows), or a `jsparse.kernels` object in units of standardised inputs. For
            pursuits also a list of kernels; every candidate then has one atom for each kernel.
            None: "rbf" with a method, else the choice of the preset.
        columns: scaling of input columns: "standard" to mean 0 and variance 1; "ranks" to
            normal scores of their ranks, which suits heavy tails; "auto" for the scaling with
            the lower error on a sample of the rows. None: "standard" with a method, else the
            choice of the preset.
        search: "profile" (one lengthscale), "gradient" or "recursive" (a lengthscale for every
            column), "annealing", "auto" ("gradient" from 100 rows on, else "profile"), or a
            search such as `jsparse.Gradient(...)`. None: "profile" with a method, else the
            choice of the preset.
        lengthscale: "auto" to tune the kernel; a number, or one for each column, to set the
            lengthscale; None to use a kernel object without tuning.
        categories: how a table's categories become inputs: "indicators" makes a column for each
            category, "kernel" compares categories in the kernel, see `jsparse.kernels.Mixed`.
        C: "auto" to tune the weight of the data-fit term, or a number.
        multiclass: how several classes become binary problems: "one_versus_rest",
            "one_versus_one", "minimum_output", or a matrix with the code of a class in each
            row.
        class_weight: weight factors by class label; "balanced" for equal total weights; None
            for 1.
        cv: number of folds, a splitter, or a list of splits that hold out each row once; "auto"
            for 10 or, with methods that take much longer for each fold, 5; at most the number
            of rows.
        out_of_fold: whether to keep the held-out errors, which calibrate probabilities,
            intervals and sets; "machines" also keeps the machines of the folds, see
            `jsparse.train`.
        max_evaluations: limit of the evaluations of the search; None for the default of the
            search.
        max_seconds: time limit of the search in seconds; no evaluation starts later.
        warm_start: start the search where the search of the last `fit` ended.
        verbose: 1 to print the progress of the search on standard error.
        random_state: random seed of the prototypes, folds and search.

    Attributes:
        classes_: labels in sorted order.
        prototypes_: shape `(n_prototypes, n_features)`, in the units of the inputs.
        prototype_indices_: row numbers of the prototypes, if they are rows chosen before the
            fit.
        n_prototypes_: the chosen number of prototypes, if several were compared.
        sizes_: the compared numbers of prototypes.
        errors_: cross-validated error of each of `sizes_`.
        standard_errors_: standard error of each of `errors_`.
        dual_coef_: coefficients, shape `(n_prototypes,)`; or a column for each problem or
            target.
        intercept_: intercept, one number for each problem or target.
        model_: the model to deploy, a `jsparse.Model`.
        expansion_: the machine of `model_`, a `KernelExpansion`.
        kernel_: the tuned kernel.
        C_: the tuned C; None for a method without C.
        cv_error_: cross-validated error.
        oob_decision_function_: held-out class probabilities of each row.
        n_iter_: number of evaluations in the search.
        tuning_history_: all evaluations of the search.
        n_features_in_: number of columns.
        feature_names_in_: names of the columns, if the inputs had names.
    """

    def __init__(
        self,
        method: Method | None = None,
        *,
        preset: Literal["fast", "balanced", "accurate"] | None = None,
        n_prototypes: int | None = None,
        kernel: str | Kernel | Sequence[Kernel] | None = None,
        columns: Literal["standard", "ranks", "auto"] | None = None,
        search: str | Search | None = None,
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class KernelMachineRegressor(_WithMethodParameter, Regressor):
    """Regression by any method, or by the method and settings of a preset.

    Args:
        method: the method with its settings, such as `jsparse.SCDP(max_prototypes=50)`; None
            for the choice of the preset. `set_params` and grid searches reach its settings as
            `method__x`.
        preset: the settings to use where `method`, `kernel`, `columns` or `search` is None, see
            `jsparse.train`. None for "balanced" without a method, and for "fast" with one.
        n_prototypes: distil the machine of the preset to at most this number of prototypes;
            only without a method.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic",
            "linear", "polynomial", or "auto" for the family with the lowest error on a sample
            of the rows), or a `jsparse.kernels` object in units of standardised inputs. For
            pursuits also a list of kernels; every candidate then has one atom for each kernel.
            None: "rbf" with a method, else the choice of the preset.
        columns: scaling of input columns: "standard" to mean 0 and variance 1; "ranks" to
            normal scores of their ranks, which suits heavy tails; "auto" for the scaling with
            the lower error on a sample of the rows. None: "standard" with a method, else the
            choice of the preset.
        search: "profile" (one lengthscale), "gradient" or "recursive" (a lengthscale for every
            column), "annealing", "auto" ("gradient" from 100 rows on, else "profile"), or a
            search such as `jsparse.Gradient(...)`. None: "profile" with a method, else the
            choice of the preset.
        lengthscale: "auto" to tune the kernel; a number, or one for each column, to set the
            lengthscale; None to use a kernel object without tuning.
        categories: how a table's categories become inputs: "indicators" makes a column for each
            category, "kernel" compares categories in the kernel, see `jsparse.kernels.Mixed`.
        C: "auto" to tune the weight of the data-fit term, or a number.
        cv: number of folds, a splitter, or a list of splits that hold out each row once; "auto"
            for 10 or, with methods that take much longer for each fold, 5; at most the number
            of rows.
        out_of_fold: whether to keep the held-out errors, which calibrate probabilities,
            intervals and sets; "machines" also keeps the machines of the folds, see
            `jsparse.train`.
        max_evaluations: limit of the evaluations of the search; None for the default of the
            search.
        max_seconds: time limit of the search in seconds; no evaluation starts later.
        warm_start: start the search where the search of the last `fit` ended.
        verbose: 1 to print the progress of the search on standard error.
        random_state: random seed of the prototypes, folds and search.

    Attributes:
        prototypes_: shape `(n_prototypes, n_features)`, in the units of the inputs.
        prototype_indices_: row numbers of the prototypes, if they are rows chosen before the
            fit.
        n_prototypes_: the chosen number of prototypes, if several were compared.
        sizes_: the compared numbers of prototypes.
        errors_: cross-validated error of each of `sizes_`.
        standard_errors_: standard error of each of `errors_`.
        dual_coef_: coefficients, shape `(n_prototypes,)`; or a column for each problem or
            target.
        intercept_: intercept, one number for each problem or target.
        model_: the model to deploy, a `jsparse.Model`.
        expansion_: the machine of `model_`, a `KernelExpansion`.
        kernel_: the tuned kernel.
        C_: the tuned C; None for a method without C.
        cv_error_: cross-validated error.
        oob_prediction_: held-out prediction of each row.
        n_iter_: number of evaluations in the search.
        tuning_history_: all evaluations of the search.
        n_features_in_: number of columns.
        feature_names_in_: names of the columns, if the inputs had names.
    """

    def __init__(
        self,
        method: Method | None = None,
        *,
        preset: Literal["fast", "balanced", "accurate"] | None = None,
        n_prototypes: int | None = None,
        kernel: str | Kernel | Sequence[Kernel] | None = None,
        columns: Literal["standard", "ranks", "auto"] | None = None,
        search: str | Search | None = None,
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        C: float | str = 'auto',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class KernelMatchingPursuitClassifier(_SeveralSizes, Classifier):
    """Classification by kernel matching pursuit (Vincent and Bengio 2002), on targets -1 and +1.

    Prototypes are selected one after another. Cross-validation chooses their number.

    Args:
        max_prototypes: largest number of prototypes, at which the path ends; by default 300, or
            fewer if there are fewer candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        subset: number of random atoms examined in each step: stochastic kernel matching pursuit
            (Popovici et al. 2005). Not for "prefitting".
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        n_prototypes: number of atoms K, or several from which cross-validation chooses; None or
            "auto" for every number up to `max_prototypes`. Each atom is one prototype, or with
            several kernels one prototype with one of the kernels.
        intercept: whether the machines have an intercept, which does not count as an atom.
        ridge: a penalty: the mean squared error plus `ridge |coefficients|^2` is minimised.
        fitting: "basic" selects the atom most correlated with the residual, and fits only its
            coefficient; it may select an atom again, which adds no prototype. "backfitting"
            fits all coefficients after each step: orthogonal matching pursuit, which is SCDP
            without a penalty, on atoms of unit length. "prefitting" selects the atom that
            leaves the smallest residual when all coefficients are fitted: orthogonal least
            squares.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        subset: int | Literal["auto"] | None = None,
        size_tolerance: float = 0.1,
        n_prototypes: Any = None,
        intercept: bool = True,
        ridge: float = 0.0,
        fitting: Literal["basic", "backfitting", "prefitting"] = 'backfitting',
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class KernelMatchingPursuitRegressor(_SeveralSizes, Regressor):
    """Regression by kernel matching pursuit (Vincent and Bengio 2002).

    Prototypes are selected one after another. Cross-validation chooses their number.

    Args:
        max_prototypes: largest number of prototypes, at which the path ends; by default 300, or
            fewer if there are fewer candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        subset: number of random atoms examined in each step: stochastic kernel matching pursuit
            (Popovici et al. 2005). Not for "prefitting".
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        n_prototypes: number of atoms K, or several from which cross-validation chooses; None or
            "auto" for every number up to `max_prototypes`. Each atom is one prototype, or with
            several kernels one prototype with one of the kernels.
        intercept: whether the machines have an intercept, which does not count as an atom.
        ridge: a penalty: the mean squared error plus `ridge |coefficients|^2` is minimised.
        fitting: "basic" selects the atom most correlated with the residual, and fits only its
            coefficient; it may select an atom again, which adds no prototype. "backfitting"
            fits all coefficients after each step: orthogonal matching pursuit, which is SCDP
            without a penalty, on atoms of unit length. "prefitting" selects the atom that
            leaves the smallest residual when all coefficients are fitted: orthogonal least
            squares.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        subset: int | Literal["auto"] | None = None,
        size_tolerance: float = 0.1,
        n_prototypes: Any = None,
        intercept: bool = True,
        ridge: float = 0.0,
        fitting: Literal["basic", "backfitting", "prefitting"] = 'backfitting',
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class KernelSubspacePursuitClassifier(_SeveralSizes, Classifier):
    """Classification by kernel subspace pursuit (Kabbara 2015), on targets -1 and +1.

    Args:
        max_prototypes: the largest default K; None for 100, or fewer if there are fewer
            candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        n_prototypes: K, or several numbers from which cross-validation chooses; None or "auto"
            for at most ten numbers up to `max_prototypes`.
        intercept: whether the machines have an intercept, which does not count as an atom.
        ridge: a penalty: the mean squared error plus `ridge |coefficients|^2` is minimised.
        max_iter: limit of the exchanges for one K, the paper's l_max.
        formed: whether fits to rows in memory use the normal equations.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        size_tolerance: float = 0.1,
        n_prototypes: Any = None,
        intercept: bool = True,
        ridge: float = 0.0,
        max_iter: int = 5,
        formed: bool = True,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class KernelSubspacePursuitRegressor(_SeveralSizes, Regressor):
    """Regression by kernel subspace pursuit (Kabbara 2015).

    Exactly K prototypes are selected, and exchanged until the error stops decreasing.
    Cross-validation chooses K.

    Args:
        max_prototypes: the largest default K; None for 100, or fewer if there are fewer
            candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        n_prototypes: K, or several numbers from which cross-validation chooses; None or "auto"
            for at most ten numbers up to `max_prototypes`.
        intercept: whether the machines have an intercept, which does not count as an atom.
        ridge: a penalty: the mean squared error plus `ridge |coefficients|^2` is minimised.
        max_iter: limit of the exchanges for one K, the paper's l_max.
        formed: whether fits to rows in memory use the normal equations.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        size_tolerance: float = 0.1,
        n_prototypes: Any = None,
        intercept: bool = True,
        ridge: float = 0.0,
        max_iter: int = 5,
        formed: bool = True,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class LSSVMClassifier(Classifier):
    """Classification by an LS-SVM: every row is a prototype (De Brabanter 2010, Section 2).

    Memory grows with the square of the number of rows; for more than some thousands of rows take
    `FixedSizeLSSVMClassifier`. Kernel and `C` are tuned by leave-one-out. One decomposition gives
    the leave-one-out errors for every `C`.

    Args:
        tuned_with: tune kernel and `C` for a machine of this many random rows; then tune `C`
            again for all rows, among three values. With many rows this saves nearly all time.
            None, or at least the number of rows: tune the machine of all rows. With more than
            1,500 rows the search `Profile` then begins on 1,000 of them, and goes downhill from
            the best kernel and `C` with all rows. The share of wrong classes is too coarse to
            compare kernels on a sample or on few rows: unless a metric is stated, squared
            errors compare them there, and with all rows `C` is then chosen by the share of
            wrong classes. With `Annealing` that share compares them on few rows too. After a
            sample, values of `C` so large that rounding would decide the machine of all rows
            are left out.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        tuned_with: int | None = None,
        *,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class LSSVMRegressor(Regressor):
    """Regression by an LS-SVM: every row is a prototype (De Brabanter 2010, Section 2).

    Memory grows with the square of the number of rows; for more than some thousands of rows take
    `FixedSizeLSSVMRegressor`. Kernel and `C` are tuned by leave-one-out. One decomposition gives
    the leave-one-out errors for every `C`.

    Args:
        tuned_with: tune kernel and `C` for a machine of this many random rows; then tune `C`
            again for all rows, among three values. With many rows this saves nearly all time.
            None, or at least the number of rows: tune the machine of all rows. With more than
            1,500 rows the search `Profile` then begins on 1,000 of them, and goes downhill from
            the best kernel and `C` with all rows. The share of wrong classes is too coarse to
            compare kernels on a sample or on few rows: unless a metric is stated, squared
            errors compare them there, and with all rows `C` is then chosen by the share of
            wrong classes. With `Annealing` that share compares them on few rows too. After a
            sample, values of `C` so large that rounding would decide the machine of all rows
            are left out.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        tuned_with: int | None = None,
        *,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class ReducedSVMClassifier(_ShareOfSupportVectors):
    """Classification by an SVM on prototypes that are chosen before the fit (Wu et al. 2006).

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes. Or a fraction between 0 and 1 of
            the support vectors of scikit-learn's `SVC` with the same C and kernel. If C is
            tuned, `SVC` has C = 1. If the lengthscale of a kernel name is tuned, `SVC` has an
            RBF kernel, whose lengthscale is the square root of half the number of columns. With
            several classes, the number of support vectors is the mean over the one-versus-rest
            problems.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: how the prototypes, or the start of a descent, are chosen: "k_means" for
            cluster means, or rows by "renyi" or "uniform". Copies of a row are chosen only if
            there are too few different rows (Section 5.6).
        loss: "hinge" or "squared_hinge".
        penalty: "norm" for `|w|^2`, as in Section 4.2; or "coefficients" for the sum of squared
            coefficients, the RSVM of Lee and Mangasarian (2001).

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["k_means", "renyi", "uniform"] = 'k_means',
        loss: Literal["hinge", "squared_hinge"] = 'hinge',
        penalty: Literal["norm", "coefficients"] = 'norm',
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class ReducedSetClassifier(_ShareOfSupportVectors):
    """Classification by a support vector machine that is simplified afterwards (Burges 1996).

    A function of few prototypes approximates the function of the support vector machine.
    `jsparse.reduced_set.simplify` does so for any other expansion.

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes. Or a fraction between 0 and 1 of
            the support vectors of scikit-learn's `SVC` with the same C and kernel. If C is
            tuned, `SVC` has C = 1. If the lengthscale of a kernel name is tuned, `SVC` has an
            RBF kernel, whose lengthscale is the square root of half the number of columns. With
            several classes, the number of support vectors is the mean over the one-versus-rest
            problems.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: how the prototypes, or the start of a descent, are chosen: "k_means" for
            cluster means, or rows by "renyi" or "uniform". Copies of a row are chosen only if
            there are too few different rows (Section 5.6).
        refit: whether to fit the coefficients as a support vector machine in the span of the
            prototypes (MRS), instead of keeping the coefficients of the approximation.
        loss: "hinge" or "squared_hinge".
        large_prototypes: largest number of prototypes of the large machine, which are rows
            chosen by randomly pivoted Cholesky. None: all rows; the machine then needs the
            kernel matrix, and the time grows with the cube of the number of rows.
        tolerance: tolerance of the descent, see `direct.minimise`.
        max_iter: limit of steps of the descent. A new value compiles the programs again.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["k_means", "renyi", "uniform"] = 'k_means',
        refit: bool = False,
        loss: Literal["hinge", "squared_hinge"] = 'hinge',
        large_prototypes: int | None = 500,
        tolerance: float = 0.001,
        max_iter: int = 200,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class RelevanceVectorClassifier(Classifier):
    """Classification by a relevance vector machine (Tipping 2001; Tipping and Faul 2003).

    Args:
        max_prototypes: limit of the prototypes of each target or binary problem.
        candidates: number of random rows that may become prototypes; None for all rows, but at
            most 1000 rows: every step of the method examines all candidates.
        tolerance: stop when no change raises the log evidence by more than the tolerance, in
            nats. A machine with `max_prototypes` prototypes stops at 100 times the tolerance,
            because it cannot reach the optimum. On a CPU, so do the machines of
            cross-validation with the logistic likelihood, whose values also calibrate
            probabilities and prediction sets.
        max_iter: limit of steps of the fit. It is the length of the history, so a new value
            compiles the programs again.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        max_prototypes: int = 100,
        *,
        candidates: int | None = None,
        tolerance: float = 0.001,
        max_iter: int = 200,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class RelevanceVectorRegressor(Regressor):
    """Regression by a relevance vector machine (Tipping 2001; Tipping and Faul 2003).

    Args:
        max_prototypes: limit of the prototypes of each target or binary problem.
        candidates: number of random rows that may become prototypes; None for all rows, but at
            most 1000 rows: every step of the method examines all candidates.
        tolerance: stop when no change raises the log evidence by more than the tolerance, in
            nats. A machine with `max_prototypes` prototypes stops at 100 times the tolerance,
            because it cannot reach the optimum. On a CPU, so do the machines of
            cross-validation with the logistic likelihood, whose values also calibrate
            probabilities and prediction sets.
        max_iter: limit of steps of the fit. It is the length of the history, so a new value
            compiles the programs again.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        max_prototypes: int = 100,
        *,
        candidates: int | None = None,
        tolerance: float = 0.001,
        max_iter: int = 200,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class RobustLSSVMClassifier(Classifier):
    """Classification by a fixed-size machine with a robust loss (De Brabanter 2010, eq. 6).

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: "renyi" (De Brabanter 2010, Algorithm 1), stratified by class; "uniform"; or
            "pivoted_cholesky", for the rows of any class with the largest residual variance
            under the untuned kernel.
        loss: "huber", which is quadratic for small residuals and linear for large ones;
            "absolute"; or "quantile", the pinball loss of quantile regression (Koenker and
            Bassett 1978), for regression only.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["renyi", "uniform", "pivoted_cholesky"] = 'renyi',
        loss: Literal["absolute", "huber", "quantile"] = 'huber',
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class RobustLSSVMRegressor(Regressor):
    """Regression for targets with outliers (De Brabanter 2010, eq. 6), and quantile regression.

    With several quantiles, `predict` returns a column for each, in increasing order at every row;
    `score` takes one quantile only.

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: "renyi" (De Brabanter 2010, Algorithm 1), stratified by class; "uniform"; or
            "pivoted_cholesky", for the rows of any class with the largest residual variance
            under the untuned kernel.
        loss: "huber", which is quadratic for small residuals and linear for large ones;
            "absolute"; or "quantile", the pinball loss of quantile regression (Koenker and
            Bassett 1978), for regression only.
        quantile: with the quantile loss, the share of the targets that should lie below the
            machine's value, between 0 and 1; None for 0.5, the median. Several increasing
            shares give an output for each. These outputs share the kernel, the prototypes and
            `C`. The model sorts the outputs of each row, so that they never cross
            (Chernozhukov, Fernandez-Val and Galichon 2010).

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["renyi", "uniform", "pivoted_cholesky"] = 'renyi',
        loss: Literal["absolute", "huber", "quantile"] = 'huber',
        quantile: float | Sequence[float] | None = None,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class SCDPClassifier(_SeveralSizes, Classifier):
    """Classification by a sparse LS-SVM whose size cross-validation chooses (Karsmakers 2011).

    SCDP-FSLSSVM: prototypes are selected out of candidates one after another, each by the residual.
    Cross-validation of the whole path chooses the number of prototypes.

    Args:
        max_prototypes: largest number of prototypes, at which the path ends; by default 300, or
            fewer if there are fewer candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        subset: number of random candidates examined for each prototype (SCDPP); None for all.
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        selection: whether several problems or targets have the same prototypes, "joint", or
            "separate" ones.
        stopping: end a path once its error no longer changes (eq. 38), to save time. By default
            all paths have `max_prototypes`, the paper's safest choice.
        nu: penalty of the intercept, see `fit`.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        subset: int | Literal["auto"] | None = None,
        size_tolerance: float = 0.1,
        selection: Literal["joint", "separate"] = 'joint',
        stopping: Stopping | None = None,
        nu: float = 0.0,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class SCDPRegressor(_SeveralSizes, Regressor):
    """Regression by a sparse LS-SVM whose size cross-validation chooses (Karsmakers 2011).

    Args:
        max_prototypes: largest number of prototypes, at which the path ends; by default 300, or
            fewer if there are fewer candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        subset: number of random candidates examined for each prototype (SCDPP); None for all.
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        selection: whether several problems or targets have the same prototypes, "joint", or
            "separate" ones.
        stopping: end a path once its error no longer changes (eq. 38), to save time. By default
            all paths have `max_prototypes`, the paper's safest choice.
        nu: penalty of the intercept, see `fit`.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        subset: int | Literal["auto"] | None = None,
        size_tolerance: float = 0.1,
        selection: Literal["joint", "separate"] = 'joint',
        stopping: Stopping | None = None,
        nu: float = 0.0,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class SpSVMClassifier(_SeveralSizes, Classifier):
    """Classification by a support vector machine of few prototypes (Keerthi et al. 2006).

    Prototypes are selected out of candidates one after another, each by its effect on the squared
    hinge loss. Cross-validation chooses the number of prototypes.

    Args:
        max_prototypes: largest number of prototypes, at which the path ends; by default 300, or
            fewer if there are fewer candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of
            points in raw units, shape `M d`. By default the number of rows, at most 1000,
            rounded down so that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or
            "uniform".
        subset: number of random candidates examined for each prototype; None for 59.
        size_tolerance: choose the smallest size whose error is within this many standard errors
            of the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
        growth: factor by which the number of prototypes grows between optimisations of all
            coefficients, see `fit`.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: Literal["k_center", "k_means", "renyi", "uniform"] = 'k_center',
        subset: int | Literal["auto"] | None = None,
        size_tolerance: float = 0.1,
        growth: float = 1.1,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class SparseFisherClassifier(_ShareOfSupportVectors):
    """Classification by a sparse kernel Fisher discriminant (Wu et al. 2006, Appendix A).

    A descent moves the prototypes to a maximum of the Fisher quotient in the span of the
    prototypes. A support vector machine in this span gives the coefficients and the intercept.

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes. Or a fraction between 0 and 1 of
            the support vectors of scikit-learn's `SVC` with the same C and kernel. If C is
            tuned, `SVC` has C = 1. If the lengthscale of a kernel name is tuned, `SVC` has an
            RBF kernel, whose lengthscale is the square root of half the number of columns. With
            several classes, the number of support vectors is the mean over the one-versus-rest
            problems.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: how the start is chosen: "k_means", "renyi" or "uniform".
        starts: number of descents. The first starts from points by `selection`, the others from
            random rows. After 20 steps only the descent with the lowest objective goes on.
        sharing: whether the problems of several classes, or several targets, have "shared"
            prototypes, or each problem `n_prototypes` "separate" ones.
        tolerance: tolerance of the descent, see `direct.minimise`.
        max_iter: limit of steps of the descent. A new value compiles the programs again.
        loss: loss of the support vector machine, "hinge" or "squared_hinge".

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["k_means", "renyi", "uniform"] = 'k_means',
        starts: int = 3,
        sharing: Literal["shared", "separate"] = 'shared',
        tolerance: float = 0.001,
        max_iter: int = 200,
        loss: Literal["hinge", "squared_hinge"] = 'hinge',
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class SparseKernelRidgeRegressor(Regressor):
    """Kernel ridge regression with few optimised prototypes (Wu et al. 2006).

    A descent moves the prototypes, which need not be rows.

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: how the start is chosen: "k_means", "renyi" or "uniform".
        starts: number of descents. The first starts from points by `selection`, the others from
            random rows. After 20 steps only the descent with the lowest objective goes on.
        sharing: whether the problems of several classes, or several targets, have "shared"
            prototypes, or each problem `n_prototypes` "separate" ones.
        tolerance: tolerance of the descent, see `direct.minimise`.
        max_iter: limit of steps of the descent. A new value compiles the programs again.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["k_means", "renyi", "uniform"] = 'k_means',
        starts: int = 3,
        sharing: Literal["shared", "separate"] = 'shared',
        tolerance: float = 0.001,
        max_iter: int = 200,
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class SparseLargeMarginClassifier(_ShareOfSupportVectors):
    """Classification by a support vector machine of few optimised prototypes (Wu et al. 2006).

    A descent moves the prototypes to a minimum of the objective of the support vector machine in
    the span of the prototypes. The prototypes need not be rows.

    Args:
        n_prototypes: number of prototypes `m`, at most the number of rows. With several
            increasing numbers, cross-validation chooses one (De Brabanter 2010, Section 5).
            "auto" doubles the number while the error falls and the time limit of the search
            permits. None takes a third of the rows, at least one for each class, and at most
            300, or 20 where a descent moves the prototypes. Or a fraction between 0 and 1 of
            the support vectors of scikit-learn's `SVC` with the same C and kernel. If C is
            tuned, `SVC` has C = 1. If the lengthscale of a kernel name is tuned, `SVC` has an
            RBF kernel, whose lengthscale is the square root of half the number of columns. With
            several classes, the number of support vectors is the mean over the one-versus-rest
            problems.
        size_tolerance: among several numbers, choose the smallest whose error is within this
            many standard errors of the smallest error.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: how the start is chosen: "k_means", "renyi" or "uniform".
        starts: number of descents. The first starts from points by `selection`, the others from
            random rows. After 20 steps only the descent with the lowest objective goes on.
        sharing: whether the problems of several classes, or several targets, have "shared"
            prototypes, or each problem `n_prototypes` "separate" ones.
        tolerance: tolerance of the descent, see `direct.minimise`.
        max_iter: limit of steps of the descent. A new value compiles the programs again.
        loss: "hinge" or "squared_hinge".

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["k_means", "renyi", "uniform"] = 'k_means',
        starts: int = 3,
        sharing: Literal["shared", "separate"] = 'shared',
        tolerance: float = 0.001,
        max_iter: int = 200,
        loss: Literal["hinge", "squared_hinge"] = 'hinge',
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class SparseReducedLSSVMClassifier(Classifier):
    """Classification by a pruned LS-SVM (Mall and Suykens 2015, Algorithms 3 and 4).

    Iteratively reweighted ridge regression drives most coefficients to zero. A smaller `C` leaves
    fewer prototypes, so the estimator takes the smallest `C` whose cross-validated error is within
    `size_tolerance` standard errors of the lowest.

    Args:
        n_prototypes: initial number of prototypes, or several numbers, from which
            cross-validation chooses one; None for `k` times the square root of the number of
            rows (Table III), at most 1000.
        size_tolerance: choose the smallest `C` whose error is within this many standard errors
            of the smallest error; a smaller `C` leaves fewer prototypes. The tolerance also
            chooses among several initial numbers.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: how the initial prototypes are chosen: "renyi" or "uniform".
        k: factor of the square root in the default of `n_prototypes`.
        initialization: the first machine: "primal" for a fixed-size LS-SVM of all rows
            (Algorithm 3), or "dual" for an LS-SVM of the prototypes alone (eq. 6, Algorithm 4),
            which needs the rows in memory.
        start: the reweighting starts from the sizes of the "coefficients" of the first machine,
            or for "primal" of its "weights" in Nystroem features. Algorithm 3 prints the
            weights, although feature `j` is unrelated to prototype `j`.
        loss: the squared errors of all "rows", or of the "prototypes" alone, which is the
            SV_L0-norm PFS-LSSVM of the paper's comparison; it needs the rows in memory.
        rule: the stopping rule, see `solvers.reweighted`. "paper" also starts the iteration as
            printed. "relative" scales the targets to variance 1, and starts no prototype with a
            penalty that would force it to vanish.

    Other parameters, and attributes: see `KernelMachineClassifier`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["renyi", "uniform", "pivoted_cholesky"] = 'renyi',
        k: float = 4.0,
        initialization: Literal["primal", "dual"] = 'primal',
        start: Literal["coefficients", "weights"] = 'coefficients',
        loss: Literal["rows", "prototypes"] = 'rows',
        rule: Literal["relative", "paper"] = 'relative',
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        multiclass: Any = 'one_versus_rest',
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...

class SparseReducedLSSVMRegressor(Regressor):
    """Regression by a pruned LS-SVM (Mall and Suykens 2015, Algorithms 3 and 4).

    Iteratively reweighted ridge regression drives most coefficients to zero. Several targets share
    their prototypes. `C` is chosen as in `SparseReducedLSSVMClassifier`.

    Args:
        n_prototypes: initial number of prototypes, or several numbers, from which
            cross-validation chooses one; None for `k` times the square root of the number of
            rows (Table III), at most 1000.
        size_tolerance: choose the smallest `C` whose error is within this many standard errors
            of the smallest error; a smaller `C` leaves fewer prototypes. The tolerance also
            chooses among several initial numbers.
        stop_when_flat: try several numbers in increasing order, and stop when the error falls
            by less than a tenth of a standard error, or when the next number would exceed the
            time limit of the search.
        selection: how the initial prototypes are chosen: "renyi" or "uniform".
        k: factor of the square root in the default of `n_prototypes`.
        initialization: the first machine: "primal" for a fixed-size LS-SVM of all rows
            (Algorithm 3), or "dual" for an LS-SVM of the prototypes alone (eq. 6, Algorithm 4),
            which needs the rows in memory.
        start: the reweighting starts from the sizes of the "coefficients" of the first machine,
            or for "primal" of its "weights" in Nystroem features. Algorithm 3 prints the
            weights, although feature `j` is unrelated to prototype `j`.
        loss: the squared errors of all "rows", or of the "prototypes" alone, which is the
            SV_L0-norm PFS-LSSVM of the paper's comparison; it needs the rows in memory.
        rule: the stopping rule, see `solvers.reweighted`. "paper" also starts the iteration as
            printed. "relative" scales the targets to variance 1, and starts no prototype with a
            penalty that would force it to vanish.

    Other parameters, and attributes: see `KernelMachineRegressor`.
    """

    def __init__(
        self,
        n_prototypes: int | Sequence[int] | Literal["auto"] | None = None,
        *,
        size_tolerance: float = 1.0,
        stop_when_flat: bool = False,
        selection: Literal["renyi", "uniform", "pivoted_cholesky"] = 'renyi',
        k: float = 4.0,
        initialization: Literal["primal", "dual"] = 'primal',
        start: Literal["coefficients", "weights"] = 'coefficients',
        loss: Literal["rows", "prototypes"] = 'rows',
        rule: Literal["relative", "paper"] = 'relative',
        kernel: str | Kernel | Sequence[Kernel] = 'rbf',
        lengthscale: Any = 'auto',
        categories: Literal["indicators", "kernel"] = 'indicators',
        columns: Literal["standard", "ranks", "auto"] = 'standard',
        C: float | str = 'auto',
        cv: Any = 'auto',
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = 'profile',
        max_evaluations: int | None = None,
        max_seconds: float = inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | RandomState | None = None,
    ) -> None: ...
