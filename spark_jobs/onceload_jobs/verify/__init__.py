"""Compare files, ledger and rows."""
