"""The data plane: read, parse, stage, hand over."""
