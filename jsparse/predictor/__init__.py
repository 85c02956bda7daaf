"""Predictions from a model file with NumPy alone.

This package imports nothing but NumPy and the standard library, and no other part of jsparse. Its
folder may be copied into a program that serves predictions.

The modules hold the plain structure of a model that writers of other formats read: a `Predictor`
with a `machine.Machine`, whose kernel is a tree of the nodes in `kernels`.
"""

from .checks import NumericalError as NumericalError
from .checks import TableError as TableError
from .checks import UnseenCategoryWarning as UnseenCategoryWarning
from .contents import load as load
from .files import ModelFileError as ModelFileError
from .predictor import Predictor as Predictor
