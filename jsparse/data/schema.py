"""The encoding of a table as arrays: a plain record that is saved with the model."""

from ..predictor.schema import CLASSIFICATION as CLASSIFICATION
from ..predictor.schema import NULL_VALUES as NULL_VALUES
from ..predictor.schema import REGRESSION as REGRESSION
from ..predictor.schema import Column as Column
from ..predictor.schema import CsvFormat as CsvFormat
from ..predictor.schema import Schema as Schema
from ..predictor.schema import Value as Value
