"""The formats: bytes in, rows and bad records out."""
