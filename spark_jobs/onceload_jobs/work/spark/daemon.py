"""The process that Spark forks its Python workers from. It has already imported what each of them needs."""

import numpy as np
import pyarrow as pa
from pyspark.daemon import manager

import onceload_jobs.work.spark.tasks  # noqa: F401 - for the workers.

if __name__ == "__main__":
    # pyarrow imports further modules when it first converts a list, and when it first converts an array of numpy.
    pa.array([])
    pa.array(np.zeros(0))
    manager()
