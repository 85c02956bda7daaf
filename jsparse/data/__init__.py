"""Real data: the package's own set, scikit-learn's bundled sets, and files of tables.

`jsparse.data.table_files` reads CSV and Parquet files and `jsparse.data.encoding` turns them into
arrays; both need pyarrow (`pip install 'jsparse[cli]'`) and so are imported by their own names.
"""

from .demo import DemoSet as DemoSet
from .demo import demo_set as demo_set
