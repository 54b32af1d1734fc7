"""The declaration in a pipeline file."""
