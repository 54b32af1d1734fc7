"""One load, from its plan to its report."""
