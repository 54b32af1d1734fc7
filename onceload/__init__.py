"""The face: command line, settings, pipeline files, the embedded database."""
