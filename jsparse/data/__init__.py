"""Real data: a data set of the package, data sets of scikit-learn, and files of tables.

`jsparse.data.table_files` reads CSV and Parquet files and `jsparse.data.encoding` turns them into
arrays; both need pyarrow (`pip install 'jsparse[cli]'`), so this module does not import them.
"""

from .demo import DemoSet as DemoSet
from .demo import demo_set as demo_set
