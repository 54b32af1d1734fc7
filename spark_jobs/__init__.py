"""The data plane: read files, parse records, stage rows, publish."""
