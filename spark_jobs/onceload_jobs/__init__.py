"""The data plane: read files, parse records, stage rows, publish."""

import warnings

# Spark warns about the version of pandas, which is not used here.
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
