"""Run a function over items, in processes that may die: of this machine, or of Spark."""
