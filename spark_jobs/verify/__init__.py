"""Files, ledger and rows compared."""
