"""The learners of the papers: pure functions, and the methods that training takes them by."""

from .dual import Dual as Dual
from .fixed_size import FixedSize as FixedSize
from .kbp import KBP as KBP
from .kmp import KMP as KMP
from .ksp import KSP as KSP
from .method import Additive as Additive
from .method import Method as Method
from .method import Stopping as Stopping
from .reduced_set import ReducedSetSVM as ReducedSetSVM
from .reductions import SparseReduction as SparseReduction
from .robust import Robust as Robust
from .rvm import RVM as RVM
from .scdp import SCDP as SCDP
from .slmc import SLMC as SLMC
from .slmc import ReducedSVM as ReducedSVM
from .sparse_direct import SparseFisher as SparseFisher
from .sparse_direct import SparseRidge as SparseRidge
from .spsvm import SpSVM as SpSVM

# The methods by their names on the command line.
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        FixedSize,
        SCDP,
        Dual,
        Robust,
        SpSVM,
        SparseReduction,
        KSP,
        KMP,
        KBP,
        SLMC,
        ReducedSVM,
        SparseFisher,
        SparseRidge,
        ReducedSetSVM,
        RVM,
    )
}
