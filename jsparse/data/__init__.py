"""Real data: the benchmark sets of the papers, scikit-learn's bundled sets, and files of tables.

`jsparse.data.tables` reads CSV and Parquet files and `jsparse.data.encoding` turns them into
arrays; both need pyarrow (`pip install 'jsparse[cli]'`) and so are imported by their own names.
"""

from .benchmark_sets import BenchmarkSet as BenchmarkSet
from .benchmark_sets import benchmark_set as benchmark_set
from .benchmark_sets import demo_set as demo_set
