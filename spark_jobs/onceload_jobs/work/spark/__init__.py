"""Sessions as tasks of Spark, and transforms, which are Spark SQL."""
