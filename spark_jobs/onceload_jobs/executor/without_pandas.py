"""Keep pandas out of the processes of local workers."""

import sys
from importlib.abc import MetaPathFinder

import numpy as np
import pyarrow as pa


class _NotFound(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def keep_pandas_out() -> None:
    """Keep pyarrow from importing pandas, which takes 0.2 s in each process.

    pyarrow tries to import it when it converts its first list and its first array of numpy, and remembers the result.
    After that, it no longer knows the nulls of pandas. So this is only for a process in which no other code runs.
    """
    finder = _NotFound()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
        pa.array(np.zeros(0))
    finally:
        sys.meta_path.remove(finder)
