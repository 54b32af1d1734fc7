"""Read a delivery: chunks, parts, rows, and what they prove."""
