"""pyarrow, or the words that say how to get it."""

from typing import Any

try:
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.csv as pa_csv
    import pyarrow.dataset as pa_dataset
    import pyarrow.parquet as pa_parquet
except ImportError as error:
    raise ImportError("reading tables needs pyarrow: pip install 'jsparse[cli]'") from error

pc: Any = pyarrow.compute  # its functions are made at import, unseen by type checkers

__all__ = ["pa", "pa_csv", "pa_dataset", "pa_parquet", "pc"]
