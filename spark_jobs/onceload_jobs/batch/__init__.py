"""One batch: its job, and its stage."""
