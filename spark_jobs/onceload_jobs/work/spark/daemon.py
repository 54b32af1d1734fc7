"""The process that Spark forks its Python workers from, after it has imported what each of them needs."""

import numpy as np
import pyarrow as pa
from pyspark.daemon import manager

import onceload_jobs.work.spark.tasks  # noqa: F401 - for the workers.

if __name__ == "__main__":
    # pyarrow imports more with its first list and its first array of numpy.
    pa.array([])
    pa.array(np.zeros(0))
    manager()
