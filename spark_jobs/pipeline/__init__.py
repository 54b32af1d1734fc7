"""What a pipeline file declares."""
