"""Import pyarrow, or raise an error that says how to install it."""

from typing import Any

try:
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.csv as pa_csv
    import pyarrow.dataset as pa_dataset
    import pyarrow.parquet as pa_parquet
except ImportError as error:
    raise ImportError("reading tables needs pyarrow: pip install 'jsparse[cli]'") from error

pc: Any = pyarrow.compute  # creates its functions at import, so type checkers do not know them

__all__ = ["pa", "pa_csv", "pa_dataset", "pa_parquet", "pc"]
