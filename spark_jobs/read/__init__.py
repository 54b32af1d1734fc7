"""A delivery read: chunks, parts, rows, and what they will prove."""
