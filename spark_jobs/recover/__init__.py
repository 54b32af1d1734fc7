"""Going back: retry, rewind, rebuild."""
