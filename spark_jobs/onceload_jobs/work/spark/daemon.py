"""A process that Spark may fork its Python workers from: it has already imported what each of them needs.

For a session of Spark that stays, by its setting `spark.python.daemon.module`. A load that starts Spark does not use
it: the load would not gain, and if an import fails here, Spark's error does not tell which.
"""

import numpy as np
import pyarrow as pa
from pyspark.daemon import manager

import onceload_jobs.work.session
import onceload_jobs.work.spark.spark  # noqa: F401 - for the workers.

if __name__ == "__main__":
    # pyarrow imports further modules when it first converts a list, and when it first converts an array of numpy.
    pa.array([])
    pa.array(np.zeros(0))
    manager()
