"""Draft a pipeline file from a sample of its files."""
