"""Each item has an outcome, also if Spark reports none."""

from typing import Any, cast

from onceload_jobs.executor.executor import Died
from onceload_jobs.executor.spark import SparkExecutor


class Forgetful(SparkExecutor):
    """Its jobs end without an error and without any outcome."""

    slots = 2

    def _run(self, *_: Any):
        yield from ()


def test_an_item_of_which_spark_says_nothing_is_not_forgotten():
    outcomes = dict(Forgetful(cast("Any", None), name="events").each(abs, range(5)))

    assert outcomes == dict.fromkeys(range(5), Died("Spark ended its task without an outcome and without an error"))
