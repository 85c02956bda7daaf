"""The scikit-learn face: estimators over the machines and their tuning."""

from ._fixed_size import FixedSizeLSSVMClassifier as FixedSizeLSSVMClassifier
from ._fixed_size import FixedSizeLSSVMRegressor as FixedSizeLSSVMRegressor
from ._lssvm import LSSVMClassifier as LSSVMClassifier
from ._lssvm import LSSVMRegressor as LSSVMRegressor
from ._one_class import SparseOneClassSVM as SparseOneClassSVM
from ._pursuits import KernelBasisPursuitClassifier as KernelBasisPursuitClassifier
from ._pursuits import KernelBasisPursuitRegressor as KernelBasisPursuitRegressor
from ._pursuits import KernelMatchingPursuitClassifier as KernelMatchingPursuitClassifier
from ._pursuits import KernelMatchingPursuitRegressor as KernelMatchingPursuitRegressor
from ._pursuits import KernelSubspacePursuitClassifier as KernelSubspacePursuitClassifier
from ._pursuits import KernelSubspacePursuitRegressor as KernelSubspacePursuitRegressor
from ._reductions import SparseReducedLSSVMClassifier as SparseReducedLSSVMClassifier
from ._reductions import SparseReducedLSSVMRegressor as SparseReducedLSSVMRegressor
from ._rvm import RelevanceVectorClassifier as RelevanceVectorClassifier
from ._rvm import RelevanceVectorRegressor as RelevanceVectorRegressor
from ._scdp import SCDPClassifier as SCDPClassifier
from ._scdp import SCDPRegressor as SCDPRegressor
from ._slmc import ReducedSetClassifier as ReducedSetClassifier
from ._slmc import SparseFisherClassifier as SparseFisherClassifier
from ._slmc import SparseKernelRidgeRegressor as SparseKernelRidgeRegressor
from ._slmc import SparseLargeMarginClassifier as SparseLargeMarginClassifier
from ._spsvm import SpSVMClassifier as SpSVMClassifier
