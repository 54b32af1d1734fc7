"""Recovery: retry, rewind, rebuild."""
